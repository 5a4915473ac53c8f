# SPDX-License-Identifier: Apache-2.0
"""Hold ``auto`` against the best of the paper's methods, and its bounds.

``./do experiments auto --graphs FOLDER`` writes docs/lab/results/auto.md. FOLDER holds graphs of
others: ``paper/NAME.json.gz`` (read by prototype_placements.py),
``pipedream/NAME.json`` and ``dnn-partitioning/{latency,throughput}/NAME.json``. The generated
models need no files.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import baechi
from experiments.page import Column, Page, Table, machine, percent
from experiments.prototype_placements import read_graph

PAPER = ("m-topo", "m-etf", "m-sct")
BUDGETS = (0.1, 1.0, 10.0, 60.0)
JOBS = 2  # processes; what they find does not depend on how many or how fast
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
# The model that the goals name, whole training steps, and a large graph.
FURTHER: list[tuple[str, dict[str, Any], str]] = [
    ("moe", {}, "4x32GiB"),
    ("moe", {"training": True}, "8x140GiB"),
    ("llama", {"training": True}, "4x80GiB"),
    ("layered", {"operators": 20_000, "seed": 7}, "4x8GiB"),
]
# What gets the longest budget, which takes a minute of a core each time.
LONG = {
    ("moe", "4x32GiB"),
    ("PipeDream nasnetamobile", "equal"),
    ("PipeDream inception_v3", "equal"),
    ("prototype inception_v3", "equal"),
}

SIMULATED = (
    "All steps are simulated. `auto` tries all methods and searches on from the best plan "
    "(docs/explanation/planner.md). The gap is to the plan's own lower bound. Clusters have four "
    "devices with ample memory, equal or two of them at half the speed, and transfer one tensor "
    f"at a time per device, {LINK}. Instances of the dnn-partitioning research keep their own "
    f"clusters, but costs and steps are our simulator's. {len(LONG)} instances also had 60 s."
)


@dataclass
class Row:
    """One graph on one cluster."""

    graph: str
    cluster: str
    paper: float | None  # milliseconds of the best of the three; None: none of them fits
    winner: str
    auto: dict[float, float] = field(default_factory=dict)  # by budget
    gaps: dict[float, float] = field(default_factory=dict)


def named(model: str, options: dict[str, Any]) -> str:
    """Return what the tables call a generated graph."""
    return " ".join([model, *(f"{key} {value}" for key, value in options.items())])


def instances(folder: Path) -> Iterator[tuple[str, baechi.Graph, str, baechi.Cluster]]:
    """Name, graph and cluster of the 47."""
    graphs = []
    for model, options in GENERATED:
        graphs.append((named(model, options), baechi.generate(model, **options)))
    graphs += [
        (f"prototype {path.name.removesuffix('.json.gz')}", read_graph(path))
        for path in sorted((folder / "paper").glob("*.json.gz"))
        if not path.name.startswith("prototype")
    ]
    graphs += [
        (f"PipeDream {path.stem}", baechi.Graph.load(path))
        for path in sorted((folder / "pipedream").glob("*.json"))
        if path.stem != "LICENSE"
    ]
    for name, graph in graphs:
        yield name, graph, "equal", EQUAL
        yield name, graph, "unequal", UNEQUAL
    for path in sorted((folder / "dnn-partitioning").glob("*/*.json")):
        name = f"{path.parent.name} {path.stem}"
        yield name, baechi.Graph.load(path), "its own", baechi.Cluster(str(path))


def further() -> Iterator[tuple[str, baechi.Graph, str, baechi.Cluster]]:
    """Name, graph and cluster of those beside the 47."""
    for model, options, devices in FURTHER:
        cluster = baechi.Cluster(devices, link=LINK, communication="sequential")
        yield named(model, options), baechi.generate(model, **options), devices, cluster


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
    for budget in BUDGETS if (name, where) in LONG else BUDGETS[:-1]:
        plan = baechi.place_graph(graph, cluster, "auto", budget=budget, suggest=False)
        row.auto[budget] = plan.makespan_ns / 1e6
        row.gaps[budget] = plan.gap or 0.0
        print(f"{name}, {where}: {budget:g} s {row.auto[budget]:.4g}", file=sys.stderr, flush=True)
    return row


def measure_numbered(folder: Path, number: int) -> Row:
    """Plan the instance of that number; graphs do not travel between processes."""
    every = [*instances(folder), *further()]
    return measure(*every[number])


def mean_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Geometric mean of the first over the second."""
    return math.exp(statistics.fmean(math.log(one / other) for one, other in pairs))


def summary(known: list[Row]) -> str:
    """Say what the tables say."""
    ratios = [row.auto[1.0] / row.paper for row in known if row.paper is not None]

    def gaps(average: Callable[[list[float]], float]) -> str:
        return ", ".join(
            f"{average([row.gaps[budget] for row in known]):.1%} with {budget:g} s"
            for budget in BUDGETS[:-1]
        )

    worse = sum(ratio > 1 for ratio in ratios)
    mean = mean_ratio((ratio, 1.0) for ratio in ratios)
    return (
        "With a budget of 1 s `auto` is worse than the best of the paper's three methods on "
        f"{worse} of {len(ratios)} instances; the geometric mean of its step time over theirs is "
        f"{mean:.3f}. Gap to the lower bound, median: {gaps(statistics.median)}; mean: "
        f"{gaps(statistics.fmean)}."
    )


def steps_table(rows: list[Row]) -> Table:
    """Return the steps in milliseconds, and the gaps."""
    columns = [Column("graph", "graph"), Column("cluster", "cluster")]
    columns += [Column("paper", "best of the three", "{:.4g}".format), Column("by", "by")]
    columns += [
        *(Column(f"{b:g} s", f"{b:g} s", "{:.4g}".format) for b in BUDGETS),
        *(Column(f"gap {b:g} s", f"gap, {b:g} s", percent) for b in BUDGETS),
    ]
    found = [
        {
            "graph": row.graph,
            "cluster": row.cluster,
            "paper": row.paper,
            "by": row.winner,
            **{f"{budget:g} s": step for budget, step in row.auto.items()},
            **{f"gap {budget:g} s": gap for budget, gap in row.gaps.items()},
        }
        for row in rows
    ]
    return Table("Steps and gaps", columns, found, "Milliseconds.")


def page_of(rows: list[Row], made: dict[str, str] | None = None) -> Page:
    """Return the page of these rows: the 47 come first."""
    known = rows[: len(rows) - len(FURTHER)]
    return Page(
        "auto",
        "`auto`: steps, gaps and budgets",
        SIMULATED,
        "a",
        [steps_table(rows)],
        summary(known),
        made=made or machine(),
    )


def page(folder: Path) -> Page:
    """Return the page."""
    count = sum(1 for _ in instances(folder)) + len(FURTHER)
    with ProcessPoolExecutor(JOBS) as pool:
        return page_of(list(pool.map(measure_numbered, [folder] * count, range(count))))
