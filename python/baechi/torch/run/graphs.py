# SPDX-License-Identifier: Apache-2.0
"""Which graph runs a call of a placed model (Paper 4.3).

There is one graph per structure of the arguments and mode of the model, made by torch.export when
it is first wanted; sizes that a graph does not cover get another. Unless tier 2 was asked for,
nobody waits for a graph that takes longer than a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi.progress import warn
from baechi.torch.run.blocks import block_of
from baechi.torch.run.communication import MODES as PLAIN_MODES
from baechi.torch.run.graph_gain import GraphGain
from baechi.torch.run.placed_runs import PlacedRuns
from baechi.torch.run.program import Machine, compiled
from baechi.torch.run.sent_tensors import SentTensors
from baechi.torch.trace.call_structure import Call, modes_of, structure_of
from baechi.torch.trace.exported import Exported, export
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.trace.placement import GraphPlacement, Operators, ids_by_name, weights_in
from baechi.torch.trace.schedule import ORDER
from baechi.torch.trace.segments import Segment
from baechi.torch.trace.surroundings import Attributes, ExampleGraph, check_surroundings

TIERS = ("auto", 1, 2)
MODES = (*PLAIN_MODES, ORDER)
_GRAPHS = 4  # of one structure and mode; after that sizes vary too much for graphs
_KINDS = 16  # structures and modes; numbers among the arguments are part of a structure


@dataclass
class Tier2:
    """What tier 2 is to do."""

    required: bool = False  # the user insists on it
    gain: GraphGain | None = None  # predicted of a graph; None: there will be no others
    asked: bool = True  # for graphs, also where their tracing takes long
    exported: list[Exported] = field(default_factory=list)
    starts: Mapping[str, int] = field(default_factory=dict)  # planned, by key; for the order
    operators: Operators | None = None
    units: Any = "leaf"
    early: ExampleGraph | None = None  # made before the first call
    again: Collection[str] = ()  # planned operators that run again in the backward


@dataclass
class PlacedGraph:
    """A graph as it runs on the devices of a placed model."""

    exported: Exported
    program: Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]
    homes: list[int | None]  # the device of every output
    devices: list[int | None]  # of every node

    def run(self, inputs: list[torch.Tensor], tensors: SentTensors) -> tuple[torch.Tensor, ...]:
        """Run it; the outputs are where they were made."""
        outputs = self.program(inputs)
        for tensor, home in zip(outputs, self.homes, strict=True):
            if home is not None:
                tensors.mark(tensor, tensors.devices[home])
        return outputs


class Graphs:
    """The graphs of a placed model."""

    def __init__(
        self,
        model: nn.Module,
        tier2: Tier2,
        placement: GraphPlacement,
        tensors: SentTensors,
        aside: Callable[[], AbstractContextManager[None]],
        runs: PlacedRuns,
    ) -> None:
        self.tier2 = tier2
        self._model = model
        self._placement = placement
        self._tensors = tensors
        self._aside = aside  # in which the model runs as if it were not placed
        self._runs = runs  # of operators that run again in the backward
        self._known: dict[Any, list[PlacedGraph]] = {}
        self._refused: dict[Any, str] = {}
        if tier2.early is not None:
            self._refused = {(*key, 0): reason for key, reason in tier2.early.refused.items()}
        settings = None if tier2.early is None else tier2.early.settings
        self._attributes = Attributes(model, settings, _GRAPHS)
        self._weight_devices: Mapping[str, str] = {}
        self._watch: Callable[[str, Any], None] | None = None
        self._all_modules: list[nn.Module] = []
        self._children: list[tuple[Mapping[str, Any], tuple[Any, ...]]] = []  # of each module
        self._childless: list[Mapping[str, Any]] = []  # of modules with none inside
        self._weights: list[Mapping[str, Any]] = []  # parameters and buffers of each module
        self._weight_counts: list[int] = []
        self._weight_sizes: list[torch.Size] = []

    def __len__(self) -> int:
        """How many graphs there are."""
        return sum(map(len, self._known.values()))

    def has(self, graph: PlacedGraph) -> bool:
        """Whether a graph is among them."""
        return any(graph is each for known in self._known.values() for each in known)

    def install(
        self, weight_devices: Mapping[str, str], watch: Callable[[str, Any], None] | None
    ) -> None:
        """Take note of the modules, and place the graphs that are there already.

        Args:
            weight_devices: The cluster's device of every weight.
            watch: Is told of every operator's result.

        """
        self._weight_devices, self._watch = weight_devices, watch
        self._all_modules = list(self._model.modules())
        tables = [m._modules for m in self._all_modules]
        self._children = [(table, tuple(table.values())) for table in tables if table]
        self._childless = [table for table in tables if not table]
        self._weights = [t for m in self._all_modules for t in (m._parameters, m._buffers)]
        self._weight_counts = list(map(len, self._weights))
        self._weight_sizes = self._sizes()
        for exported in self.tier2.exported:
            key = (exported.structure, exported.modes, exported.variant)
            if not any(known.exported is exported for known in self._known.get(key, ())):
                self._known.setdefault(key, []).append(self._placed(exported))

    def remove(self) -> None:
        """Forget the placed graphs, which name the devices; what they came from is kept."""
        self._known.clear()

    def retyped(self) -> None:
        """Forget the graphs: they hold conversions to types that the weights no longer have."""
        self._known.clear()
        self._refused.clear()
        self.tier2.exported.clear()

    def find(
        self, args: Any, kwargs: Any, tensors: list[torch.Tensor], *, in_steps: bool = False
    ) -> PlacedGraph:
        """Return the graph of a call, and collect the tensors among its arguments.

        Args:
            args: Of the call.
            kwargs: Of the call.
            tensors: Takes the tensors.
            in_steps: Who runs it switches autocast as it was around the trace.

        Raises:
            NotExportedError: None runs it; with the reason.

        """
        autocast = self._check_surroundings(in_steps)
        variant = self._attributes.variant()
        structure = structure_of((args, kwargs), tensors)
        key = (structure, modes_of(self._all_modules, autocast), variant)
        known = self._known.get(key, ())
        for graph in known:
            if graph.exported.accepts(tensors):
                return graph
        if key in self._refused:
            raise NotExportedError(self._refused[key])
        if not self._known and len(self._refused) >= _KINDS:  # each attempt takes seconds
            raise NotExportedError(next(reversed(self._refused.values())))
        kinds = len(self._known) + len(self._refused)
        if len(known) >= _GRAPHS or (not known and kinds >= _KINDS):
            raise NotExportedError("its arguments vary too much")
        try:
            return self._added(key, Call(args, kwargs), tensors, autocast)
        except NotExportedError as reason:
            self._refused[key] = str(reason)
            raise

    def ran_eagerly(self) -> None:
        """Take the attributes as a call left them; what a graph was made for must be noticed."""
        if not len(self):
            self._attributes.accept()

    def announce_tracing(self, why: str) -> None:
        """Warn where a trace takes long; `why` goes on from the model's name."""
        number = len(self.tier2.exported) + 1
        gain = self.tier2.gain
        if gain is not None and not gain.is_quick:
            warn(
                f"{type(self._model).__name__} {why}: tracing number {number} takes about "
                f"{gain.tracing:.0f} s of processor time"
            )

    def _check_surroundings(self, in_steps: bool) -> torch.dtype | None:
        kinds = {d.torch_device.type for d in self._tensors.devices if not d.is_elsewhere}
        autocast = check_surroundings(self._all_modules[1:], kinds, in_steps=in_steps)
        for children, placed in self._children:
            if tuple(children.values()) != placed:
                raise NotExportedError("a module inside it was replaced after it was placed")
        if any(self._childless):
            raise NotExportedError("a module inside it got others inside after it was placed")
        if list(map(len, self._weights)) != self._weight_counts:
            raise NotExportedError("it has other parameters than when it was placed")
        if self._sizes() != self._weight_sizes:
            raise NotExportedError("its parameters or buffers have other sizes than when placed")
        return autocast

    def _sizes(self) -> list[torch.Size]:
        filled = filter(None, self._weights)
        return [w.shape for table in filled for w in table.values() if w is not None]

    def _added(
        self, key: Any, call: Call, tensors: list[torch.Tensor], autocast: torch.dtype | None
    ) -> PlacedGraph:
        gain = self.tier2.gain
        if gain is not None and not (gain.is_quick or self.tier2.asked):
            raise NotExportedError(str(gain))
        self.announce_tracing("is called in a way that it has no graph for")
        known = self._known.get(key, [])
        earlier = known[-1].exported.example if known else None
        with self._aside():
            how: Any = {"units": self.tier2.units, "earlier": earlier, "autocast": autocast}
            exported = export(self._model, call, **how)
        if not exported.accepts(tensors):
            raise NotExportedError("its graph does not take the arguments it was made for")
        exported.variant = key[-1]
        graph = self._placed(exported)
        self._known.setdefault(key, []).append(graph)
        self.tier2.exported.append(exported)  # for the time after restore()
        return graph

    def _placed(self, exported: Exported) -> PlacedGraph:
        graph, devices = exported.graph, self._tensors.devices
        index = {d.name: d.index for d in devices}
        ids = ids_by_name(self._model)
        where = {i: index[self._weight_devices[name]] for name, i in ids.items()}
        weights = weights_in(self._model, graph, where)
        schedule = self._placement.scheduled(graph, weights, trains=exported.modes[0])
        tensors = self._tensors

        def block(segment: Segment) -> Callable[..., Any]:
            return block_of(graph, segment, schedule.blocks, self._model, devices, self._runs)

        bring, watch = tensors.brought, self._watch
        machine = Machine(self._model, devices, tensors.links, bring, watch, block)
        homes = [schedule.devices[o] for o in graph.outputs]
        return PlacedGraph(exported, compiled(graph, schedule, machine), homes, schedule.devices)
