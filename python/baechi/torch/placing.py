# SPDX-License-Identifier: Apache-2.0
"""One call from a model and a cluster to a placed model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import Cluster, Graph, InputError, Plan
from baechi.progress import stage, told, warn
from baechi.torch.base import _private
from baechi.torch.base.devices import default_devices, detected_cluster, logical_devices, usable
from baechi.torch.base.nested import tensors_in
from baechi.torch.base.request import (
    check_loss,
    check_model,
    check_search,
    check_values,
    devices_too_small,
)
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.optimizers import optimizer_name
from baechi.torch.cost.profiler import Costs, estimate, measure_on
from baechi.torch.memory.eager import StepContext, held_bytes
from baechi.torch.memory.fit import (
    GRADIENTS,
    GraphStep,
    Memory,
    peaks_by_tier,
    planned_for_gradients,
)
from baechi.torch.placed import Placed
from baechi.torch.record.capture import RecordingPlace, call_arguments
from baechi.torch.record.recorded_step import Capture
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.graph_gain import gain_of
from baechi.torch.run.graphs import MODES, TIERS, Tier2
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.operators import kept_together
from baechi.torch.trace.placement import operators_of
from baechi.torch.trace.schedule import ORDER
from baechi.torch.trace.surroundings import ExampleGraph, graph_of_example

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


LEVELS = ("module", "operator")


def _check_how(mode: str, tier: str | int) -> None:
    if tier not in TIERS:
        raise InputError(f"tier is one of {', '.join(map(str, TIERS))}, not {tier!r}")
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if tier == 1 and mode == ORDER:
        raise InputError("tier 1 runs operators in the order of the program: mode needs tier 2")


@stage("assigning")
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
    early: ExampleGraph | None = None,
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
            where it is given, the mode or the placement needs it, or it is worth its tracing.
        exported: Graphs of the model that are there already; others are made when wanted.
        units: As `captured` was made with.
        early: The one of `exported` that nobody gave, and what the model was like then.

    """
    model = _private.uncompiled(model)
    _check_how(mode, tier)
    names = list(devices)
    index = {name: i for i, name in enumerate(names)}
    operators, device_of = operators_of(captured, device_of, exported, index)
    keys = {op.key for op in captured.ops}
    for name, device in device_of.items():
        if device not in index:
            raise InputError(f"operator {name!r} is on an unknown device {device!r}")
    chosen = {key: index[device] for key, device in device_of.items() if key in keys}
    logical = logical_devices(names, list(devices.values()))
    if tier == 1:
        return Placed(model, Assigner(model, captured, chosen, logical, mode), plan)
    gain = gain_of(captured, device_of, plan)
    asked = tier == 2 or mode == ORDER or operators is not None
    if not (asked or exported or early is not None or gain.is_worth_it):
        return Placed(model, Assigner(model, captured, chosen, logical, mode), plan, str(gain))
    starts = {} if plan is None else dict(zip(plan.graph.names, plan.starts, strict=True))
    wanted = Tier2(tier == 2, gain, asked, list(exported), starts, operators, units, early)
    return Placed(model, Assigner(model, captured, chosen, logical, mode, wanted), plan)


def costs_of(
    model: nn.Module,
    example_inputs: Any,
    captured: Capture,
    cluster: Cluster,
    costs: Any,
    *,
    devices: Sequence[torch.device],
    loss: Callable[[Any], torch.Tensor] | None = None,
    units: Any = "leaf",
) -> Costs:
    """Return costs that were given, or find them as `costs` says: "estimate" or "measure"."""
    if isinstance(costs, Costs):
        return costs
    if costs == "estimate":
        return estimate(captured, cluster)
    if costs != "measure":
        raise InputError(f"costs is 'estimate', 'measure' or Costs, not {costs!r}")
    first: dict[str, torch.device] = {}
    for described, device in zip(cluster.devices, devices, strict=True):
        first.setdefault(described.kind, device)
    return measure_on(first, model, example_inputs, captured, loss=loss, units=units)


