# SPDX-License-Identifier: Apache-2.0
"""One call from a model and a cluster to a plan, or to a placed model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from baechi._core import InputError, Plan
from baechi.brief_errors import briefly
from baechi.progress import stage, told
from baechi.torch.asked import Request, check_how
from baechi.torch.base import _private_compile
from baechi.torch.base.devices import logical_devices
from baechi.torch.choosing_replicas import predicted_step, with_chosen_replicas
from baechi.torch.cost.profiler import Costs
from baechi.torch.memory.fit import first_runs, own_again
from baechi.torch.micro_batched import PlannedStep, StepRequest, check_no_targets, planned_step
from baechi.torch.over_ranks import PlacedOverRanks
from baechi.torch.placed import Placed
from baechi.torch.placing_over_ranks import (
    on_found_cluster,
    planned_over_ranks,
    processes_for,
    run_over_ranks,
)
from baechi.torch.planning import Planned
from baechi.torch.ranks.averaging import Ring
from baechi.torch.ranks.caller import OUTPUTS
from baechi.torch.record.recorded_step import Capture
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.graph_gain import gain_of
from baechi.torch.run.graphs import Tier2
from baechi.torch.run.ways import AUTO
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.placement import operators_of
from baechi.torch.trace.schedule import ORDER
from baechi.torch.trace.surroundings import ExampleGraph
from baechi.torch.weights.making import making_of

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


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
    unasked: bool = False,
    here: str | None = None,
    kind: type[Placed] = Placed,
    again: Collection[str] = (),
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
        unasked: The mode was chosen for the user: later graphs must not take long to trace.
        here: The only device that this process has; None: it has all.
        kind: What is returned.
        again: The operators that run again in the backward, by key.

    """
    model = _private_compile.uncompiled(model)
    check_how(mode, tier)
    names = list(devices)
    index = {name: i for i, name in enumerate(names)}
    operators, device_of = operators_of(captured, device_of, exported, index)
    keys = {op.key for op in captured.ops}
    for name, device in device_of.items():
        if device not in index:
            raise InputError(f"operator {name!r} is on an unknown device {device!r}")
    chosen = {key: index[device] for key, device in device_of.items() if key in keys}
    logical = logical_devices(names, list(devices.values()), here)
    if tier == 1:
        return Placed(model, Assigner(model, captured, chosen, logical, mode, again=again), plan)
    gain = gain_of(captured, device_of, plan)
    asked = tier == 2 or (mode == ORDER and not unasked) or operators is not None
    if not (asked or exported or early is not None or gain.is_worth_it):
        alone = Assigner(model, captured, chosen, logical, mode, again=again)
        return Placed(model, alone, plan, str(gain))
    starts = {} if plan is None else dict(zip(plan.graph.names, plan.starts, strict=True))
    wanted = Tier2(tier == 2, gain, asked, list(exported), starts, operators, units, early, again)
    own = own_again(captured, operators, again)
    return kind(model, Assigner(model, captured, chosen, logical, mode, wanted, again=own), plan)


@briefly
@told
def plan(
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
    mode: str = "auto",
    tier: str | int = "auto",
    level: str = "module",
    gradients: str = "auto",
    micro_batches: int | str | None = None,
    targets: Any = None,
    recompute: str = "auto",
    verbose: bool | None = None,  # noqa: ARG001 what `told` reads
    **options: Any,
) -> Plan:
    """Plan where each operator of a model would run; arguments are those of `place`.

    The model stays as it is. It may be on the meta device, and the devices need not be there: a
    step is then recorded on the CPU, whose kernels may need other memory, or where `devices` says.
    """
    asked = Request(
        model,
        example_inputs,
        cluster,
        loss=loss if targets is None else None,
        devices=devices,
        costs=costs,
        optimizer=optimizer,
        units=units,
        mode=mode,
        tier=tier,
        level=level,
        gradients=gradients,
        recompute=recompute,
        search={"method": method, "budget": budget, **options},
        to_run=False,
        in_steps=micro_batches is not None,
    )
    if micro_batches is not None:
        return planned_step(StepRequest(asked, micro_batches, loss, targets)).plan
    check_no_targets(targets)
    return Planned(asked).plan


