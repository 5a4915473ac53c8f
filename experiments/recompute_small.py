# SPDX-License-Identifier: Apache-2.0
"""How near second runs are to the best there are, on graphs small enough to know them."""

from __future__ import annotations

import random
import statistics
from typing import Any

import baechi
from experiments.insufficient_memory import need, with_capacity
from experiments.page import Column, Table, count, percent
from experiments.planned_again import placed
from experiments.progress import each
from experiments.second_runs import SecondRuns, repeatable
from experiments.second_runs_of_two import Link, optimum_of_two
from experiments.second_runs_optimum import SECONDS, Optimum, optimum

SHAPES = ("chains", "branches")
SMALL = range(1, 13)  # seeds of small graphs
SMALL_PARTS = (0.8, 0.65, 0.5)
LARGER = ((12, 1), (12, 2), (16, 3), (19, 4))  # layers and seed: up to 39 operators
LARGER_PARTS = (0.7, 0.55)
LARGER_OF_TWO = ((6, 1), (9, 2), (13, 3), (19, 4))
LARGER_PARTS_OF_TWO = (0.5, 0.4)  # of what one device needs, for each of the two
LINK_OF_TWO = Link(latency=4_000, bytes_per_ns=100)
SECONDS_OF_TWO = 4.0


def small_graph(seed: int, shape: str, layers: int = 8, grain: int = 1) -> baechi.Graph:
    """A training step of some operators behind an input, with drawn times and sizes.

    `shape`: chains; branches, where an operator may also read an earlier one; or towers, which are
    two chains that the last operator joins.
    """
    rng = random.Random(seed)
    builder = baechi.GraphBuilder(f"small {seed}")
    builder.add("x", {"gpu": 0}, outputs=[1_000])
    reads: dict[int, list[int]] = {}
    for i in range(1, layers + 1):
        reads[i] = [i - 1]
        if shape == "branches" and i > 1 and rng.random() < 0.5:
            reads[i].append(rng.randrange(i - 1))
        if shape == "towers" and i > 1:
            reads[i] = [i - 1, i - 2] if i == layers else [i - 2]
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


def of_every_choice() -> list[dict[str, Any]]:
    """Compare `auto` with every choice on small graphs."""
    rows = []
    cases = [(shape, seed) for shape in SHAPES for seed in SMALL]
    for shape, seed in each(cases, str, of="small graphs"):
        graph = small_graph(seed, shape)
        whole = need(graph, baechi.Cluster("1x1GiB"))
        for part in SMALL_PARTS:
            cluster = with_capacity(baechi.Cluster("1x1GiB"), int(part * whole))
            best, found = exhaustive(graph, cluster), placed(graph, cluster, "auto")["step"]
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
        "Eight operators of the forward pass on one device with parts of what it needs, 256 sets "
        "of second runs at most, each replayed in the order of the file. The graphs with second "
        "runs are made by code of their own (`experiments/second_runs.py`).",
    )


def larger() -> list[dict[str, Any]]:
    """Compare `auto` with what CP-SAT finds, and proves, on graphs of up to 40 operators."""
    rows = []
    cases = [(shape, *case) for shape in SHAPES for case in LARGER]
    for shape, layers, seed in each(cases, str, of="CP-SAT"):
        graph = small_graph(seed, shape, layers, grain=1_000)
        whole = need(graph, baechi.Cluster("1x1GiB"))
        for part in LARGER_PARTS:
            capacity = int(part * whole)
            best = optimum(graph, capacity)
            cluster = with_capacity(baechi.Cluster("1x1GiB"), capacity)
            rows.append(compared(best, cluster, graph) | {"shape": shape, "part": part})
    return rows


def compared(best: Optimum, cluster: baechi.Cluster, graph: baechi.Graph) -> dict[str, Any]:
    """What `auto` finds there beside the solver's."""
    plan = placed(graph, cluster, "auto")
    found = plan["step"]
    return {
        "operators": len(graph.names),
        "best": best.step,
        "bound": best.bound,
        "auto": found,
        "again": plan.get("again"),
        "gap": found / best.bound - 1 if best.bound and found else None,
        "to_best": found / best.step - 1 if best.step and found else None,
        "missed": best.step is not None and not found,
    }


def larger_on_two() -> list[dict[str, Any]]:
    """Compare `auto` with CP-SAT where operators are also placed, on two devices."""
    rows = []
    cases = [(shape, *case) for shape in ("branches", "towers") for case in LARGER_OF_TWO]
    for shape, layers, seed in each(cases, str, of="CP-SAT on two devices"):
        graph = small_graph(seed, shape, layers, grain=1_000)
        whole = need(graph, baechi.Cluster("1x1GiB"))
        for part in LARGER_PARTS_OF_TWO:
            capacity = int(part * whole)
            best = optimum_of_two(graph, capacity, LINK_OF_TWO, SECONDS_OF_TWO)
            two = baechi.Cluster("2x1GiB", link="4us,100GB/s", communication="parallel")
            found = compared(best, with_capacity(two, capacity), graph)
            rows.append(found | {"shape": shape, "part": part})
    return rows


def against_solver(title: str, rows: list[dict[str, Any]], notes: str) -> Table:
    """One row per graph and memory."""
    columns = [
        Column("shape", "graph"),
        Column("operators", "operators", count),
        Column("part", "memory", percent),
        Column("best", "CP-SAT, us", in_microseconds, "finds none"),
        Column("bound", "its bound, us", in_microseconds),
        Column("auto", "auto, us", in_microseconds, "does not fit"),
        *([Column("again", "run again", count)] if any("again" in row for row in rows) else []),
        Column("to_best", "over CP-SAT's", percent),
        Column("gap", "over the bound", percent),
    ]
    return Table(title, columns, rows, notes)


def on_one(rows: list[dict[str, Any]]) -> Table:
    """The table of one device."""
    return against_solver(
        "Graphs of up to 40 operators: CP-SAT",
        rows,
        "One device with part of what it needs. CP-SAT chooses which operators run again and the "
        "order of everything, with a model of its own (`experiments/second_runs_optimum.py`), for "
        f"{SECONDS:g} s of its deterministic time on one core. Where its bound is its step, that "
        "is the optimum.",
    )


def on_two(rows: list[dict[str, Any]]) -> Table:
    """The table of two devices."""
    return against_solver(
        "Graphs of up to 40 operators on two devices: CP-SAT",
        rows,
        "Two devices, each with part of what one needs, over a link of 4 us and 100 GB/s whose "
        "transfers do not wait for each other. Towers are two chains that the last operator joins. "
        "CP-SAT also chooses where everything runs, with a model of its own "
        f"(`experiments/second_runs_of_two.py`), for {SECONDS_OF_TWO:g} s of its deterministic "
        "time on one core; transfers take whole microseconds in it, rounded down. Its runs may "
        "also wait longer than they must, which those of a plan do not. So part of a gap may be "
        "out of reach.",
    )


def in_microseconds(nanoseconds: float) -> str:
    """Write a time with one decimal."""
    return f"{nanoseconds / 1e3:.1f}"
