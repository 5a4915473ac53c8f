# SPDX-License-Identifier: Apache-2.0
"""Hold ``auto`` against the best of the paper's three methods, and its gap against its budget.

``./do experiments auto --graphs FOLDER`` writes docs/lab/results/auto.md. FOLDER holds graphs of
others: ``paper/NAME.json.gz`` (read by prototype_placements.py),
``pipedream/NAME.txt`` and ``dnn-partitioning/{latency,throughput}/NAME.json``. The generated
models need no files.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import baechi
from experiments.page import in_words, machine
from experiments.prototype_placements import read_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAPER = ("m-topo", "m-etf", "m-sct")
BUDGETS = (0.1, 1.0, 4.0)
LINK = "134us,5.701254276GB/s"
EQUAL = baechi.Cluster("4x64GiB", link=LINK, communication="sequential")
UNEQUAL = baechi.Cluster("2x64GiB+2x64GiB@0.5", link=LINK, communication="sequential")
GENERATED: list[tuple[str, dict[str, Any]]] = [
    ("inception-v3", {"batch": 32}),
    ("gnmt", {"length": 40, "batch": 128}),
    ("gnmt", {"length": 50, "batch": 128}),
    ("transformer", {"batch": 64}),
    ("llama", {}),
    ("moe", {}),
    ("unet", {}),
    ("two-tower", {}),
]

HEAD = f"""# `auto` against the paper's methods

`auto` tries all methods and searches on from the best plan (docs/explanation/planner.md). Step
times in milliseconds; the gap is to the plan's own lower bound. Equal: four devices; unequal: two
of them at half the speed; both with ample memory, one transfer at a time per device, {LINK}.
Instances of the dnn-partitioning research are on their own clusters, with our simulator's step
time.

{in_words(machine())}; `./do experiments auto --graphs FOLDER`.
"""


@dataclass
class Row:
    """One graph on one cluster."""

    graph: str
    cluster: str
    paper: float | None  # milliseconds of the best of the three; None: none of them fits
    winner: str
    auto: dict[float, float] = field(default_factory=dict)  # by budget
    gaps: dict[float, float] = field(default_factory=dict)


def instances(folder: Path) -> Iterator[tuple[str, baechi.Graph, str, baechi.Cluster]]:
    """Name, graph and cluster of everything there is."""
    graphs = []
    for model, options in GENERATED:
        name = " ".join([model, *(f"{key} {value}" for key, value in options.items())])
        graphs.append((name, baechi.generate(model, **options)))
    graphs += [
        (f"prototype {path.name.removesuffix('.json.gz')}", read_graph(path))
        for path in sorted((folder / "paper").glob("*.json.gz"))
        if not path.name.startswith("prototype")
    ]
    graphs += [
        (f"PipeDream {path.stem}", baechi.Graph.load(path))
        for path in sorted((folder / "pipedream").glob("*.txt"))
        if path.stem != "LICENSE"
    ]
    for name, graph in graphs:
        yield name, graph, "equal", EQUAL
        yield name, graph, "unequal", UNEQUAL
    for path in sorted((folder / "dnn-partitioning").glob("*/*.json")):
        name = f"{path.parent.name} {path.stem}"
        yield name, baechi.Graph.load(path), "its own", baechi.Cluster(str(path))


def measure(name: str, graph: baechi.Graph, where: str, cluster: baechi.Cluster) -> Row:
    """Plan one instance in every way."""
    best: tuple[int, str] | None = None
    for method in PAPER:
        try:
            plan = baechi.place_graph(graph, cluster, method, bounds=False, suggest=False)
        except baechi.DoesNotFit:
            continue
        if best is None or plan.makespan_ns < best[0]:
            best = plan.makespan_ns, method
    row = Row(name, where, None if best is None else best[0] / 1e6, "" if best is None else best[1])
    for budget in BUDGETS:
        plan = baechi.place_graph(graph, cluster, "auto", budget=budget, suggest=False)
        row.auto[budget] = plan.makespan_ns / 1e6
        row.gaps[budget] = plan.gap or 0.0
    return row


def summary(rows: list[Row]) -> str:
    """Say what the table says."""
    ratios = [row.auto[1.0] / row.paper for row in rows if row.paper is not None]
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))

    def gaps(average: Callable[[list[float]], float]) -> str:
        return ", ".join(
            f"{average([row.gaps[budget] for row in rows]):.1%} with {budget:g} s"
            for budget in BUDGETS
        )

    worse = sum(ratio > 1 for ratio in ratios)
    return (
        f"With a budget of 1 s `auto` is worse than the best of the three on {worse} of "
        f"{len(ratios)} instances; the geometric mean of its step time over theirs is {mean:.3f}. "
        f"Gap to the lower bound, median: {gaps(statistics.median)}; mean: "
        f"{gaps(statistics.fmean)}.\n"
    )


def page(folder: Path) -> str:
    """Return the page's text."""
    rows = []
    for name, graph, where, cluster in instances(folder):
        rows.append(measure(name, graph, where, cluster))
        print(f"{name}, {where}: {rows[-1].auto}", file=sys.stderr)
    budgets = " | ".join(f"{budget:g} s" for budget in BUDGETS)
    gaps = " | ".join(f"gap, {budget:g} s" for budget in BUDGETS)
    lines = [
        HEAD,
        summary(rows),
        f"| graph | cluster | best of the three | by | {budgets} | 1 s / best | {gaps} |",
        "| --- | --- | ---: | --- |" + " ---: |" * (2 * len(BUDGETS) + 1),
    ]
    for row in rows:
        times = " | ".join(f"{row.auto[budget]:.4g}" for budget in BUDGETS)
        percent = " | ".join(f"{row.gaps[budget]:.1%}" for budget in BUDGETS)
        paper = "-" if row.paper is None else f"{row.paper:.4g}"
        ratio = "-" if row.paper is None else f"{row.auto[1.0] / row.paper:.3f}"
        cells = [row.graph, row.cluster, paper, row.winner, times, ratio, percent]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
