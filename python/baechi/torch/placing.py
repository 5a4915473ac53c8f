# SPDX-License-Identifier: Apache-2.0
"""One call from a model and a cluster to a placed model."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import Cluster, Graph, InputError, Plan
from baechi.pipeline import DoesNotFit, place_graph
from baechi.torch.assigner import Assigner, logical_devices
from baechi.torch.capture import call_arguments, capture_on, unchanged
from baechi.torch.exported import Exported, export
from baechi.torch.exported_graph import NotExportedError
from baechi.torch.graph_generator import graph_of
from baechi.torch.memory import Peak, peaks_of
from baechi.torch.nested import tensors_in
from baechi.torch.operators import OperatorWatcher, kept_together, module_devices
from baechi.torch.profiler import Costs, estimate, measure
from baechi.torch.recorded_step import Capture
from baechi.torch.tiers import MODES, NOT_RUN, ORDER, TIERS, Operators, Tier2, TieredAssigner
from baechi.torch.verification import (
    Trail,
    Verification,
    check_copies,
    compared,
    no_dropout,
    trail_of,
)

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


_ATTEMPTS = 8
LEVELS = ("module", "operator")


class Placed:
    """A model that runs over several devices, until `restore`."""

    def __init__(self, model: nn.Module, assigner: Assigner, plan: Plan | None) -> None:
        self.model = model
        self.plan = plan
        self.tier_peaks: dict[int, dict[str, int]] = {}  # predicted, by tier
        self._assigner = assigner
        assigner.install()
        self._active = True

    def restore(self) -> nn.Module:
        """Undo everything: the model runs, and its weights are, where they were before."""
        if self._active:
            self._assigner.remove()
            self._active = False
        return self.model

    def verify(
        self,
        inputs: Any,
        *,
        loss: Callable[[Any], torch.Tensor] | None = None,
        tolerance: float | None = None,
    ) -> Verification:
        """Run a step on one device and placed; name the first operator that differs.

        Args:
            inputs: As example inputs are given.
            loss: From the model's output to a scalar; by default as for `place`.
            tolerance: Largest difference allowed, as a share of the largest value of a tensor.

        """
        mine = self._assigner
        copies = check_copies(mine.devices, mine.mode)
        if not copies:
            return copies
        was_active = self._active
        self.restore()
        try:
            return self._verified(inputs, loss, tolerance)
        finally:
            if was_active:
                mine.install()
                self._active = True

    def _verified(self, inputs: Any, loss: Any, tolerance: float | None) -> Verification:
        mine = self._assigner
        units = mine.captured.units
        expected = trail_of(self.model, lambda path, _: path in units, inputs, loss)
        found = Trail()
        fine = Assigner(
            self.model, mine.captured, mine.placement, mine.devices, mine.mode, collapse=False
        )
        fine.watch = found.watch
        with unchanged(self.model), no_dropout(self.model):
            fine.install()
            try:
                found.run(self.model, inputs, loss)
            finally:
                fine.remove()
        result = compared(expected, found, tolerance)
        if result and isinstance(mine, TieredAssigner):
            graph = self._verified_graph(mine, inputs, loss, tolerance)
            result = result if graph is None else graph
        return result

    def _verified_graph(
        self, mine: TieredAssigner, inputs: Any, loss: Any, tolerance: float | None
    ) -> Verification | None:
        """Compare the exported graph on one device and placed; None where there is none."""
        with no_dropout(self.model):
            try:
                graph = export(self.model, inputs, units=mine.tier2.units)
            except NotExportedError:
                return None
            expected, found = Trail(), Trail()
            sides = (
                (OperatorWatcher(self.model, graph, expected.watch), expected),
                (mine.watched(graph, found.watch), found),
            )
            for runner, trail in sides:
                with unchanged(self.model):
                    runner.install()
                    try:
                        trail.run(self.model, inputs, loss)
                    finally:
                        runner.remove()
        return compared(expected, found, tolerance)

    @property
    def weight_devices(self) -> dict[str, str]:
        """The cluster's device of every parameter and buffer, by name."""
        return self._assigner.weight_devices

    @property
    def tier(self) -> int:
        """Which tier ran the last call: 2 the exported graph, 1 the model's own code."""
        return self._assigner.tier if isinstance(self._assigner, TieredAssigner) else 1

    @property
    def peaks(self) -> dict[str, int]:
        """The most bytes that each device is predicted to hold, in the order of the program.

        Of the tier that ran the last call; before the first call, of the tier that needs more.
        """
        if isinstance(self._assigner, TieredAssigner) and self._assigner.note == NOT_RUN:
            known = list(self.tier_peaks.values())
            return {d: max(peaks[d] for peaks in known) for peaks in known[:1] for d in peaks}
        return dict(self.tier_peaks.get(self.tier, {}))

    @property
    def tier_note(self) -> str:
        """Why the last call did not run in tier 2; empty when it did."""
        if isinstance(self._assigner, TieredAssigner):
            return self._assigner.note
        return "tier 1 was asked for"

    @property
    def graphs(self) -> int:
        """How many graphs of the model there are for tier 2: one per mode and kind of arguments."""
        return self._assigner.graphs if isinstance(self._assigner, TieredAssigner) else 0

    @property
    def unplanned(self) -> set[str]:
        """The modules and functions that ran but were not in the recorded step."""
        return set(self._assigner.unplanned)

    @property
    def transfers(self) -> int:
        """How many tensors were sent so far."""
        return self._assigner.links.transfers

    def __repr__(self) -> str:
        return f"<Placed {type(self.model).__name__} on {len(self._assigner.devices)} devices>"