@told
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
    optimizer: str | type | torch.optim.Optimizer | None = "adam",
    units: Any = "leaf",
    mode: str = "streams",
    tier: str | int = "auto",
    level: str = "module",
    exported: Sequence[Exported] = (),
    gradients: str = "auto",
    verbose: bool | None = None,  # noqa: ARG001 what `told` reads
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
        devices: The physical device of each device of the cluster; several may be the same. By
            default the CPU for those of kind "cpu", and an accelerator for each other one.
        costs: "estimate" by a roofline, "measure" on a device of each kind, or costs loaded from a
            file.
        optimizer: Whose state needs room beside the weights: a name, a class or an instance.
        units: Modules that become one operator: "leaf", classes, names or a predicate.
        mode: "streams" overlaps transfers, "plain" copies at once, "streams+order" also runs
            operators in the order of the plan, in tier 2.
        tier: 2 runs the model as a graph by torch.export, 1 runs its own code; "auto" the graph
            where the mode or the level needs it, or it is worth its tracing.
        level: "module" plans module calls and the functions between them, "operator" the calls
            of the exported graph; where there is no such graph, modules.
        exported: Graphs of the model that are there already; others are made when wanted.
        gradients: "held" leaves room for those of the step before while a forward runs, as where
            they are accumulated or `zero_grad()` comes behind the forward; "freed" has them gone
            by then. "auto" is "held" if any plan fits so, else "freed" with a warning.
        verbose: Whether to say on stderr what takes over a second, and to print the result; None
            does so on a terminal.
        options: More for `baechi.place_graph`.

    Raises:
        DoesNotFit: No plan fits the cluster.

    """
    check_model(model)
    model = _private.uncompiled(model)
    check_values(model)
    how = {"method": method, "budget": budget, **options}
    check_search(how, inspect.signature(place).parameters, costs)
    check_loss(loss)
    optimizer = optimizer_name(optimizer)
    if gradients not in GRADIENTS:
        raise InputError(f"gradients is one of {', '.join(GRADIENTS)}, not {gradients!r}")
    if level not in LEVELS:
        raise InputError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    _check_how(mode, tier)
    found, physical_of = _cluster_on(model, cluster, devices, example_inputs)
    chosen = list(physical_of.values())
    record = functools.partial(RecordingPlace(chosen[0]).capture, model, example_inputs, loss=loss)
    captured = record(units=units)
    memory = Memory(
        model,
        captured,
        list(physical_of),
        tiers=(tier,) if isinstance(tier, int) else (1, 2),
        around=_around(example_inputs, physical_of, optimizer),
    )
    trace = functools.partial(
        graph_of_example,
        model,
        example_inputs,
        units,
        {device.type for device in chosen},
        exported,
        training=captured.training,
    )
    given = tier != 1 and bool(exported)
    early = trace() if tier == 2 or mode == ORDER or level == "operator" or given else None

    def run_by(graph: Exported) -> GraphStep:
        return GraphStep(graph, mode, chosen, lambda units: record(units=units))

    planned, together, what = captured, [], units
    if early is not None and early.exported is not None:
        exported = [early.exported, *(e for e in exported if e is not early.exported)]
        memory.graph = run_by(early.exported)
        if level == "operator":
            what = early.exported
            planned = memory.graph.captured = record(units=what)
            together = kept_together(what, planned)
    elif early is not None and level == "operator":
        name = type(model).__name__
        warn(f"{name} is planned by modules: {early.reason}")
    found_costs = costs_of(
        model, example_inputs, planned, found, costs, devices=chosen, loss=loss, units=what
    )

    def graph(held: bool) -> Graph:
        return graph_of(
            planned, found_costs, optimizer=optimizer, together=together, held_gradients=held
        ).graph

    plan, peaks, kept = planned_for_gradients(graph, found, memory, gradients, how)
    too_large = ""
    if early is None and tier != 1 and gain_of(captured, plan.device_of, plan).is_worth_it:
        early = trace()
        if early.exported is not None:
            memory.graph = GraphStep(
                early.exported, mode, chosen, lambda units: record(units=units)
            )
            both = peaks_by_tier(memory, plan)
            too_large = _too_large(both[2], found)
            exported, peaks = ([], peaks) if too_large else ([early.exported], both)
    most = {name: max(each[name] for each in peaks.values()) for name in physical_of}
    plan = plan.with_run_peaks(most)
    placed = assign(
        model,
        captured,
        plan.device_of,
        physical_of,
        mode=mode,
        plan=plan,
        tier=1 if too_large else tier,
        exported=exported,
        units=units,
        early=early,
    )
    placed.tier_peaks, placed.gradients = peaks, kept
    placed.why_tier_1 = too_large or placed.why_tier_1
    return placed


def _too_large(peaks: Mapping[str, int], cluster: Cluster) -> str:
    """Say where a graph has no room; empty where it has."""
    for device in cluster.devices:
        over = peaks[device.name] - device.capacity
        if over > 0:
            return f"its graph needs {over:,} bytes more than {device.name!r} has in this plan"
    return ""


def _cluster_on(
    model: nn.Module,
    cluster: ClusterLike,
    devices: Sequence[str | torch.device] | None,
    example_inputs: Any,
) -> tuple[Cluster, dict[str, torch.device]]:
    """Return a cluster and the physical device of each of its devices."""
    if cluster == "auto":
        found, physical = detected_cluster(model, tensors_in(call_arguments(example_inputs)))
        devices = devices or physical
    else:
        found = cluster if isinstance(cluster, Cluster) else Cluster(str(cluster))
    chosen = [usable(d) for d in devices or default_devices(found)]
    names = [device.name for device in found.devices]
    if len(chosen) != len(names):
        raise InputError(f"{len(chosen)} devices are given for a cluster of {len(names)}")
    physical_of = dict(zip(names, chosen, strict=True))
    capacities = {device.name: device.capacity for device in found.devices}
    small = {} if devices else devices_too_small(capacities, physical_of)
    for device, (planned, there) in list(small.items())[:1]:
        more = f" (and too much for {len(small) - 1} more)" if len(small) > 1 else ""
        warn(
            f"the cluster has {planned:,} bytes for {device}, which has {there:,}{more}: a plan "
            "may run out of memory; name what there is, or cluster='auto'"
        )
    return found, physical_of


def _around(
    example_inputs: Any, physical_of: Mapping[str, torch.device], optimizer: str
) -> StepContext:
    """Return what the caller holds; arguments on several devices count where the first one is."""
    given = list(tensors_in(call_arguments(example_inputs)))
    called = given[0].device if given else None
    home = next((name for name, device in physical_of.items() if device == called), None)
    host = tuple(n for n, d in physical_of.items() if d.type == "cpu")
    return StepContext(optimizer, home, held_bytes(given), host)
