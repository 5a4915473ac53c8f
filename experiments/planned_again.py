# SPDX-License-Identifier: Apache-2.0
"""One plan, with second runs or without, and what making it took."""

from __future__ import annotations

import time
from typing import Any

import baechi


def placed(graph: baechi.Graph, cluster: baechi.Cluster, recompute: Any) -> dict[str, Any]:
    """One plan: its step, how many operators run again, the CPU time of planning."""
    start = time.process_time()
    try:
        plan = baechi.place_graph(
            graph, cluster, recompute=recompute, suggest=False, bounds=recompute == "auto"
        )
    except baechi.DoesNotFit as answer:
        return {"step": None, "seconds": time.process_time() - start, "proved": answer.proved}
    seconds = time.process_time() - start
    bound = max(plan.bounds.values()) if plan.bounds else None
    return {
        "step": plan.makespan_ns,
        "again": len(plan.recomputed),
        "seconds": seconds,
        "bound": bound,
        "right": not baechi.verify(plan),
        "proved": False,
    }
