# SPDX-License-Identifier: Apache-2.0
"""Update times: what an optimizer takes for a weight, on devices and on a host that may keep it.

Beyond the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from baechi._core import Cluster
from baechi.presets import STORE
from baechi.torch.costs.costs import Costs
from baechi.torch.costs.roofline import moving_of
from baechi.torch.graph.optimizers import Updates

_CPU = "cpu"  # the preset of a host that was not measured


def with_host(costs: Costs) -> Costs:
    """Return costs that know a host: as they were measured, else by the roofline of a CPU."""
    if costs.knows_moving(STORE):
        return costs
    found = Costs(costs.source)
    found.add(costs)
    found.set_moving(STORE, *moving_of(_CPU))
    return found


def update_times(
    costs: Costs, updates: Updates, weight: torch.Tensor, kinds: Iterable[str]
) -> dict[str, int]:
    """Return what the update of a weight takes on devices of some kinds, and on the host."""
    moved = updates.moved(weight)
    return {kind: costs.updating(updates.name, weight, moved, kind) for kind in (*kinds, STORE)}


def host_share(
    costs: Costs, updates: Updates, weights: Sequence[torch.Tensor], cluster: Cluster
) -> float:
    """Return the part of updates by pieces that lets host and link end together."""
    on_host = sum(update_times(costs, updates, weight, ())[STORE] for weight in weights)
    copying = sum(_copying_time(updates, weight, cluster) for weight in weights)
    return copying / max(on_host + copying, 1)


def _copying_time(updates: Updates, weight: torch.Tensor, cluster: Cluster) -> int:
    """Return what copies take of a weight that a host keeps and a device updates.

    They take the slowest link: weight, gradient and state come, and all but the gradient go.
    """
    own, kept = weight.nbytes, updates.kept(weight)
    (host,) = (device.name for device in cluster.devices if device.kind == STORE)
    longest = 0
    for name in (device.name for device in cluster.devices if device.kind != STORE):
        come = sum(cluster.transfer_time(size, host, name) for size in (own, own, *kept))
        go = sum(cluster.transfer_time(size, name, host) for size in (own, *kept))
        both = come + go if cluster.communication == "sequential" else max(come, go)
        longest = max(longest, both)
    return longest
