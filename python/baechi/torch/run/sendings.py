# SPDX-License-Identifier: Apache-2.0
"""What a step of micro-batches sends when its plan says, and not as soon as it is there.

Memory for what is sent is taken at its target when the host asks for the copy, which may be long
before the link is free. So the copy is asked for when the plan has it begin: then a device holds
what the plan says. Gradients of a value that several operators of a device read are added up there;
they leave when the plan sends the last of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from baechi.torch.run.step_order import Part, Phase, Sending
from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.trace.segments import Segment

# Planned: of an operator's forward or backward, of a micro-batch, to a device, in their order.
SentAt = Callable[[Phase, str, int, int], Sequence[int]]


class Sendings:
    """Finds what leaves when the plan says."""

    def __init__(
        self,
        graph: ExportedGraph,
        segments: list[Segment],
        homes: Mapping[int, int | None],
        read_on: Callable[[Segment, int], int | None],
        sent_at: SentAt,
        micro_batches: int,
    ) -> None:
        self._graph = graph
        self._homes = homes
        self._sent_at = sent_at
        self._micro_batches = micro_batches
        self._segments = segments
        self._read_on = read_on
        self._readers: dict[tuple[int, int], list[Segment]] = {}  # of a value on a device
        for segment in segments:
            for value in segment.reads:
                where = None if segment.only_looks else read_on(segment, value)
                if where is not None:
                    self._readers.setdefault((value, where), []).append(segment)
        self._count: Counter[tuple[Phase, str, int]] = Counter()  # of what was sent before

    def of(
        self, loss_on: int | None, read_at_end: Iterable[int], changing: Iterable[int]
    ) -> list[Sending]:
        """Return them.

        Args:
            loss_on: The device of the loss.
            read_at_end: The values that the loss reads.
            changing: Values that may change once they were made: these leave at once.

        """
        found: list[Sending] = []
        makers: dict[int, str | None] = {}
        at_end, at_once = set(read_at_end), set(changing)
        for segment in self._segments:
            for value in segment.makes:
                makers[value] = self._maker(segment, value, makers)
                home = self._homes[value]
                if home is None or value in at_once:
                    continue
                targets = {where for v, where in self._readers if v == value}
                if value in at_end and loss_on is not None:
                    targets.add(loss_on)
                for target in sorted(targets - {home}):
                    by_loss = value in at_end and target == loss_on
                    found += self._forward(segment, value, target, makers[value], by_loss)
                    found += self._backward(segment, value, target, by_loss)
        return found

    def _maker(self, segment: Segment, value: int, makers: Mapping[int, str | None]) -> str | None:
        """Return the planned operator that makes a value; of a view, of what it shows."""
        if len(segment.operators) == 1:
            return segment.operators[0]
        owner = self._graph.nodes[value].owner
        if segment.operators:
            return owner if owner in segment.operators else None
        return makers.get(segment.reads[0]) if len(segment.reads) == 1 else None

    def _forward(
        self, segment: Segment, value: int, target: int, maker: str | None, by_loss: bool
    ) -> list[Sending]:
        if maker is None:
            return []
        starts = self._starts(Phase.FORWARD, maker, target)
        readers = [s.index for s in self._readers.get((value, target), ())]
        ahead_of = [Part(Phase.FORWARD, reader, 0) for reader in readers]
        ahead_of += [Part(Phase.LOSS, 0, 0)] * by_loss
        part = Part(Phase.SEND, segment.index, 0, value, target)
        behind = (Part(Phase.FORWARD, segment.index, 0),)
        return [Sending(part, starts, behind, tuple(ahead_of))] if starts else []

    def _backward(self, segment: Segment, value: int, source: int, by_loss: bool) -> list[Sending]:
        home = segment.device
        readers = self._readers.get((value, source), [])
        operators = [self._operators(reader, value) for reader in readers]
        if home is None or by_loss or not readers or [] in operators:
            return []
        reading = dict.fromkeys(operator for each in operators for operator in each)
        found = [self._starts(Phase.BACKWARD, operator, home) for operator in reading]
        if () in found:
            return []
        part = Part(Phase.SEND_BACK, segment.index, 0, value, source)
        behind = tuple(Part(Phase.BACKWARD, reader.index, 0) for reader in readers)
        starts = tuple(max(each) for each in zip(*found, strict=True))
        return [Sending(part, starts, behind, (Part(Phase.BACKWARD, segment.index, 0),))]

    def _operators(self, segment: Segment, value: int) -> list[str]:
        """Return the planned operators of a segment that read a value."""
        nodes = [self._graph.nodes[n] for n in segment.nodes]
        owners = {node.owner for node in nodes if value in node.reads}
        return [operator for operator in segment.operators if operator in owners]

    def _starts(self, phase: Phase, operator: str, target: int) -> tuple[int, ...]:
        """Return when the next tensor leaves in each micro-batch; nothing where none does."""
        number = self._count[phase, operator, target]
        self._count[phase, operator, target] += 1
        found = [self._sent_at(phase, operator, m, target) for m in range(self._micro_batches)]
        return tuple(each[min(number, len(each) - 1)] for each in found) if all(found) else ()