@briefly
@told
def place(
    model: nn.Module,
    example_inputs: Any,
    cluster: ClusterLike = "auto",
    *,
    plan: Plan | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    budget: str | float = "1s",
    method: str = "auto",
    devices: Sequence[str | torch.device] | None = None,
    costs: str | Costs = "estimate",
    optimizer: str | type | torch.optim.Optimizer | None = "adam",
    units: Any = "leaf",
    mode: str = "auto",
    tier: str | int = "auto",
    level: str = "module",
    gradients: str = "auto",
    micro_batches: int | str | None = None,
    targets: Any = None,
    ranks: bool | str = "auto",
    replicas: int | str = 1,
    outputs: str = "auto",
    weights: Any = None,
    recompute: str = "auto",
    verbose: bool | None = None,  # noqa: ARG001 what `told` reads
    **options: Any,
) -> Placed:
    """Plan where each operator of a model runs, and make the model run so.

    Args:
        model: Any module; it is changed in place and keeps its parameters' identity.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        cluster: "auto" for the accelerators of this machine, or what `baechi.place_graph` takes.
        plan: A plan of this step, made before: its cluster is taken and nothing is searched for.
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
            operators in the order of the plan, in tier 2. "auto" takes "streams+order" where its
            step is predicted to be clearly shorter than that of "streams" and worth the tracing of
            a graph, or where it is the order that `plan` was made for.
        tier: 2 runs the model as a graph by torch.export, 1 runs its own code; "auto" the graph
            where the mode or the level needs it, or it is worth its tracing.
        level: "module" plans module calls and the functions between them, "operator" the calls
            of the exported graph; where there is no such graph, modules.
        gradients: "held" leaves room for those of the step before while a forward runs, as where
            they are accumulated or `zero_grad()` comes behind the forward; "freed" has them gone
            by then. "auto" is "held" if any plan fits so, else "freed" with a warning.
        micro_batches: In how many parts `placed.step(batch)` runs a mini-batch such as the
            example inputs, or "auto". The plan is of such a step.
        targets: With micro_batches, what the loss is called with behind the output, for an example.
        ranks: Whether the model runs over the processes of torch.distributed, each with one of the
            cluster's devices. "auto" does so where there are several, as `torchrun` starts them.
        replicas: How many copies of the placement train together over ranks, each with a batch of
            its own: gradients are the mean of theirs. The cluster is that of one copy. "auto" takes
            the number whose step is predicted to be shortest: then the example is what all copies
            train on together, the cluster that of all, and `placed.share(batch)` a copy's part.
        outputs: What of a call's outputs goes to every rank: "everywhere" all of them, "auto" only
            the loss where the model returns one as `output.loss`, else all.
        weights: Where the values come from of a model on the meta device: a state_dict, a
            safetensors file or folder, or a checkpoint's folder. By default those that it was
            built with inside `deferred_weights`.
        recompute: Whether operators may run again in the backward, so that what they make need not
            be held: "auto" where nothing fits without, "all" in whole regions, "none" never.
        verbose: Whether to say on stderr what takes over a second, and to print the result; None
            does so on a terminal.
        options: More for `baechi.place_graph`.

    Raises:
        DoesNotFit: No plan fits the cluster, or the one that was given does not.

    """
    if micro_batches is None and isinstance(plan, Plan) and plan.micro_batches > 1:
        micro_batches = plan.micro_batches
    asked = Request(
        model,
        example_inputs,
        cluster,
        plan,
        loss if targets is None else None,
        devices,
        costs,
        optimizer,
        units,
        mode,
        tier,
        level,
        gradients,
        weights,
        recompute,
        {"method": method, "budget": budget, **options},
        in_steps=micro_batches is not None,
    )
    placed = placed_over(asked, ranks, micro_batches, loss, targets, replicas, outputs)
    if placed is not None:
        return placed
    if micro_batches is not None:
        return placed_for_steps(StepRequest(asked, micro_batches, loss, targets))
    check_no_targets(targets)
    return placed_as(asked)


