# SPDX-License-Identifier: Apache-2.0
"""How near second runs are to the best there are, on graphs small enough to know them."""

from __future__ import annotations

import random
import statistics
from typing import Any

import baechi
from experiments.insufficient_memory import need, with_capacity
from experiments.outcome import Outcome, planned
from experiments.page import Column, Table, count, percent
from experiments.progress import each
from experiments.second_runs import SecondRuns, repeatable

SHAPES = ("chains", "branches")
SMALL = range(1, 13)  # seeds of small graphs
SMALL_PARTS = (0.8, 0.65, 0.5)


def small_graph(seed: int, shape: str, layers: int = 8, grain: int = 1) -> baechi.Graph:
    """A training step of some operators behind an input, with drawn times and sizes.

    `shape`: chains, or branches, where an operator may also read an earlier one.
    """
    rng = random.Random(seed)
    builder = baechi.GraphBuilder(f"small {seed}")
    builder.add("x", {"gpu": 0}, outputs=[1_000])
    reads: dict[int, list[int]] = {}
    for i in range(1, layers + 1):
        reads[i] = [i - 1]
        if shape == "branches" and i > 1 and rng.random() < 0.5:
            reads[i].append(rng.randrange(i - 1))
        builder.add(
            f"f{i}",
            {"gpu": rng.randint(1_000 // grain, 20_000 // grain) * grain},
            outputs=[rng.randint(1_000, 30_000)],
            inputs=[(f"f{j}" if j else "x", 0) for j in reads[i]],
        )
    gradients: dict[int, list[tuple[str, int]]] = {i: [] for i in range(layers + 1)}
    for i in range(layers, 0, -1):
        wanted = [j for j in reads[i] if j > 0]
        inputs = [(f"f{j}" if j else "x", 0) for j in reads[i]] + gradients[i]
        builder.add(
            f"b{i}",
            {"gpu": rng.randint(1_000 // grain, 20_000 // grain) * grain},
            outputs=[rng.randint(100, 3_000) for _ in wanted],
            inputs=inputs + ([(f"f{i}", 0)] if i == layers else []),
            forward=f"f{i}",
        )
        for port, j in enumerate(wanted):
            gradients[j].append((f"b{i}", port))
    return builder.build()


def exhaustive(graph: baechi.Graph, cluster: baechi.Cluster) -> int | None:
    """Return the shortest step of all sets of second runs, in the order of the graph."""
    steps = []
    for choice in SecondRuns(graph).every_choice():
        plan = baechi.simulate(
            choice, cluster, dict.fromkeys(choice.names, "gpu:0"), order="program"
        )
        if plan.fits:
            steps.append(plan.makespan_ns)
    return min(steps, default=None)


def again(graph: baechi.Graph, cluster: baechi.Cluster, recompute: str = "auto") -> Outcome:
    """Plan with second runs, or without."""
    return planned(graph, cluster, "auto", recompute=recompute, bounds=recompute == "auto")


def of_every_choice() -> list[dict[str, Any]]:
    """Compare `auto` with every choice on small graphs."""
    rows = []
    cases = [(shape, seed) for shape in SHAPES for seed in SMALL]
    for shape, seed in each(cases, str, of="small graphs"):
        graph = small_graph(seed, shape)
        whole = need(graph, baechi.Cluster("1x1GiB"))
        for part in SMALL_PARTS:
            cluster = with_capacity(baechi.Cluster("1x1GiB"), int(part * whole))
            best, found = exhaustive(graph, cluster), again(graph, cluster).step_ns
            rows.append(
                {
                    "shape": shape,
                    "choices": 2 ** len(repeatable(graph)),
                    "part": part,
                    "best": best,
                    "auto": found,
                    "gap": found / best - 1 if best and found else None,
                    "missed": bool(best) and not found,
                }
            )
    return rows


def optima() -> list[dict[str, Any]]:
    """Compare `auto` with every choice on small graphs, by shape and memory."""
    rows = of_every_choice()
    found = []
    for shape in SHAPES:
        for part in SMALL_PARTS:
            some = [row for row in rows if row["shape"] == shape and row["part"] == part]
            gaps = [row["gap"] for row in some if row["gap"] is not None]
            found.append(
                {
                    "shape": shape,
                    "part": part,
                    "instances": len(some),
                    "fits": sum(row["best"] is not None for row in some),
                    "missed": sum(row["missed"] for row in some),
                    "mean": statistics.mean(gaps) if gaps else None,
                    "worst": max(gaps, default=None),
                }
            )
    return found


def optimality(rows: list[dict[str, Any]]) -> Table:
    """One row per shape and memory."""
    columns = [
        Column("shape", "graphs"),
        Column("part", "memory", percent),
        Column("instances", "instances", count),
        Column("fits", "some choice fits", count),
        Column("missed", "`auto` finds none", count),
        Column("mean", "mean gap", percent),
        Column("worst", "largest gap", percent),
    ]
    return Table(
        "Small graphs: every choice tried",
        columns,
        rows,
        "Eight operators of the forward pass on one device with a share of the memory that it "
        "needs. Each of at most 256 sets of second runs is replayed in the order of the file. "
        "Code apart from the planner's makes the graphs with second runs "
        "(`experiments/second_runs.py`).",
    )
