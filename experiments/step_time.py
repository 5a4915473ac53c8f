# SPDX-License-Identifier: Apache-2.0
"""Paper Table 4: step time when every device has memory enough."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from experiments.outcome import PAPER_METHODS, Outcome, planned, ratio, replayed
from experiments.page import Column, Page, Table, milliseconds, percent
from experiments.progress import each
from experiments.workloads import CURRENT, PAPER, Workload

METHODS = (*PAPER_METHODS, "auto")


def measure(workload: Workload) -> dict[str, Outcome]:
    """Place one workload in every way."""
    graph, cluster = workload.graph(), workload.devices()
    outcomes = {
        "single": planned(graph, cluster, "single"),
        "expert": replayed(
            "expert", graph, cluster, lambda: workload.expert_placement(graph, cluster)
        ),
    }
    return outcomes | {method: planned(graph, cluster, method) for method in METHODS}


def row(workload: Workload) -> dict[str, Any]:
    """Step times, speedups over single and expert, and the bound."""
    outcomes = measure(workload)
    best = outcomes["auto"]
    result: dict[str, Any] = {
        "workload": workload.name,
        "cluster": workload.cluster,
        "expert_is": workload.hand.expert_is,
        **{name: outcome.step_ns for name, outcome in outcomes.items()},
        "bound": best.bound_ns,
        "gap": best.gap,
        "fallbacks": {name: list(o.fallbacks) for name, o in outcomes.items() if o.fallbacks},
    }
    for method in METHODS:
        for base in ("single", "expert"):
            result[f"{method}/{base}"] = ratio(outcomes[base], outcomes[method])
    return result


def table(title: str, workloads: Sequence[Workload]) -> Table:
    """Place all workloads in every way; the table of what came out."""
    named = each(workloads, lambda workload: workload.name, of=title)
    return table_of(title, [row(workload) for workload in named])


def table_of(title: str, rows: list[dict[str, Any]]) -> Table:
    """Step times: one row per workload. How they compare is in its raw values."""
    experts = dict.fromkeys(f"{r['workload'].split(',')[0]}: {r['expert_is']}" for r in rows)
    names = {"single": "one device", "expert": "expert", **{m: m for m in METHODS}}
    return Table(
        title,
        [
            Column("workload", "workload"),
            *(Column(key, head, milliseconds, "OOM") for key, head in names.items()),
            Column("bound", "lower bound", milliseconds),
            Column("gap", "gap of auto", percent),
        ],
        rows,
        f"Milliseconds per step. Experts: {'; '.join(experts)}.",
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Say what the speedups say, method by method."""
    sentences = []
    for method in METHODS:
        means = {}
        for base in ("single", "expert"):
            found = [row[f"{method}/{base}"] for row in rows if row[f"{method}/{base}"]]
            means[base] = statistics.geometric_mean(found), min(found)
        single, expert = means["single"], means["expert"]
        sentences.append(
            f"- {method}: {single[0]:.2f}x as fast as one device (least {single[1]:.2f}x), "
            f"{expert[0]:.2f}x as fast as the expert (least {expert[1]:.2f}x)"
        )
    return "\n".join(["Geometric means on the paper's models:", "", *sentences])


def run() -> Page:
    """The page of Table 4."""
    paper = table("The paper's models, four devices of 8 GiB", PAPER)
    return Page(
        "step_time",
        "Step time with sufficient memory (paper Table 4)",
        "All step times are simulated, with one transfer at a time per device and every tensor "
        "counted in memory.",
        "a",
        [paper, table("Current models", CURRENT)],
        summary(paper.rows),
    )
