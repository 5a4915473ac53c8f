# SPDX-License-Identifier: Apache-2.0
"""PlannedStep: a step as a graph, the plan of it, and what the plan says of calls and weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster, InputError, Plan, share_text
from baechi.pipeline import DoesNotFit, cluster_of, place_graph
from baechi.presets import STORE
from baechi.progress import stage
from baechi.tables import in_time
from baechi.torch.capture.cache import captured as captured_or_found
from baechi.torch.capture.checkpoints import AGAIN
from baechi.torch.capture.keys import SUM, WRITE, is_backward
from baechi.torch.capture.loss import tensors_in
from baechi.torch.capture.step import Step
from baechi.torch.costs.costs import Costs
from baechi.torch.costs.measured import Clock, measure_updates, measured
from baechi.torch.costs.roofline import estimated
from baechi.torch.devices import (
    chosen_devices,
    store_of,
    warn_of_small,
    with_what_is_here,
)
from baechi.torch.graph.graph import BATCH, PIECE, UPDATE, StepGraph, graph_of
from baechi.torch.graph.modules import plan_of_modules
from baechi.torch.graph.optimizers import updates_of
from baechi.torch.request import Request
from baechi.torch.run.away import Away, away_in
from baechi.torch.run.host_time import with_host_time
from baechi.torch.run.mini_batch import (
    check_division,
    check_loss_is_of_parts,
    parts_of,
    samples_in,
)

_TRIED = (1, 2, 4, 8, 16, 32)  # micro-batches of "auto", as far as they divide the samples


@dataclass(frozen=True)
class PlannedStep:
    """A plan, and how its operators are the calls and weights of a model."""

    plan: Plan
    step: Step
    graph: StepGraph
    devices: tuple[torch.device, ...]  # where each of the cluster's devices is
    micro_batches: int = 1  # of all replicas
    held: bool = True  # there is room for the gradients of the step before

    @property
    def names(self) -> list[str]:
        """The cluster's devices."""
        return [device.name for device in self.plan.cluster.devices]

    @property
    def device_of_key(self) -> dict[str, str]:
        """The device of every call, by key."""
        device_of = self.plan.device_of
        found = {key: device_in(device_of, key) for key in self.graph.keys}
        return {key: device for key, device in found.items() if device is not None}

    @property
    def homes(self) -> dict[str, str]:
        """The device of every weight and buffer, by name."""
        return homes_of(self.plan, self.step)

    @property
    def batch(self) -> dict[str, str]:
        """The device of every tensor of the batch, by name."""
        names = [one.name for one in self.step.inputs if one.kind == "batch" and not one.part]
        found = {name: device_in(self.plan.device_of, BATCH + name) for name in names}
        return {name: device for name, device in found.items() if device is not None}

    @property
    def again(self) -> list[str]:
        """The calls that run again in the backward, by key."""
        twice = {operator for operator, _ in self.plan.recomputed}
        return [key for key in self.graph.keys if key in twice]

    @property
    def away(self) -> Away:
        """What is on the host while no device reads it."""
        store = store_of(self.plan.cluster)
        if store is None:
            return Away()
        back = {key for node, key in self.step.keys.items() if is_backward(node)}
        twins = {f"{key}@{AGAIN}": key for key in self.again}
        calls = {key: key for key in self.step.keys.values()} | twins
        return away_in(self.plan, store, calls, back | {*twins}, self.graph.place_of)

    @property
    def host_share(self) -> float:
        """The part of the updates by pieces that the host does: 0 where none were planned."""
        return self.graph.host_share if self._has_pieces else 0.0

    @property
    def _has_pieces(self) -> bool:
        return any(name.startswith(PIECE) for name in self.plan.graph.names)

    @property
    def host_updates(self) -> str:
        """What the updates take of weights that the host keeps; empty where there are none."""
        store = store_of(self.plan.cluster)
        if store is None:
            return ""
        plan, host = self.plan, self.names[store]
        rows = zip(plan.graph.names, plan.starts, plan.ends, strict=True)
        times = [
            end - start
            for name, start, end in rows
            if name.startswith(UPDATE) and plan.device_of[name] == host
        ]
        if not times:
            return ""
        how = "in pieces on devices and there" if self._has_pieces else "there"
        share = share_text(sum(times) / max(plan.makespan_ns, 1))
        taken = in_time(sum(times))
        return f"updates of {len(times)} weights of {host} {how} take {taken} ({share} of the step)"

    @property
    def starts(self) -> dict[str, list[int]]:
        """When each call starts, by key, in each micro-batch.

        `key@again` is its second run, `key:sum` what adds its last gradients to the others, and
        `key:write` what writes its buffers.
        """
        starts = dict(zip(self.plan.graph.names, self.plan.starts, strict=True))
        found = {}
        keys = self.graph.keys
        twice = [f"{key}@{AGAIN}" for key in self.again]
        once = [f"{key}:{end}" for key in keys for end in (SUM, WRITE)]
        for key in (*keys, *twice, *once):
            if key in starts:
                found[key] = [starts[key]]
            elif f"{key}@0" in starts:
                found[key] = [starts[f"{key}@{m}"] for m in range(self.plan.micro_batches)]
        return found