def detected_cluster() -> tuple[Cluster, list[torch.device]]:
    """Return the accelerators of this machine as a cluster.

    Raises:
        InputError: There is none.

    """
    if not torch.accelerator.is_available():
        raise InputError("no accelerator is found; name the cluster, e.g. cluster='2x8GiB'")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None  # is_available said so
    devices = [torch.device(accelerator.type, i) for i in range(torch.accelerator.device_count())]
    line = "+".join(f"1x{_free_memory(device)}B" for device in devices)
    return Cluster(line), devices


def _free_memory(device: torch.device) -> int:
    module = getattr(torch, device.type)
    free, _ = module.mem_get_info(device)
    return int(free)


def _default_devices(cluster: Cluster) -> list[torch.device]:
    """Return one physical device per device of a cluster, or the CPU for all."""
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        count = torch.accelerator.device_count()
        if accelerator is not None and count >= len(cluster):
            return [torch.device(accelerator.type, i) for i in range(len(cluster))]
    return [torch.device("cpu")] * len(cluster)


def assign(
    model: nn.Module,
    captured: Capture,
    device_of: Mapping[str, str],
    devices: Mapping[str, str | torch.device],
    *,
    mode: str = "streams",
    plan: Plan | None = None,
    tier: str | int = "auto",
    exported: Sequence[Exported] = (),
    units: Any = "leaf",
) -> Placed:
    """Run a model as a placement says.

    Args:
        model: The model that was captured.
        captured: The recorded step.
        device_of: The device name of every operator; backward operators follow their forward ones.
        devices: The physical device of every device name.
        mode: "streams" overlaps transfers, "plain" copies at once, "streams+order" also runs
            operators in the order of the plan, in tier 2.
        plan: What the placement comes from.
        tier: 2 runs the model as a graph by torch.export, 1 runs its own code; "auto" the graph
            where there is one.
        exported: Graphs of the model that are there already; others are made when wanted.
        units: As `captured` was made with.

    """
    if tier not in TIERS:
        raise InputError(f"tier is one of {', '.join(map(str, TIERS))}, not {tier!r}")
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if tier == 1 and mode == ORDER:
        raise InputError("tier 1 runs operators in the order of the program: mode needs tier 2")
    names = list(devices)
    index = {name: i for i, name in enumerate(names)}
    operators, device_of = _operators_of(captured, device_of, exported, index)
    keys = {op.key for op in captured.ops}
    for name, device in device_of.items():
        if device not in index:
            raise InputError(f"operator {name!r} is on an unknown device {device!r}")
    chosen = {key: index[device] for key, device in device_of.items() if key in keys}
    logical = logical_devices(names, list(devices.values()))
    if tier == 1:
        return Placed(model, Assigner(model, captured, chosen, logical, mode), plan)
    starts = {} if plan is None else dict(zip(plan.graph.names, plan.starts, strict=True))
    wanted = Tier2(tier == 2, list(exported), starts, operators, units)
    return Placed(model, TieredAssigner(model, captured, chosen, logical, mode, wanted), plan)


