# SPDX-License-Identifier: Apache-2.0
"""Lower bounds and plans against optima that CP-SAT proves, on graphs too large to enumerate.

The machine is the part of our rules that CP-SAT can say in a few lines: parallel transfers of a
fixed latency, permanent memory only. Needs OR-tools; skipped without it.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run

cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="OR-tools is not installed")

INSTANCES = 24
SECONDS_PER_INSTANCE = 6.0


@dataclass
class Instance:
    """Operators in topological order on devices that differ in speed."""

    times: list[int]
    permanent: list[int]
    edges: list[tuple[int, int]]
    speeds: list[float]
    capacity: int
    latency: int
    groups: list[list[int]] = field(default_factory=list)

    def time_on(self, op: int, device: int) -> int:
        """What an operator takes on a device: its time over the speed, rounded up."""
        parts_per_million = round(self.speeds[device] * 1_000_000)
        return -(-self.times[op] * 1_000_000 // parts_per_million)

    def write(self, folder: Path) -> tuple[str, str]:
        """Write graph.json and cluster.json and return their paths."""
        operators: list[dict[str, Any]] = []
        for op, time in enumerate(self.times):
            operators.append(
                {
                    "name": f"op{op}",
                    "time": time,
                    "memory": {"permanent": self.permanent[op]},
                    "outputs": [0],
                    "inputs": [f"op{a}" for a, b in self.edges if b == op],
                    "colocate": [f"g{g}" for g, ops in enumerate(self.groups) if op in ops],
                }
            )
        graph = folder / "graph.json"
        graph.write_text(
            json.dumps({"format": "baechi-graph", "version": 1, "operators": operators})
        )
        devices = [
            {"name": f"d{i}", "kind": "gpu", "capacity": self.capacity, "speed": speed}
            for i, speed in enumerate(self.speeds)
        ]
        cluster = folder / "cluster.json"
        cluster.write_text(
            json.dumps(
                {
                    "format": "baechi-cluster",
                    "version": 1,
                    "communication": "parallel",
                    "devices": devices,
                    "links": [{"scope": "default", "latency": self.latency}],
                }
            )
        )
        return str(graph), str(cluster)


def draw(seed: int) -> Instance:
    """A random instance; every third one has communication far above computation."""
    rng = random.Random(seed)
    size = rng.randint(9, 16)
    times = [rng.randint(1, 50) for _ in range(size)]
    permanent = [rng.randint(0, 20) for _ in range(size)]
    edges = [(a, b) for b in range(size) for a in range(max(0, b - 6), b) if rng.random() < 0.3]
    count = rng.randint(2, 3)
    speeds = [1.0] * count if seed % 2 else [1.0, 0.5, 2.0][:count]
    capacity = max(max(permanent) + 1, round(sum(permanent) * rng.uniform(0.45, 1.1)))
    latency = [5, 40, 400][seed % 3]
    groups = [[0, size // 2]] if seed % 4 == 0 else []
    return Instance(times, permanent, edges, speeds, capacity, latency, groups)


def prove(instance: Instance) -> int | None:
    """The least makespan, None when there is no plan; skips what is not proved in time."""
    model = cp_model.CpModel()
    ops, devices = range(len(instance.times)), range(len(instance.speeds))
    horizon = sum(max(instance.time_on(op, d) for d in devices) for op in ops)
    horizon += instance.latency * len(instance.edges)
    start = [model.new_int_var(0, horizon, f"s{op}") for op in ops]
    end = [model.new_int_var(0, horizon, f"e{op}") for op in ops]
    on = [[model.new_bool_var(f"x{op},{d}") for d in devices] for op in ops]
    makespan = model.new_int_var(0, horizon, "makespan")
    for d in devices:
        intervals = []
        for op in ops:
            size = instance.time_on(op, d)
            intervals.append(
                model.new_optional_interval_var(start[op], size, end[op], on[op][d], "")
            )
        model.add_no_overlap(intervals)
        model.add(sum(instance.permanent[op] * on[op][d] for op in ops) <= instance.capacity)
    for op in ops:
        model.add_exactly_one(on[op])
        model.add(makespan >= end[op])
    for group in instance.groups:
        for d in devices:
            for op in group[1:]:
                model.add(on[group[0]][d] == on[op][d])
    for a, b in instance.edges:
        model.add(start[b] >= end[a])
        for d in devices:
            apart = [on[a][d], on[b][d].negated()]
            model.add(start[b] >= end[a] + instance.latency).only_enforce_if(apart)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = SECONDS_PER_INSTANCE
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None
    if status != cp_model.OPTIMAL:
        pytest.skip("CP-SAT did not prove the optimum in time")
    objective: float = solver.objective_value
    return round(objective)


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_bounds_and_plans_enclose_the_optimum(seed: int, run: Run, tmp_path: Path) -> None:
    instance = draw(seed)
    graph, cluster = instance.write(tmp_path)
    optimum = prove(instance)
    if optimum is None:
        assert run("place", graph, "--cluster", cluster, code=None).returncode != 0
        return
    result = run("bounds", graph, "--cluster", cluster, "--json")
    bounds = json.loads(result.stdout)["bounds"]
    assert bounds
    for bound in bounds:
        assert bound["nanoseconds"] <= optimum, (bound["name"], optimum)
    plan = run("place", graph, "--cluster", cluster, "--method", "m-sct", "--json", code=None)
    if plan.returncode == 0:
        assert json.loads(plan.stdout)["makespan"] >= optimum
