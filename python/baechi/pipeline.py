# SPDX-License-Identifier: Apache-2.0
"""From a graph and a cluster to a plan, in one call."""

from __future__ import annotations

import copyreg
import math
import os
from typing import TYPE_CHECKING, Any

from baechi import _core

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    # A cluster, one line such as "4x8GiB", a preset's name, or the path of a file.
    ClusterLike: TypeAlias = _core.Cluster | str | os.PathLike[str]


class DoesNotFit(Exception):
    """No plan fits the cluster; says which operator, how many bytes, and what would do."""

    def __init__(self, answer: _core.Unplaceable | Any) -> None:
        """Take over what the planner found."""
        super().__init__(str(answer))
        self.operator = answer.operator
        self.short_by = answer.short_by
        self.proved = answer.proved
        self.reason = answer.reason
        self.smallest_capacity = answer.smallest_capacity
        self.smallest_device_count = answer.smallest_device_count

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled as a call with its args, and these are words, not an answer.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def cluster_of(cluster: ClusterLike) -> _core.Cluster:
    """Make a cluster of what stands for one."""
    return cluster if isinstance(cluster, _core.Cluster) else _core.Cluster(os.fspath(cluster))


def budget_text(budget: str | float) -> str:
    """Write a budget as text, if it is seconds."""
    if isinstance(budget, str):
        return budget
    if not (math.isfinite(budget) and budget >= 0):
        raise _core.InputError(f"budget must be a finite number of seconds, not {budget}")
    return f"{budget:.9f}s"


def place_graph(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    optimize: str = "all",
    budget: str | float = "1s",
    threads: int = 1,
    lp: str = "matching",
    lp_threshold: float = 0.5,
    complete_matching: bool = True,
    seed: int = 1,
    robust: float | None = None,
    bounds: bool = True,
    suggest: bool = True,
    expert: Mapping[str, str] | None = None,
) -> _core.Plan:
    """Decide which operator runs where, so that a step is short and memory suffices.

    Args:
        graph: What to place.
        cluster: The devices: a Cluster, one line such as "2x24GiB+2x8GiB@0.6", or a file.
        method: One of ``methods()``.
        optimize: What the Graph Optimizer does first: "none", "colocate", "coplace", "fuse",
            "forward" or "all".
        budget: How long "auto" and "refine" may search: "500ms", or seconds. It sets an amount of
            work, so equal input gives an equal plan. More than 0, at most a million seconds.
        threads: Threads of the search, 1 to 1024; they change how long it takes, not the plan.
        lp: How m-sct finds favorite children: "matching", "approx" or "exact".
        lp_threshold: With an LP, a solution below it makes a favorite child; 0 to 0.5.
        complete_matching: With an LP, match what rounding left over.
        seed: For every random choice.
        robust: Choose, of the plans that the methods make, the one with the shortest worst step
            when costs are off by up to this part (0 to 1). A note in the plan says so.
        bounds: Also compute the lower bounds, and so the gap.
        suggest: When nothing fits, search for what would.
        expert: A placement to follow with method "expert": device by operator name.

    Raises:
        DoesNotFit: No plan was found, with the reason and what would fit.
        InputError: The request cannot be right.

    """
    answer = _core.place_graph(
        graph,
        cluster_of(cluster),
        method=method,
        optimize=optimize,
        budget=budget_text(budget),
        threads=threads,
        lp=lp,
        lp_threshold=lp_threshold,
        complete_matching=complete_matching,
        seed=seed,
        robust=robust,
        bounds=bounds,
        suggest=suggest,
        expert=None if expert is None else dict(expert),
    )
    if isinstance(answer, _core.Unplaceable):
        raise DoesNotFit(answer)
    return answer


def optimize_graph(
    graph: _core.Graph, cluster: ClusterLike, optimize: str = "all"
) -> _core.Optimized:
    """Run the Graph Optimizer alone, as ``place_graph`` does for the paper's methods."""
    return _core.optimize_graph(graph, cluster_of(cluster), optimize)


def simulate(graph: _core.Graph, cluster: ClusterLike, device_of: Mapping[str, str]) -> _core.Plan:
    """Replay a placement of yours: device by operator name. It may run over: see ``Plan.fits``."""
    return _core.simulate(graph, cluster_of(cluster), dict(device_of))


def lower_bounds(graph: _core.Graph, cluster: ClusterLike) -> dict[str, int]:
    """Nanoseconds that no placement's step time can be below, by the name of the bound."""
    return _core.lower_bounds(graph, cluster_of(cluster))


def score(
    graph: _core.Graph, cluster: ClusterLike, device_of: Mapping[str, str], objective: str
) -> _core.ObjectiveScore:
    """Say what a placement is worth under another objective than the step time.

    Args:
        graph: What is placed.
        cluster: The devices; those of kind "cpu" are the host, all others are accelerators.
        device_of: The device of every operator, by name.
        objective: One of ``objectives()``.

    """
    return _core.score(graph, cluster_of(cluster), dict(device_of), objective)


def place_for(
    graph: _core.Graph,
    cluster: ClusterLike,
    objective: str,
    *,
    budget: str | float = "1s",
    seed: int = 1,
) -> _core.ObjectivePlacement | None:
    """Place for another objective than the step time; None when no placement was found.

    Args:
        graph: What to place.
        cluster: The devices; those of kind "cpu" are the host, all others are accelerators.
        objective: One of ``objectives()``.
        budget: How long to search: "500ms", or seconds. It sets an amount of work, so equal input
            gives an equal placement.
        seed: For every random choice.

    """
    return _core.place_for(
        graph, cluster_of(cluster), objective, budget=budget_text(budget), seed=seed
    )
