# SPDX-License-Identifier: Apache-2.0
"""Chooses how each call of a placed model runs: as an exported graph, or eagerly (Paper 4.3).

Tier 2 runs the graph that torch.export made of the model, tier 1 its own code under interception.
Both use the same weights, streams and transfers, so one call may run in the one tier and the next
in the other. There is one graph per structure of the arguments and mode of the model, made when it
is first wanted; sizes that a graph does not cover get another. Unless tier 2 was asked for, nobody
waits for a graph that takes longer than a moment: such calls run in tier 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.record.recorded_step import Capture
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.communication import MODES as PLAIN_MODES
from baechi.torch.run.graph_gain import GraphGain
from baechi.torch.run.program import Machine, compiled
from baechi.torch.trace.exported import Call, Exported, export, modes_of, structure_of
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.trace.placement import GraphPlacement, Operators, ids_by_name, weights_in
from baechi.torch.trace.schedule import ORDER
from baechi.torch.trace.surroundings import Attributes, ExampleGraph, check_surroundings

TIERS = ("auto", 1, 2)


NOT_RUN = "it has not run yet"
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


@dataclass
class _Program:
    exported: Exported
    run: Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]
    homes: list[int | None]  # the device of every output


class TieredAssigner(Assigner):
    """An assigner that runs exported graphs where it can."""

    def __init__(
        self,
        model: nn.Module,
        captured: Capture,
        device_of: Mapping[str, int],
        devices: list[LogicalDevice],
        mode: str,
        tier2: Tier2,
    ) -> None:
        super().__init__(model, captured, device_of, devices, mode.removesuffix("+order"))
        self.full_mode = mode
        self.tier2 = tier2
        self.tier = 1  # of the last call
        self.note = NOT_RUN  # why that was not tier 2
        self._programs: dict[Any, list[_Program]] = {}
        self._refused: dict[Any, str] = {}
        if tier2.early is not None:
            self._refused = {(*key, 0): reason for key, reason in tier2.early.refused.items()}
        settings = None if tier2.early is None else tier2.early.settings
        self._attributes = Attributes(model, settings, _GRAPHS)
        self._all_modules: list[nn.Module] = []
        self._children: list[tuple[Mapping[str, Any], tuple[Any, ...]]] = []  # of each module
        self._childless: list[Mapping[str, Any]] = []  # of modules with none inside
        self._weights: list[Mapping[str, Any]] = []  # parameters and buffers of each module
        self._weight_counts: list[int] = []

    def _put_in_place(self) -> None:
        super()._put_in_place()
        self._all_modules = list(self.model.modules())
        tables = [m._modules for m in self._all_modules]
        self._children = [(table, tuple(table.values())) for table in tables if table]
        self._childless = [table for table in tables if not table]
        self._weights = [t for m in self._all_modules for t in (m._parameters, m._buffers)]
        self._weight_counts = list(map(len, self._weights))
        for exported in self.tier2.exported:
            key = (exported.structure, exported.modes, exported.variant)
            if not any(p.exported is exported for p in self._programs.get(key, ())):
                self._programs.setdefault(key, []).append(self._program(exported))

    def remove(self) -> None:
        """Take the wrappers away and move the weights back."""
        super().remove()
        self._programs.clear()  # they hold nothing that lives elsewhere, but name the devices

    def retyped(self) -> None:
        """Forget the graphs: they hold conversions to types that the weights no longer have."""
        self._programs.clear()
        self._refused.clear()
        self.tier2.exported.clear()

    @property
    def graphs(self) -> int:
        """How many graphs there are."""
        return sum(map(len, self._programs.values()))

    def watched(self, graph: Exported, watch: Callable[[str, Any], None]) -> TieredAssigner:
        """Return an assigner of the same placement that shows what each call of `graph` makes."""
        mine = self.tier2
        tier2 = Tier2(True, None, True, [graph], mine.starts, mine.operators, mine.units)
        other = TieredAssigner(
            self.model, self.captured, self.placement, self.devices, self.full_mode, tier2
        )
        other.watch = watch
        return other

    # Which tier

    def _ran(self, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if path:
            return super()._ran(path, forward, args, kwargs)
        tensors: list[torch.Tensor] = []
        try:
            program = self._chosen(args, kwargs, tensors)
        except NotExportedError as reason:
            self.tier, self.note = 1, str(reason)
            if self.tier2.required and not self._programs:
                raise InputError(
                    f"{type(self.model).__name__} cannot run in tier 2: {reason}"
                ) from reason
            try:
                return super()._ran(path, forward, args, kwargs)
            finally:
                if not self.graphs:  # what a graph was made for must be noticed
                    self._attributes.accept()
        self.tier, self.note = 2, ""
        return self._run(program, tensors)

    def _chosen(self, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> _Program:
        """Return what runs a call; raises why nothing does."""
        self._check_surroundings()
        variant = self._attributes.variant()
        structure = structure_of((args, kwargs), tensors)
        key = (structure, modes_of(self._all_modules), variant)
        known = self._programs.get(key, ())
        for program in known:
            if program.exported.accepts(tensors):
                return program
        if key in self._refused:
            raise NotExportedError(self._refused[key])
        if not self._programs and len(self._refused) >= _KINDS:  # each attempt takes seconds
            raise NotExportedError(next(reversed(self._refused.values())))
        kinds = len(self._programs) + len(self._refused)
        if len(known) >= _GRAPHS or (not known and kinds >= _KINDS):
            raise NotExportedError("its arguments vary too much")
        try:
            return self._added(key, Call(args, kwargs), tensors)
        except NotExportedError as reason:
            self._refused[key] = str(reason)
            raise

    def _check_surroundings(self) -> None:
        check_surroundings(self._all_modules[1:], [d.torch_device.type for d in self.devices])
        for children, placed in self._children:
            if tuple(children.values()) != placed:
                raise NotExportedError("a module inside it was replaced after it was placed")
        if any(self._childless):
            raise NotExportedError("a module inside it got others inside after it was placed")
        if list(map(len, self._weights)) != self._weight_counts:
            raise NotExportedError("it has other parameters than when it was placed")

    def _added(self, key: Any, call: Call, tensors: list[torch.Tensor]) -> _Program:
        gain = self.tier2.gain
        if gain is not None and not (gain.is_quick or self.tier2.asked):
            raise NotExportedError(str(gain))
        self.announce_tracing("is called in a way that it has no graph for")
        known = self._programs.get(key, [])
        earlier = known[-1].exported.example if known else None
        with self.set_aside(self.running):
            exported = export(self.model, call, units=self.tier2.units, earlier=earlier)
        if not exported.accepts(tensors):
            raise NotExportedError("its graph does not take the arguments it was made for")
        exported.variant = key[-1]
        program = self._program(exported)
        self._programs.setdefault(key, []).append(program)
        self.tier2.exported.append(exported)  # for the time after restore()
        return program

    def announce_tracing(self, why: str) -> None:
        """Warn where a trace takes long; `why` goes on from the model's name."""
        number = len(self.tier2.exported) + 1
        gain = self.tier2.gain
        if gain is not None and not gain.is_quick:
            warnings.warn(
                f"{type(self.model).__name__} {why}: tracing number {number} takes about "
                f"{gain.tracing:.0f} s of processor time",
                stacklevel=2,
            )

    # Programs

    def _program(self, exported: Exported) -> _Program:
        graph, tier2 = exported.graph, self.tier2
        index = {d.name: d.index for d in self.devices}
        where = {i: index[self.weight_devices[n]] for n, i in ids_by_name(self.model).items()}
        placement = GraphPlacement(
            self.placement,
            tier2.operators,
            push=self.mode == "streams",
            starts=tier2.starts if self.full_mode == ORDER else None,
            physical=[d.torch_device for d in self.devices],
        )
        schedule = placement.scheduled(graph, weights_in(self.model, graph, where))
        machine = Machine(self.model, self.devices, self.links, self._brought, self.watch)
        homes = [schedule.devices[o] for o in graph.outputs]
        return _Program(exported, compiled(graph, schedule, machine), homes)

    def _brought(self, tensor: torch.Tensor, target: LogicalDevice) -> torch.Tensor:
        """Return what came from outside; the program, which knows its readers, holds it."""
        copy = self.moved(tensor, target)
        self._copies.pop((id(tensor), target.index), None)
        return copy

    def _run(self, program: _Program, tensors: list[torch.Tensor]) -> Any:
        home = tensors[0].device if tensors else None
        if home is None and self._moved:
            home = self._moved[0][1]
        self._called()
        sent: list[torch.Tensor] = []
        try:
            outputs = program.run(tensors)
            self._join(from_caller=False)
            sent = self._outputs_sent_home(outputs, program.homes, home)
            del outputs  # what nobody has any more cannot be changed
            return program.exported.rebuild(sent)
        finally:
            self._join(from_caller=False)
            self._call_is_over(tensors, sent)

    def _outputs_sent_home(
        self, outputs: tuple[torch.Tensor, ...], homes: list[int | None], home: torch.device | None
    ) -> list[torch.Tensor]:
        sent = []
        for tensor, device in zip(outputs, homes, strict=True):
            if device is not None:
                self._mark(tensor, self.devices[device])
            sent.append(self._sent_home(tensor, home))
        return sent
