# SPDX-License-Identifier: Apache-2.0
"""A plan whose peaks fit also in the order in which PyTorch allocates (beyond the paper)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from baechi._core import Cluster, Graph, Plan
from baechi.pipeline import DoesNotFit, place_graph
from baechi.torch.memory import Peak, peaks_of
from baechi.torch.recorded_step import Capture

_ATTEMPTS = 8


@dataclass
class Memory:
    """What decides the memory beside the placement."""

    optimizer: str
    home: str | None  # the device where the model is called, if it is one of the cluster
    tiers: tuple[int, ...]  # that may run it
    host: tuple[str, ...] = ()  # the devices of the cluster that are the CPU

    def peaks(self, captured: Capture, plan: Plan) -> dict[int, dict[str, Peak]]:
        """Return the peaks by tier."""
        find = functools.partial(
            peaks_of,
            captured,
            plan.device_of,
            optimizer=self.optimizer,
            home=self.home,
            host=self.host,
        )
        return {tier: find(tier=tier) for tier in self.tiers}


def planned_within(
    graph: Graph, captured: Capture, cluster: Cluster, memory: Memory, options: Any
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