def _operators_of(
    captured: Capture,
    device_of: Mapping[str, str],
    exported: Sequence[Exported],
    index: Mapping[str, int],
) -> tuple[Operators | None, Mapping[str, str]]:
    """Return the placement of a graph's own calls, if it is one, and what it means for modules."""
    for graph in exported:
        keys = {node.key for node in graph.graph.nodes}
        own = {key: device for key, device in device_of.items() if key in keys}
        if len(own) > sum(op.key in device_of for op in captured.ops):
            places = {key: index[device] for key, device in own.items() if device in index}
            return Operators(places, graph), module_devices(graph, captured, own)
    return None, device_of


def costs_of(
    model: nn.Module,
    example_inputs: Any,
    captured: Capture,
    cluster: Cluster,
    costs: Any,
    units: Any = "leaf",
) -> Costs:
    """Return costs that were given, or find them as `costs` says: "estimate" or "measure"."""
    if isinstance(costs, Costs):
        return costs
    if costs == "estimate":
        return estimate(captured, cluster)
    if costs == "measure":
        return measure(model, example_inputs, captured, units=units)
    raise InputError(f"costs is 'estimate', 'measure' or Costs, not {costs!r}")


def _exported(model: nn.Module, example_inputs: Any, units: Any) -> list[Exported]:
    """Return the graph of a model, if it can be had; says so if not."""
    try:
        return [export(model, example_inputs, units=units)]
    except NotExportedError as reason:
        name = type(model).__name__
        warnings.warn(f"{name} is planned by modules: {reason}", stacklevel=3)
        return []


def place(
    model: nn.Module,
    example_inputs: Any,
    cluster: ClusterLike = "auto",
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    budget: str | float = "1s",
    method: str = "auto",
    devices: Sequence[str | torch.device] | None = None,
    costs: str | Costs = "estimate",
    optimizer: str = "adam",
    units: Any = "leaf",
    mode: str = "streams",
    tier: str | int = "auto",
    level: str = "module",
    exported: Sequence[Exported] = (),
    **options: Any,
) -> Placed:
    """Plan where each operator of a model runs, and make the model run so.

    Args:
        model: Any module; it is changed in place and keeps its parameters' identity.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        cluster: "auto" for the accelerators of this machine, or what `baechi.place_graph` takes.
        loss: From the model's output to a scalar; by default the output's own `loss`, else a sum.
        budget: How long to search for the plan.
        method: One of `baechi.methods()`.
        devices: The physical device of each device of the cluster; several may be the same.
        costs: "estimate" by a roofline, "measure" where the model is, or costs loaded from a file.
        optimizer: Whose state needs room beside the weights.
        units: Modules that become one operator: "leaf", classes, names or a predicate.
        mode: "streams" overlaps transfers, "plain" copies at once, "streams+order" also runs
            operators in the order of the plan, in tier 2.
        tier: 2 runs the model as a graph by torch.export, 1 runs its own code; "auto" the graph
            where there is one.
        level: "module" plans module calls and the functions between them, "operator" the calls
            of the exported graph; where there is no such graph, modules.
        exported: Graphs of the model that are there already; others are made when wanted.
        options: More for `baechi.place_graph`.

    Raises:
        DoesNotFit: No plan fits the cluster.

    """
    if level not in LEVELS:
        raise InputError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    if cluster == "auto":
        found, physical = detected_cluster()
        devices = devices or physical
    else:
        found = cluster if isinstance(cluster, Cluster) else Cluster(str(cluster))
    chosen = [torch.device(d) for d in devices or _default_devices(found)]
    names = [device.name for device in found.devices]
    if len(chosen) != len(names):
        raise InputError(f"{len(chosen)} devices are given for a cluster of {len(names)}")
    physical_of = dict(zip(names, chosen, strict=True))
    captured = capture_on(chosen[0], model, example_inputs, loss=loss, units=units)
    planned, together, what = captured, [], units
    if level == "operator":
        exported = exported or _exported(model, example_inputs, units)
        if exported:
            what = exported[0]
            planned = capture_on(chosen[0], model, example_inputs, loss=loss, units=what)
            together = kept_together(what, planned)
    found_costs = costs_of(model, example_inputs, planned, found, costs, what)
    graph = graph_of(planned, found_costs, optimizer=optimizer, together=together)
    home = next((t.device for t in tensors_in(call_arguments(example_inputs))), None)
    plan, peaks = _planned(
        graph.graph,
        planned,
        found,
        _Memory(
            optimizer,
            next((n for n, d in physical_of.items() if d == home), None),
            (tier,) if isinstance(tier, int) else (1, 2),
        ),
        {"method": method, "budget": budget, **options},
    )
    placed = assign(
        model,
        captured,
        plan.device_of,
        physical_of,
        mode=mode,
        plan=plan,
        tier=tier,
        exported=exported,
        units=units,
    )
    if mode == ORDER:  # then what is live is also what the plan had in mind
        peaks = {
            t: {device: max(peak, plan.peaks[device]) for device, peak in each.items()}
            for t, each in peaks.items()
        }
    placed.tier_peaks = peaks
    return placed