def placed_for_steps(asked: StepRequest) -> Placed:
    """Return a model placed for steps of micro-batches."""
    found = planned_step(asked)
    _make_weights(asked.asked)
    placed = assigned_step(asked, found)
    placed.take_steps(found.step_plan, asked.asked.example_inputs)
    return placed


def _make_weights(asked: Request) -> None:
    making = making_of(asked.model, asked.weights)
    if making is not None:
        making.make_all()


def assigned_step(
    asked: StepRequest, found: PlannedStep, here: str | None = None, kind: type[Placed] = Placed
) -> Placed:
    """Return a model on the devices of a planned step, or on the one that is here."""
    placed = assign(
        asked.asked.model,
        found.captured,
        found.step_plan.device_of,
        found.physical_of,
        mode="plain" if asked.asked.mode == "plain" else "streams",
        tier=2,
        exported=found.exported,
        units=asked.asked.units,
        early=found.early,
        here=here,
        kind=kind,
    )
    placed.plan, placed.tier_peaks, placed.gradients = found.plan, found.peaks, found.gradients
    return placed


def placed_over(
    asked: Request,
    ranks: Any,
    micro_batches: Any,
    loss: Any,
    targets: Any,
    replicas: int | str = 1,
    outputs: str = "auto",
) -> Placed | None:
    """Return a model placed over ranks; None where this process is to be alone."""
    if outputs not in OUTPUTS:
        raise InputError(f"outputs is one of {', '.join(OUTPUTS)}, not {outputs!r}")
    number: Any = replicas
    whole, why = None, ""
    if replicas == "auto":
        chosen = with_chosen_replicas(asked, ranks, micro_batches, loss, targets)
        number, asked, targets, whole, why = chosen
        micro_batches = "auto" if micro_batches is not None and whole else micro_batches
    processes = processes_for(asked, ranks, number)
    if processes is None:
        return None
    asked = on_found_cluster(asked, processes)
    step, found, making = planned_over_ranks(asked, micro_batches, loss, targets, processes)
    here = list(found.physical_of)[processes.rank]
    place = functools.partial(assigned_step, step, found, here, PlacedOverRanks)
    placed = run_over_ranks(place, step, found, making, processes, outputs)
    ring = Ring(whole or found.cluster, number, whole is not None) if number > 1 else None
    placed.predicted_step_ns, placed.why_replicas = predicted_step(found, ring), why
    return placed


def place_with(
    exported: Sequence[Exported], model: nn.Module, example_inputs: Any, **options: Any
) -> Placed:
    """Place a model of which there are graphs already, as tests and measurements have them."""
    named = {f.name for f in fields(Request)}
    own = {name: options.pop(name) for name in list(options) if name in named}
    search = {"method": "auto", "budget": "1s", **options}
    return placed_as(Request(model, example_inputs, search=search, exported=exported, **own))


def placed_as(asked: Request) -> Placed:
    """Return the model placed as asked for."""
    found = Planned(asked)
    _make_weights(asked)
    placed = assign(
        asked.model,
        found.captured,
        first_runs(found.plan),
        found.physical_of,
        mode=found.choice.mode,
        plan=found.plan,
        tier=1 if found.too_large else asked.tier,
        again=found.again,
        exported=found.exported,
        units=asked.units,
        early=found.early,
        unasked=asked.mode == AUTO and asked.plan is None,
    )
    placed.tier_peaks, placed.gradients = found.peaks, found.gradients
    placed.choice = found.choice
    placed.why_tier_1 = found.too_large or placed.why_tier_1
    return placed
