# SPDX-License-Identifier: Apache-2.0
"""What a step of micro-batches runs: the segments of a graph, and the order of their passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from baechi._core import InputError
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.graphs import PlacedGraph
from baechi.torch.run.joined_parts import Joining
from baechi.torch.run.segment_program import function_of
from baechi.torch.run.sendings import Sendings, SentAt
from baechi.torch.run.step_order import Sending, StartOf, is_apart, step_order
from baechi.torch.trace.graph import Node
from baechi.torch.trace.segments import Segment, repeated_segments, segments_of


class StepProgram:
    """A graph, its segments, and the order of a step's parts.

    With `joined`, segments that a device runs one behind the other in every pass are one.

    With `outputs_stay` the loss is none of it, and each output is read where it is made. With
    `own_loss` the loss is the one that the model returns, and nothing else that it returns is read.
    """

    def __init__(
        self,
        placed: PlacedGraph,
        assigner: Assigner,
        micro_batches: int,
        start_of: StartOf,
        loss_on: int | None,
        again: Collection[str] = (),
        *,
        sent_at: SentAt | None = None,
        outputs_stay: bool = False,
        own_loss: bool = False,
        joined: bool = False,
    ) -> None:
        self.model = assigner.model
        self.exported = placed.exported
        self.graph = placed.exported.graph
        known = assigner.placement.keys()

        def operator_of(node: Node) -> str | None:
            return node.owner if node.owner in known else None

        where = assigner.placement

        def segments(together: Sequence[Sequence[int]] = ()) -> list[Segment]:
            # Views for an operator elsewhere are sent there, and so run as soon as they can.
            return [
                replace(s, operators=tuple(o for o in s.operators if where[o] == s.device))
                for s in segments_of(self.graph, placed.devices, operator_of, together=together)
            ]

        self.homes: dict[int, int | None] = {
            n.index: placed.devices[n.index] for n in self.graph.nodes
        }
        weights = {s for n in self.graph.nodes if n.kind == "weight" for s in n.storages}
        self.of_weights = {n.index for n in self.graph.nodes if weights.intersection(n.storages)}
        self.loss_on = self._loss_device(loss_on)
        self.read_at_end = self._own_loss() if own_loss else list(dict.fromkeys(self.graph.outputs))

        def take(segments: list[Segment], whole: Collection[str] = ()) -> None:
            self._take(segments, again, outputs_stay=outputs_stay)
            self.apart = {s.index for s in segments if is_apart(start_of, s, whole)}
            sendings: list[Sending] = []
            if sent_at is not None:
                how = (self.homes, self.read_on, sent_at, micro_batches)
                finder = Sendings(self.graph, segments, *how)
                sendings = finder.of(self.loss_on, self.read_at_end, self.of_weights)
            self.sent_later = {(s.part.phase, s.part.value, s.part.reader) for s in sendings}
            how_often = (micro_batches, start_of, self.repeated)
            self.order = step_order(self.graph, segments, *how_often, sendings, whole)

        take(segments())
        if joined:
            joining = self._joining()
            whole = {o for i in joining.whole for o in self.segments[i].operators}
            groups = [[n for i in g for n in self.segments[i].nodes] for g in joining.groups()]
            take(segments(groups), whole)
        self.functions = [
            function_of(self.graph, s, assigner.model, assigner.devices) for s in self.segments
        ]

    def _take(self, segments: list[Segment], again: Collection[str], *, outputs_stay: bool) -> None:
        """Have these segments."""
        self.segments = segments
        self.maker = {value: s.index for s in segments for value in s.makes}
        self.repeated = repeated_segments(segments, again)
        runs_again = {o for i in self.repeated for o in segments[i].operators}
        whole = next((name for name in again if name not in runs_again), None)
        if whole is not None:
            raise InputError(
                f"the plan has {whole!r} run again, which is one with others in the graph of the "
                "model, or changes something: make the plan of this model"
            )
        self.readers: dict[int, dict[int | None, int]] = {}  # of a value: how many, by device
        for segment in segments:
            for read in segment.reads:
                self._add_reader(read, self.read_on(segment, read))
        for output in self.graph.outputs:
            self.readers.setdefault(output, {})
        for output in self.read_at_end:
            self._add_reader(output, self.homes[output] if outputs_stay else self.loss_on)

    def _joining(self) -> Joining:
        """Return which segments can be one."""
        alone = {
            s.index
            for s in self.segments
            if s.device is None
            or s.only_looks
            or s.reads_changed
            or s.shows_changed
            or s.index in self.repeated
            or any(self.maker.get(read) in self.repeated for read in s.reads)
        }
        loss = self.loss_on, self.read_at_end
        return Joining(self.graph, self.segments, self.order, loss, self.apart, alone)

    def _own_loss(self) -> list[int]:
        """Return the output that is the loss of the model itself; all where there is none."""
        outputs = self.graph.outputs
        stand_ins = [torch.empty(()) for _ in outputs]
        loss = getattr(self.exported.rebuild(stand_ins), "loss", None)
        mine = [o for o, t in zip(outputs, stand_ins, strict=True) if t is loss]
        return mine[:1] or list(dict.fromkeys(outputs))

    def _add_reader(self, value: int, where: int | None) -> None:
        readers = self.readers.setdefault(value, {})
        readers[where] = readers.get(where, 0) + 1

    def _loss_device(self, planned: int | None) -> int | None:
        if planned is not None:
            return planned
        return next((h for o in self.graph.outputs if (h := self.homes[o]) is not None), None)

    def read_on(self, segment: Segment, read: int) -> int | None:
        """Return the device that a segment reads a value on."""
        here = segment.only_looks or self.graph.nodes[read].is_host
        return self.homes[read] if here else segment.device
