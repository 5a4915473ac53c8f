# SPDX-License-Identifier: Apache-2.0
"""How many copies of a placement train together, where that is to be found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from baechi._core import Cluster, Graph, InputError, Plan
from baechi.pipeline import DoesNotFit, cluster_of
from baechi.summary import in_time
from baechi.torch.asked import Request
from baechi.torch.base.mini_batch import check_no_values, cut, samples_in
from baechi.torch.micro_batched import PlannedStep, StepRequest, planned_step
from baechi.torch.placing_over_ranks import on_found_cluster, processes_for
from baechi.torch.ranks.averaging import Ring, averaged_by, filled
from baechi.torch.ranks.processes import Processes
from baechi.torch.record.recorded_step import planned_ops
from baechi.torch.run.step_order import Phase

_BEHIND = (Phase.BACKWARD, Phase.BY_WEIGHTS)


def predicted_step(planned: PlannedStep, ring: Ring | None) -> int | None:
    """Return what a step takes with the means of gradients, which set out during the backward.

    Args:
        planned: The step of one copy.
        ring: The copies; None: there is one.

    Returns:
        Nanoseconds; None where nothing tells what is between the copies.

    """
    latest: int = planned.plan.makespan_ns
    if ring is None:
        return latest
    for index, device in enumerate(planned.cluster.devices):
        ready, sizes = _gradients_on(planned, device.name)
        buckets = filled(sizes, ready)
        there = ((b.ready, sum(sizes[name][1] for name in b.names)) for b in buckets)
        last = averaged_by(ring, index, there)
        if last is None:
            return None
        latest = max(latest, last)
    return latest


def _gradients_on(
    planned: PlannedStep, device: str
) -> tuple[dict[str, int], dict[str, tuple[Any, int]]]:
    """Return when each gradient of a device is complete by the plan, and its bytes."""
    captured, step = planned.captured, planned.step_plan
    where, ready = step.device_of, dict[str, int]()
    for op in planned_ops(captured):
        if where.get(op.key) != device:
            continue
        ends = (step.end_of(p, op.key, m) for p in _BEHIND for m in range(step.micro_batches))
        latest = max(ends)
        for name in (captured.aliases.get(name, name) for name in op.weights):
            if captured.weights[name].trained:
                ready[name] = max(ready.get(name, 0), latest)
    return ready, {name: (captured.dtype, captured.weights[name].bytes) for name in ready}


class Chosen(NamedTuple):
    """How many copies there are, and what is asked for of one of them."""

    replicas: int
    asked: Request  # with the plan of a copy
    targets: Any
    whole: Cluster | None  # of all copies; None: this process is alone
    why: str


def with_chosen_replicas(
    asked: Request, ranks: Any, micro_batches: Any, loss: Any, targets: Any
) -> Chosen:
    """Return the number of copies whose step of the same samples is the shortest."""
    if asked.plan is not None:
        raise InputError("replicas='auto' looks for a plan: give the plan or replicas='auto'")
    processes = processes_for(asked, ranks)
    if processes is None:
        return Chosen(1, asked, targets, None, "")
    asked = on_found_cluster(asked, processes)
    whole = cluster_of(asked.cluster)
    best: tuple[int, str, str, str] | None = None
    with processes.agreeing("choose the number of replicas") as facts:
        parts = "batches of replicas"
        samples = samples_in(asked.example_inputs, "example_inputs", targets, parts=parts)
        for value, name in ((asked.example_inputs, "example_inputs"), (targets, "targets")):
            check_no_values(value, samples, name, parts="every replica")
        facts["samples of the example"] = str(samples)
        if processes.number == 0:
            best = _best(asked, whole, micro_batches, loss, targets, samples, processes)
    replicas, plan_text, graph_text, why = processes.from_first(best)
    count = len(whole) // replicas
    own = slice(processes.number // count * count, (processes.number // count + 1) * count)
    plan = Plan.from_json(plan_text, Graph.from_json(graph_text))
    asked = replace(
        asked,
        plan=plan,
        cluster=plan.cluster,
        devices=None if asked.devices is None else list(asked.devices)[own],
        example_inputs=cut(asked.example_inputs, replicas)[0],
    )
    return Chosen(replicas, asked, cut(targets, replicas)[0], whole, why)


def _best(
    asked: Request,
    whole: Cluster,
    micro_batches: Any,
    loss: Any,
    targets: Any,
    samples: int,
    processes: Processes,
) -> tuple[int, str, str, str]:
    """Return the number of copies, the plan of one as texts, and what others would take."""
    found: list[tuple[int, int, PlannedStep]] = []
    failed: Exception | None = None
    exported = list(asked.exported)
    for replicas in (n for n in range(1, len(whole) + 1) if len(whole) % n == 0):
        cluster = _of_one_copy(whole, replicas)
        if samples % replicas or cluster is None:
            continue
        mine = replace(
            asked,
            cluster=cluster,
            devices=[processes.device] * len(cluster),
            example_inputs=cut(asked.example_inputs, replicas)[0],
            exported=exported,
        )
        try:
            step = StepRequest(
                mine, micro_batches, loss, cut(targets, replicas)[0], over_ranks=True
            )
            planned = planned_step(step)
        except (DoesNotFit, InputError) as error:
            failed = failed or error
            continue
        exported = list(planned.exported)
        ring = Ring(whole, replicas, True) if replicas > 1 else None
        took = predicted_step(planned, ring)
        found.append((planned.plan.makespan_ns if took is None else took, replicas, planned))
    if not found:
        assert failed is not None  # one copy was tried
        raise failed
    took, replicas, planned = min(found, key=lambda each: each[:2])
    others = [f"{n}: {in_time(each)}" for each, n, _ in found if n != replicas]
    why = "; no other number can be"
    if others:
        why = f"; a step with other numbers: {', '.join(others)}"
    return replicas, planned.plan.to_json(), planned.plan.micro_batch_graph.to_json(), why


def _without_room(device: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in device.items() if k not in ("name", "capacity", "host")}


def _of_one_copy(whole: Cluster, replicas: int) -> Cluster | None:
    """Return what every copy has: the first one's devices; None where copies are not alike."""
    described: dict[str, Any] = json.loads(whole.to_json())
    count = len(whole) // replicas
    devices = whole.devices
    kept: list[Mapping[str, Any]] = []
    for index, device in enumerate(described["devices"][:count]):
        alike = devices[index::count]
        about = [_without_room(each) for each in described["devices"][index::count]]
        if any(each != about[0] for each in about):
            return None
        kept.append({**device, "capacity": f"{min(each.capacity for each in alike)}B"})
    names = {device["name"] for device in kept}
    rules = [
        rule
        for rule in described.get("links", ())
        if rule["scope"] != "pair" or {rule["from"], rule["to"]} <= names
    ]
    return Cluster.from_json(json.dumps({**described, "devices": kept, "links": rules}))
