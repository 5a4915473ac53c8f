# SPDX-License-Identifier: Apache-2.0
"""What one way to place reaches on one graph and cluster; not to fit is an answer, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import baechi

# Yardsticks get no help to fit; the paper's methods and auto get the planner's fall-backs.
PAPER_METHODS = ("m-topo", "m-etf", "m-sct")


@dataclass(frozen=True)
class Outcome:
    """A step time, or None where the placement runs out of memory."""

    method: str
    step_ns: int | None
    seconds: float  # CPU time of making the placement
    peaks: dict[str, int] = field(default_factory=dict)  # bytes by device, even if too many
    bound_ns: int | None = None  # no placement can be faster
    proved: bool = False  # nothing can fit
    fallbacks: tuple[str, ...] = ()
    plan: baechi.Plan | None = None

    @property
    def gap(self) -> float | None:
        """Step time over the lower bound, less one."""
        if self.step_ns is None or self.bound_ns is None:
            return None
        return self.step_ns / self.bound_ns - 1


def planned(graph: baechi.Graph, cluster: baechi.Cluster, method: str, **how: Any) -> Outcome:
    """Let baechi place."""
    how.setdefault("bounds", method == "auto")
    start = time.process_time()
    try:
        plan = baechi.place_graph(graph, cluster, method, suggest=False, **how)
    except baechi.DoesNotFit as answer:
        return Outcome(method, None, time.process_time() - start, proved=answer.proved)
    return Outcome(
        method,
        plan.makespan_ns,
        time.process_time() - start,
        plan.peaks,
        max(plan.bounds.values()) if plan.bounds else None,
        fallbacks=tuple(plan.fallbacks),
        plan=plan,
    )


def replayed(
    name: str,
    graph: baechi.Graph,
    cluster: baechi.Cluster,
    place: Callable[[], Mapping[str, str] | None],
) -> Outcome:
    """Let someone else place; simulate it. Each device runs what becomes ready first.

    Someone who finds no placement returns None.
    """
    start = time.process_time()
    device_of = place()
    seconds = time.process_time() - start
    if device_of is None:
        return Outcome(name, None, seconds)
    plan = baechi.simulate(graph, cluster, device_of)
    return Outcome(name, plan.makespan_ns if plan.fits else None, seconds, plan.peaks)


def ratio(of: Outcome, over: Outcome) -> float | None:
    """How many times as fast ``over`` is as ``of``; None where one of them does not fit."""
    if of.step_ns is None or over.step_ns is None:
        return None
    return of.step_ns / over.step_ns
