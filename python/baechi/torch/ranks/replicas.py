# SPDX-License-Identifier: Apache-2.0
"""Replicas: copies of a placement over ranks, each with its own weights and micro-batches.

All run the program of the first, so a rank runs the part of one of the first replica's ranks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from baechi._core import Plan
from baechi.torch.planned_step import PlannedStep, device_in

# By name: when a bucket's gradients are all there, and what makes each: a call's key, and the place
# in its results.
Buckets = Mapping[str, tuple[int, Collection[tuple[str, int]]]]


@dataclass(frozen=True)
class Replicas:
    """The replica of each rank, and whose part of the program it runs: a rank of the first."""

    number: list[int]
    part: list[int]

    @property
    def count(self) -> int:
        """How many there are."""
        return max(self.number) + 1

    def of_parts(self, number: int) -> dict[int, int]:
        """Return the rank of a replica that runs each part."""
        return {self.part[rank]: rank for rank, n in enumerate(self.number) if n == number}

    @staticmethod
    def of(plan: Plan) -> Replicas:
        """Return those of a plan; a device without operators is in the first."""
        index = {device.name: i for i, device in enumerate(plan.cluster.devices)}
        found = Replicas([0] * len(index), [*index.values()])
        if plan.replicas == 1:
            return found
        device_of, mark = plan.device_of, _mark(plan)
        for name in plan.micro_batch_graph.names:
            for number in range(1, plan.replicas):
                device = index[str(device_in(device_of, f"{name}{mark}{number}"))]
                found.number[device] = number
                found.part[device] = index[str(device_in(device_of, name))]
        return found


def _mark(plan: Plan) -> str:
    """Return what stands before the number of a replica in the names of operators."""
    name, device_of, mark = plan.micro_batch_graph.names[0], plan.device_of, "#"
    while device_in(device_of, f"{name}{mark}1") is None:
        mark += "#"
    return mark


def buckets_of(planned: PlannedStep) -> Buckets:
    """Return the buckets of a plan."""
    plan, found = planned.plan, {}
    if plan.replicas == 1:
        return {}
    starts, mark = dict(zip(plan.graph.names, plan.starts, strict=True)), _mark(plan)
    for i, tensors in enumerate(json.loads(plan.to_json())["replicas"]["buckets"]):
        ports = [(t, 0) if isinstance(t, str) else (t[0], t[1]) for t in tensors]
        made = {(op, planned.graph.place_of.get((op, port), port)) for op, port in ports}
        found[f"bucket{i}"] = starts[f"bucket{i}{mark}0.0"], made
    return found
