# SPDX-License-Identifier: Apache-2.0
"""One call from a model and a cluster to a placed model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import Cluster, InputError, Plan
from baechi.torch import _private
from baechi.torch.assigner import Assigner
from baechi.torch.capture import call_arguments, capture_on
from baechi.torch.communication import logical_devices
from baechi.torch.devices import default_devices, detected_cluster, usable
from baechi.torch.exported import Exported, export
from baechi.torch.exported_graph import NotExportedError
from baechi.torch.graph_generator import graph_of
from baechi.torch.graph_placement import Operators
from baechi.torch.memory_plan import Memory, planned_within
from baechi.torch.nested import tensors_in
from baechi.torch.operators import kept_together, module_devices
from baechi.torch.placed import Placed
from baechi.torch.profiler import Costs, estimate, measure_on
from baechi.torch.recorded_step import Capture
from baechi.torch.tiers import MODES, ORDER, TIERS, Tier2, TieredAssigner

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


LEVELS = ("module", "operator")


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
    model = _private.uncompiled(model)
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
        devices: The physical device of each device of the cluster; several may be the same. By
            default the CPU for those of kind "cpu", and an accelerator for each other one.
        costs: "estimate" by a roofline, "measure" on a device of each kind, or costs loaded from a
            file.
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
    model = _private.uncompiled(model)
    if level not in LEVELS:
        raise InputError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    if cluster == "auto":
        found, physical = detected_cluster(model)
        devices = devices or physical
    else:
        found = cluster if isinstance(cluster, Cluster) else Cluster(str(cluster))
    chosen = [usable(d) for d in devices or default_devices(found)]
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
    found_costs = costs_of(
        model, example_inputs, planned, found, costs, devices=chosen, loss=loss, units=what
    )
    graph = graph_of(planned, found_costs, optimizer=optimizer, together=together)
    home = next((t.device for t in tensors_in(call_arguments(example_inputs))), None)
    plan, peaks = planned_within(
        graph.graph,
        planned,
        found,
        Memory(
            optimizer,
            next((n for n, d in physical_of.items() if d == home), None),
            (tier,) if isinstance(tier, int) else (1, 2),
            tuple(n for n, d in physical_of.items() if d.type == "cpu"),
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