@dataclass
class _Memory:
    """What decides the memory beside the placement."""

    optimizer: str
    home: str | None  # the device where the model is called, if it is one of the cluster
    tiers: tuple[int, ...]  # that may run it

    def peaks(self, captured: Capture, plan: Plan) -> dict[int, dict[str, Peak]]:
        """Return the peaks by tier."""
        find = functools.partial(
            peaks_of, captured, plan.device_of, optimizer=self.optimizer, home=self.home
        )
        return {tier: find(tier=tier) for tier in self.tiers}


def _planned(
    graph: Graph, captured: Capture, cluster: Cluster, memory: _Memory, options: Any
) -> tuple[Plan, dict[int, dict[str, int]]]:
    """Return a plan within memory also when operators run in the order of the program.

    The planner assumes that a device takes up what is ready first. Where the program's order needs
    more memory than a device has, the planner is asked again with less.
    """
    capacity = {device.name: device.capacity for device in cluster.devices}
    allowed = dict(capacity)
    nearest: _ProgramOrder | None = None
    for _ in range(_ATTEMPTS):
        try:
            plan = place_graph(graph, _with_capacities(cluster, allowed), **options)
        except DoesNotFit:
            if nearest is None:
                raise
            break
        by_tier = memory.peaks(captured, plan)
        peaks = {
            d: max((by_tier[t][d] for t in by_tier), key=_size) for d in by_tier[memory.tiers[0]]
        }
        over = {d: p.bytes - capacity[d] for d, p in peaks.items() if p.bytes > capacity[d]}
        if not over:
            return plan, {
                tier: {d: each[d].bytes if d in each else 0 for d in capacity}
                for tier, each in by_tier.items()
            }
        worst = max(over, key=lambda device: over[device])
        found = _ProgramOrder(
            worst, peaks[worst], over[worst], max(p.bytes for p in peaks.values())
        )
        if nearest is None or found.short_by < nearest.short_by:
            nearest = found
        for device, excess in over.items():
            allowed[device] = min(allowed[device], plan.peaks[device]) - excess
        if min(allowed.values()) <= 0:
            break
    assert nearest is not None  # the last plan was over
    raise DoesNotFit(nearest)


def _size(peak: Peak) -> int:
    return peak.bytes


@dataclass(frozen=True)
class _ProgramOrder:
    """The plan that came nearest to fitting in the order of the program."""

    device: str
    peak: Peak
    short_by: int
    smallest_capacity: int  # at which it would have fitted
    smallest_device_count: None = None
    proved: bool = False

    @property
    def operator(self) -> str:
        return self.peak.operator

    @property
    def reason(self) -> str:
        return (
            f"in the order of the program {self.device!r} holds {self.peak.bytes:,} bytes at "
            f"{self.operator!r}: {self.short_by:,} bytes short in the best plan found, which fits "
            f"when every device has {self.smallest_capacity:,} bytes"
        )

    def __str__(self) -> str:
        return self.reason


def _with_capacities(cluster: Cluster, capacity: Mapping[str, int]) -> Cluster:
    document = json.loads(cluster.to_json())
    for device in document["devices"]:
        device["capacity"] = f"{capacity[device['name']]}B"
    return Cluster.from_json(json.dumps(document))
