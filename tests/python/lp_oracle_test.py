# SPDX-License-Identifier: Apache-2.0
"""The favorite-child relaxation: our solvers against HiGHS.

HiGHS gets what made it most reliable: times scaled so that the optimum is about 1, only the group
rows that restrict something, the dual simplex method.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

highspy = pytest.importorskip("highspy", reason="needs highspy (pip install baechi[test])")

Edge = tuple[int, int, int]  # from, to, cost

REGIMES = ("sct", "uet", "mixed", "measured", "dominating")
FAMILIES = ("layered", "chain", "grid", "dense", "fork_join")
SEEDS = range(3)


@dataclass(frozen=True)
class Instance:
    """Times in nanoseconds; edges lead to higher nodes."""

    name: str
    lengths: list[int]
    edges: list[Edge]


def pairs_of(family: str, draw: random.Random) -> tuple[int, set[tuple[int, int]]]:
    """A graph of the family: its number of nodes, and its edges."""
    pairs: set[tuple[int, int]] = set()
    if family == "layered":
        width, layers = draw.randint(3, 12), draw.randint(4, 14)
        for node in range(width, width * layers):
            above = (node // width - 1) * width
            pairs |= {(above + draw.randrange(width), node) for _ in range(draw.randint(1, 3))}
        return width * layers, pairs
    if family == "chain":
        nodes = draw.randint(30, 150)
        for node in range(1, nodes):
            pairs |= {(node - 1, node), (max(0, node - draw.randint(1, 9)), node)}
        return nodes, pairs
    if family == "grid":  # an unrolled recurrent network
        rows, columns = draw.randint(3, 8), draw.randint(4, 16)
        for i in range(rows):
            for j in range(columns):
                if i > 0:
                    pairs.add(((i - 1) * columns + j, i * columns + j))
                if j > 0:
                    pairs.add((i * columns + j - 1, i * columns + j))
        return rows * columns, pairs
    if family == "dense":
        nodes = draw.randint(12, 40)
        density = draw.uniform(0.1, 0.5)
        for node in range(nodes):
            pairs |= {(parent, node) for parent in range(node) if draw.random() < density}
        return nodes, pairs
    nodes = 1
    for _ in range(draw.randint(2, 8)):  # fork_join
        branches = draw.randint(2, 8)
        pairs |= {(nodes - 1, nodes + b) for b in range(branches)}
        pairs |= {(nodes + b, nodes + branches) for b in range(branches)}
        nodes += branches + 1
    return nodes, pairs


def make_instance(family: str, regime: str, seed: int) -> Instance:
    draw = random.Random(f"{family} {regime} {seed}")
    nodes, pairs = pairs_of(family, draw)

    def log_uniform(low: float, high: float) -> float:
        return low * math.exp(draw.random() * math.log(high / low))

    lengths = [
        round(draw.uniform(10_000, 15_000) if regime == "uet" else log_uniform(3_000, 300_000))
        for _ in range(nodes)
    ]
    costs: dict[str, Callable[[int], float]] = {
        "sct": lambda _: draw.uniform(0, 3_000),
        "uet": lambda _: draw.uniform(5_000, 10_000),
        "mixed": lambda _: log_uniform(3_000, 300_000),
        "measured": lambda _: 30_000 + log_uniform(10, 1e6),
        "dominating": lambda parent: lengths[parent] * log_uniform(1, 100),
    }
    edges = [(i, j, round(costs[regime](i))) for i, j in sorted(pairs)]
    return Instance(f"{family}-{regime}-{seed}", lengths, edges)


INSTANCES = [
    make_instance(family, regime, seed)
    for family in FAMILIES
    for regime in REGIMES
    for seed in SEEDS
]


@pytest.fixture(scope="module")
def driver(root: Path) -> Path:
    """The program that runs our solvers; the C++ test build makes it."""
    given = os.environ.get("BAECHI_LP_ORACLE_DRIVER")
    found = [Path(given)] if given else sorted(root.glob("build/*/baechi_lp_oracle_driver"))
    if not found:
        pytest.skip("needs the C++ tests: cmake --preset release && cmake --build build/release")
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def answers(driver: Path) -> dict[str, Any]:
    """Our solvers' answers to all instances, by name."""
    lines = []
    for instance in INSTANCES:
        lines.append(f"{len(instance.lengths)} {len(instance.edges)}")
        lines.extend(map(str, instance.lengths))
        lines.extend(f"{i} {j} {cost}" for i, j, cost in instance.edges)
    done = subprocess.run(
        [driver], input="\n".join(lines), capture_output=True, text=True, timeout=300, check=True
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(INSTANCES)
    return {instance.name: result for instance, result in zip(INSTANCES, results, strict=True)}


def relaxation(instance: Instance) -> tuple[Any, float]:
    """The relaxation as HiGHS wants it, and the nanoseconds in its unit of time."""
    unit = float(max(1, sum(instance.lengths)))
    nodes, edges = len(instance.lengths), len(instance.edges)
    makespan = nodes + edges
    rows: list[tuple[float, dict[int, float]]] = []  # lower limit, entries by column
    for e, (i, j, cost) in enumerate(instance.edges):
        rows.append((instance.lengths[i] / unit, {j: 1, i: -1, nodes + e: -cost / unit}))
    for i, length in enumerate(instance.lengths):
        rows.append((length / unit, {makespan: 1, i: -1}))
    for end in (0, 1):
        for node in range(nodes):
            group = [nodes + e for e, edge in enumerate(instance.edges) if edge[end] == node]
            if len(group) > 1:
                rows.append((len(group) - 1, dict.fromkeys(group, 1.0)))

    lp = highspy.HighsLp()
    lp.num_col_ = makespan + 1
    lp.num_row_ = len(rows)
    lp.col_cost_ = [0.0] * makespan + [1.0]
    lp.col_lower_ = [0.0] * lp.num_col_
    lp.col_upper_ = [highspy.kHighsInf] * nodes + [1.0] * edges + [highspy.kHighsInf]
    lp.row_lower_ = [lower for lower, _ in rows]
    lp.row_upper_ = [highspy.kHighsInf] * len(rows)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts = [0]
    for _, entries in rows:
        starts.append(starts[-1] + len(entries))
    lp.a_matrix_.start_ = starts
    lp.a_matrix_.index_ = [column for _, entries in rows for column in entries]
    lp.a_matrix_.value_ = [value for _, entries in rows for value in entries.values()]
    return lp, unit


def highs_optimum(instance: Instance) -> float:
    lp, unit = relaxation(instance)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("solver", "simplex")
    highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
    highs.setOptionValue("dual_feasibility_tolerance", 1e-9)
    highs.passModel(lp)
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(highs.getInfo().objective_function_value) * unit


def longest_path(instance: Instance, x: list[float]) -> float:
    start = [0.0] * len(instance.lengths)
    for (i, j, cost), pays in zip(instance.edges, x, strict=True):
        start[j] = max(start[j], start[i] + instance.lengths[i] + cost * pays)
    return max(s + length for s, length in zip(start, instance.lengths, strict=True))


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_solvers_agree_with_highs(instance: Instance, answers: dict[str, Any]) -> None:
    optimum = highs_optimum(instance)
    answer = answers[instance.name]

    exact = answer["exact"]
    assert exact["converged"]
    assert exact["upper"] == pytest.approx(optimum, rel=1e-6)
    assert exact["lower"] == pytest.approx(optimum, rel=1e-6)

    approximate = answer["approximate"]
    assert approximate["converged"]
    assert approximate["lower"] <= optimum * (1 + 1e-8)
    assert approximate["upper"] >= optimum * (1 - 1e-8)
    assert approximate["upper"] <= approximate["lower"] * 1.005 * (1 + 1e-9)

    for solution in (exact, approximate):
        assert solution["upper"] == pytest.approx(longest_path(instance, solution["x"]), rel=1e-11)
        assert solution["rounded"] >= optimum * (1 - 1e-8)
        for end in (0, 1):
            used = [0.0] * len(instance.lengths)
            for edge, x in zip(instance.edges, solution["x"], strict=True):
                used[edge[end]] += 1 - x
            assert max(used) <= 1 + 1e-12
    assert answer["matching"] >= optimum * (1 - 1e-8)


def test_there_are_enough_instances_of_every_regime() -> None:
    assert len(INSTANCES) >= 60
    assert {instance.name.split("-")[1] for instance in INSTANCES} == set(REGIMES)
