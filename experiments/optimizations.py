# SPDX-License-Identifier: Apache-2.0
"""Paper Table 6: what the Graph Optimizer brings."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import baechi
from experiments.outcome import PAPER_METHODS, planned
from experiments.page import Column, Page, Table, count, cpu_time, milliseconds, times
from experiments.progress import each
from experiments.workloads import PAPER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.workloads import Workload

REPEATS = 3
CHOSEN = (0, 2, 4, 6)  # of PAPER: its Table 6 has the first three
LEVELS = ("none", "colocate", "coplace", "fuse", "all")

# The paper's own figures: operators and placement seconds, unoptimised and optimised.
PUBLISHED = {
    "Inception-V3": (6_884, 68.0, 17, 0.9),
    "GNMT, length 40": (18_050, 275.0, 542, 1.2),
    "GNMT, length 50": (22_340, 406.0, 706, 2.4),
}


def method_row(workload: Workload, method: str) -> dict[str, Any]:
    """Placement and step time of one method, without and with the optimizer."""
    graph, cluster = workload.graph(), workload.devices()
    row: dict[str, Any] = {
        "workload": workload.name,
        "method": method,
        "operators": len(graph),
        "optimised operators": len(baechi.optimize_graph(graph, cluster).graph),
    }
    for level, prefix in (("none", ""), ("all", "optimised ")):
        runs = [
            planned(graph, cluster, method, optimize=level, bounds=False) for _ in range(REPEATS)
        ]
        row[f"{prefix}seconds"] = statistics.median(run.seconds for run in runs)
        row[f"{prefix}step"] = runs[0].step_ns
    steps = row["step"], row["optimised step"]
    row["speedup"] = steps[0] / steps[1] if None not in steps else None
    return row


def level_row(workload: Workload) -> dict[str, Any]:
    """Operators left, and m-ETF's step, after each level of optimization."""
    graph, cluster = workload.graph(), workload.devices()
    row: dict[str, Any] = {"workload": workload.name}
    for level in LEVELS:
        optimized = baechi.optimize_graph(graph, cluster, level)
        row[f"{level} operators"] = len(optimized.graph)
        row[f"{level} groups"] = optimized.graph.num_groups
        row[level] = planned(graph, cluster, "m-etf", optimize=level, bounds=False).step_ns
    return row


def methods_table(workloads: Sequence[Workload]) -> Table:
    """The paper's table."""
    rows = [
        method_row(workload, method)
        for workload in each(workloads, lambda workload: workload.name)
        for method in PAPER_METHODS
    ]
    return Table(
        "Without and with the Graph Optimizer",
        [
            Column("workload", "workload"),
            Column("method", "method"),
            Column("operators", "operators", count),
            Column("seconds", "placed in", cpu_time),
            Column("step", "step", milliseconds, "OOM"),
            Column("optimised operators", "operators, optimised", count),
            Column("optimised seconds", "placed in", cpu_time),
            Column("optimised step", "step", milliseconds, "OOM"),
            Column("speedup", "shorter step", times),
        ],
        rows,
        f"CPU time to a verified plan, median of {REPEATS}; simulated steps in milliseconds. "
        "With the optimizer a method runs on the optimised graph and on the graph as it is, and "
        "the better plan is kept, so placing takes longer, not shorter, than without.",
    )


def levels_table(workloads: Sequence[Workload]) -> Table:
    """What each level brings."""
    return Table(
        "Level by level",
        [
            Column("workload", "workload"),
            *(Column(level, f"{level}, step of m-etf", milliseconds) for level in LEVELS),
            *(Column(f"{level} operators", f"{level}, operators", count) for level in LEVELS),
        ],
        [level_row(workload) for workload in workloads],
        "Each level runs all passes before it. What single passes bring, without the graph as it "
        "is to fall back on: docs/lab/optimizer_results.md.",
    )


def published_table() -> Table:
    """The paper's figures."""
    quoted = [
        {"graph": name, "a": row[0], "b": row[1], "c": row[2], "d": row[3], "e": row[1] / row[3]}
        for name, row in PUBLISHED.items()
    ]
    return Table(
        "Published figures, quoted",
        [
            Column("graph", "graph"),
            Column("a", "operators", count),
            Column("b", "placed in", cpu_time),
            Column("c", "operators, optimised", count),
            Column("d", "placed in", cpu_time),
            Column("e", "faster", times),
        ],
        quoted,
        "From the paper's Table 6, on its machines and profiles; nothing here was measured by us.",
    )


def run() -> Page:
    """The page of Table 6."""
    chosen = [PAPER[k] for k in CHOSEN]
    return Page(
        "optimizations",
        "What the Graph Optimizer brings (paper Table 6)",
        "Placement times are measured on this machine's CPU; step times are simulated by the "
        "Execution Simulator on the paper's cluster. Nothing was run on accelerators.",
        "a",
        [methods_table(chosen), levels_table(chosen), published_table()],
    )