def device_in(device_of: Mapping[str, str], operator: str) -> str | None:
    """Return the device of an operator, which a plan may have once for each micro-batch."""
    return device_of.get(operator, device_of.get(f"{operator}@0"))


def homes_of(plan: Plan, step: Step) -> dict[str, str]:
    """Return the device of every weight and buffer that a step uses, by each of its names."""
    device_of, found = plan.device_of, {}
    for one in step.inputs:
        if one.kind in ("weight", "buffer"):
            found[one.name] = device_in(device_of, one.operator)
    for other, first in step.tied.items():
        if first in found:
            found[other] = found[first]
    return {name: device for name, device in found.items() if device is not None}


def planned(
    asked: Request, *, to_run: bool = True, here: torch.device | None = None
) -> PlannedStep:
    """Return the plan of a step: the one that was given, or the best that is found.

    Over ranks ``here`` is the device of this one, which stands for all.
    """
    cluster = cluster_for(asked)
    devices = tuple(chosen_devices(asked.devices, cluster)) if to_run and here is None else ()
    if here is not None:
        ends = (torch.device("cpu") if one.kind == STORE else here for one in cluster.devices)
        devices = tuple(ends)
    if to_run:
        names = [device.name for device in cluster.devices]
        warn_of_small(cluster, dict(zip(names, devices, strict=True)))
    if asked.costs == "measure" and asked.plan is None and here is None:
        pairs = zip(devices, cluster.devices, strict=True)
        cluster = with_host_time(cluster, [device for device, of in pairs if of.kind != STORE])
    best: PlannedStep | None = None
    refused: DoesNotFit | None = None
    for count in _counts(asked):
        step = captured(asked, count, devices)
        costs = costs_for(asked, step, cluster, devices)
        try:
            found = planned_in(asked, step, costs, cluster, devices, count)
        except DoesNotFit as error:
            refused = error
            continue
        if best is None or found.plan.makespan_ns < best.plan.makespan_ns:
            best = found
    if best is None:
        assert refused is not None
        raise refused
    return best


def planned_in(
    asked: Request,
    step: Step,
    costs: Costs,
    cluster: Cluster,
    devices: tuple[torch.device, ...],
    count: int,
) -> PlannedStep:
    """Return the plan for a number of micro-batches.

    It has room for the gradients of the step before, as they are where `zero_grad` comes behind the
    forward or gradients are accumulated, if such a plan exists that takes at most 1% longer.
    """

    def made(*, held: bool) -> PlannedStep:
        graph = graph_of(
            step,
            costs,
            cluster,
            asked.optimizer,
            asked.search.granularity,
            held=held,
            micro_batches=count,
            calls=asked.micro_batches is None,
            last_apart=_is_last_apart(asked),
            by_pieces=store_of(cluster) is not None and _are_by_pieces(asked),
        )
        if asked.plan is None:
            plan = search_for(asked, graph, cluster, count)
        else:
            plan = checked(asked.plan, graph)
        return PlannedStep(plan, step, graph, devices, count, held)

    freed = made(held=False)
    if asked.plan is not None or not step.is_training:
        return freed
    try:
        found = made(held=True)
    except DoesNotFit:
        return freed
    return freed if found.plan.makespan_ns > freed.plan.makespan_ns * 1.01 else found


def cluster_for(asked: Request) -> Cluster:
    """Return the cluster that is asked for, that of the plan, or what is here."""
    if asked.plan is not None:
        if asked.cluster != "auto" and not _is_of(asked.plan, cluster_of(asked.cluster)):
            raise InputError(
                "cluster: the plan was made for another one: leave cluster out, or plan anew"
            )
        return asked.plan.cluster
    line = asked.cluster
    if isinstance(line, str):
        line = with_what_is_here(line, asked.model, tensors_in(asked.example_inputs))
    cluster = cluster_of(line)
    store = store_of(cluster)
    if store is not None and store + 1 < len(cluster):
        raise InputError(f"cluster: name {cluster.devices[store].name} behind all other devices")
    return cluster


def _is_of(plan: Plan, cluster: Cluster) -> bool:
    """Tell whether a plan is for a cluster, whose host may have been measured for it."""
    theirs, given = (json.loads(one.to_json()) for one in (plan.cluster, cluster))
    for name in ("host_time", "sends"):  # of calls, and of messages
        if name not in given and isinstance(theirs.get(name), dict):
            del theirs[name]
    return bool(theirs == given)


