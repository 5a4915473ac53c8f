# SPDX-License-Identifier: Apache-2.0
"""How placement time grows with operators and devices."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import baechi
from experiments.outcome import PAPER_METHODS, planned
from experiments.page import Column, Page, Table, count, cpu_time
from experiments.progress import each

OPERATORS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
DEVICES = (2, 4, 8, 16, 32, 64)
DEVICES_FIXED, OPERATORS_FIXED = 8, 100_000
PARTITION_LIMIT = 300_000  # operators, to end in minutes
REPEATS = 3
ONCE = 1.0  # seconds beyond which one run is enough


def cluster_of(devices: int) -> baechi.Cluster:
    """Equal devices, memory for everything, one transfer at a time per device."""
    return baechi.Cluster(
        f"{devices}x4TiB", link="134us,5.701254276GB/s", communication="sequential"
    )


def seconds_of(graph: baechi.Graph, cluster: baechi.Cluster, method: str, optimize: str) -> float:
    """The median CPU time from the graph to a verified plan."""
    found: list[float] = []
    while len(found) < REPEATS:
        outcome = planned(graph, cluster, method, optimize=optimize, bounds=False)
        if outcome.step_ns is None:
            raise RuntimeError(f"{method} finds no place for '{graph.name}'")
        found.append(outcome.seconds)
        if found[0] > ONCE:
            break
    return statistics.median(found)


def variants(operators: int, of: str) -> list[tuple[str, str, str]]:
    """Name, method and optimization of what is measured on a graph of that size."""
    found = [(method, method, "none") for method in (*PAPER_METHODS, "chain")]
    if of == "operators":
        if operators <= PARTITION_LIMIT:
            found.append(("partition", "partition", "none"))
        found += [(f"{method}, optimised", method, "all") for method in PAPER_METHODS]
    return found


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    """What is measured in some of the rows."""
    return list(
        dict.fromkeys(name for row in rows for name, _, _ in variants(row["operators"], row["of"]))
    )


def measure(points: Sequence[tuple[int, int]], of: str) -> list[dict[str, Any]]:
    """One row per (operators, devices)."""
    rows = []
    graphs: dict[int, baechi.Graph] = {}
    for operators, devices in each(
        points, lambda point: "{:,} operators, {} devices".format(*point)
    ):
        if operators not in graphs:
            graphs = {operators: baechi.generate("layered", operators=operators)}
        graph, cluster = graphs[operators], cluster_of(devices)
        row: dict[str, Any] = {
            "operators": operators,
            "edges": graph.num_edges,
            "devices": devices,
            "of": of,
        }
        for name, method, optimize in variants(operators, of):
            row[name] = seconds_of(graph, cluster, method, optimize)
        rows.append(row)
    return rows


def table(title: str, rows: list[dict[str, Any]], notes: str) -> Table:
    """Seconds by method."""
    varying = [
        Column(key, key, count)
        for key in ("operators", "edges", "devices")
        if len({row[key] for row in rows}) > 1
    ]
    columns = [*varying, *(Column(name, name, cpu_time) for name in names_of(rows))]
    return Table(title, columns, rows, notes)


def run() -> Page:
    """The page of scaling."""
    by_operators = measure([(n, DEVICES_FIXED) for n in OPERATORS], "operators")
    by_devices = measure([(OPERATORS_FIXED, n) for n in DEVICES], "devices")
    method = (
        f"CPU time of one thread, median of {REPEATS} (one run beyond {ONCE:g} s), from the graph "
        "in memory to a plan that is placed, simulated and verified. *Optimised*: through the "
        "Graph Optimizer, and compared with the graph as it is. -: not run, since it takes over a "
        "minute."
    )
    return Page(
        "scaling",
        "Placement time against operators and devices",
        "Placement times are measured on this machine's CPU. The graphs are random layers with "
        "three inputs per operator (`baechi generate layered`), the devices equal, with ample "
        "memory and one transfer at a time each.",
        "a",
        [
            table(f"Operators, on {DEVICES_FIXED} devices", by_operators, method),
            table(f"Devices, {OPERATORS_FIXED:,} operators", by_devices, "As above."),
        ],
    )