def _counts(asked: Request) -> list[int]:
    """Return the numbers of micro-batches to plan for."""
    if asked.plan is not None:
        return [asked.plan.micro_batches * asked.plan.replicas]
    if asked.micro_batches is None:
        return [1]
    samples = samples_in(asked.example_inputs, "example_inputs", asked.targets)
    check_loss_is_of_parts(asked.loss, samples)
    if asked.micro_batches == "auto":
        return [count for count in _TRIED if samples % count == 0]
    check_division(samples, asked.micro_batches)
    return [int(asked.micro_batches)]


@stage("tracing the model")
def captured(asked: Request, micro_batches: int, devices: tuple[torch.device, ...]) -> Step:
    """Return the step of one micro-batch, of the calls that it makes where it will run."""
    example, targets = asked.example_inputs, asked.targets
    if micro_batches > 1:
        samples = samples_in(example, "example_inputs", targets)
        (example, targets), _ = parts_of((example, targets), samples, samples // micro_batches)[0]
    accelerator = next((device for device in devices if device.type != "cpu"), None)
    return captured_or_found(asked.model, example, asked.loss, targets, device=accelerator)


def steps_of(asked: Request, device: torch.device) -> list[Step]:
    """Return the step of each number of micro-batches, as if it ran on one device."""
    return [captured(asked, count, (device,)) for count in _counts(asked)]


@stage("costs")
def costs_for(
    asked: Request, step: Step, cluster: Cluster, devices: tuple[torch.device, ...]
) -> Costs:
    """Return what each call takes on each kind of device, and updates where there is a host."""
    if isinstance(asked.costs, Costs):
        return asked.costs
    if asked.costs == "estimate":
        return estimated(step.keys, cluster)
    if not devices:
        raise InputError("costs: to measure them, name where: devices=['cuda:0', ...]")
    real: dict[str, torch.device] = {}
    for device, where in zip(cluster.devices, devices, strict=True):
        real.setdefault(device.kind, where)
    return measured_costs(asked, [step], real)


def measured_costs(
    asked: Request, steps: Collection[Step], devices: Mapping[str, torch.device]
) -> Costs:
    """Return what the calls of steps take on devices by their kinds; beside a host updates, too."""
    real = {kind: device for kind, device in devices.items() if kind != STORE}
    costs = measured([call for step in steps for call in step.keys], real)
    updates = updates_of(asked.optimizer)
    if STORE in devices and updates.made is not None:
        pairs = (pair for s in steps for pair in zip(s.outputs, s.results(), strict=True))
        dtypes = {node.meta["val"].dtype for one, node in pairs if one.kind == "gradient"}
        clocks = {kind: Clock(device) for kind, device in devices.items()}
        measure_updates(costs, updates.name, updates.made, dtypes, clocks)
    return costs


def _is_last_apart(asked: Request) -> bool:
    """Return whether what ends a step has operators of its own; replicas do that where they are."""
    if asked.plan is None:
        return asked.replicas == "1"
    ends = f":{SUM}", f":{WRITE}"
    return any(name.endswith(ends) for name in asked.plan.device_of)


def _are_by_pieces(asked: Request) -> bool:
    if asked.plan is None:
        return asked.search.updates == "pieces"
    return any(name.startswith(PIECE) for name in asked.plan.device_of)


@stage("planning")
def search_for(asked: Request, graph: StepGraph, cluster: Cluster, micro_batches: int) -> Plan:
    """Return a plan; with second runs only beside a host, where none fits, and if asked for."""
    how = asked.search
    options: dict[str, Any] = {"method": how.method, "budget": how.budget, "seed": how.seed}
    options |= how.options
    if micro_batches > 1:
        options["micro_batches"] = micro_batches
    if how.paper:
        return plan_of_modules(graph, cluster, how.nodes, **options)
    if store_of(cluster) is not None:
        options.setdefault("residency", "auto")
    if how.recompute != "auto":
        return place_graph(graph.graph, cluster, recompute=how.recompute, **options)
    try:
        return place_graph(graph.graph, cluster, **options)
    except DoesNotFit as error:
        if error.step_with_recomputation_ns is None:
            raise
    return place_graph(graph.graph, cluster, recompute="auto", **options)


def checked(plan: Plan, graph: StepGraph) -> Plan:
    """Return a plan that was given if it is one of this step."""
    there = set(plan.device_of)
    wanted = set(graph.graph.names)
    bare = {name.rpartition("@")[0] or name for name in there} | there
    if missing := sorted(wanted - bare):
        raise InputError(
            f"plan: it is of another step: it has no {missing[0]!r} "
            f"({len(missing)} of {len(wanted)} operators are missing): plan this one"
        )
    return plan


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` was given, or the model itself."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model
