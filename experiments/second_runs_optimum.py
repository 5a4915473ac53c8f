# SPDX-License-Identifier: Apache-2.0
"""The best choice of second runs and order on one device, as CP-SAT finds it.

What second runs mean is as docs/explanation/recomputation.md has it; nothing here is shared with
the planner. A second run may start whenever its inputs are there, so the optimum is no longer than
any plan's. Needs OR-tools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.second_runs import repeatable

if TYPE_CHECKING:
    import baechi

SECONDS = 4.0  # of CP-SAT's deterministic time, which a loaded machine does not change


@dataclass(frozen=True)
class Optimum:
    """Nanoseconds; a step of None: none was found."""

    step: int | None
    bound: int


class _Model:
    """Runs of one device as intervals, what they make as demands on its memory."""

    def __init__(self, graph: baechi.Graph, capacity: int, cp_model: Any) -> None:
        self.model = cp_model.CpModel()
        self.graph = graph
        self.again = {name: self.model.new_bool_var(name) for name in repeatable(graph)}
        nanoseconds = {name: max(graph[name].times.values()) for name in graph.names}
        self.unit = math.gcd(*nanoseconds.values())  # small numbers are searched faster
        self.time = {name: time // self.unit for name, time in nanoseconds.items()}
        self.horizon = sum(self.time.values()) + sum(self.time[name] for name in self.again)
        self.runs: list[Any] = []
        self.held: list[Any] = []
        self.bytes: list[int] = []
        self.first = {name: self._run(self.time[name], None) for name in graph.names}
        self.second = {name: self._run(self.time[name], var) for name, var in self.again.items()}
        self._waits()
        for name in graph.names:
            for port, size in enumerate(graph[name].outputs):
                self._hold(name, port, size)
        self.model.add_no_overlap(self.runs)
        free = capacity - sum(graph[name].permanent for name in graph.names)
        self.model.add_cumulative(self.held, self.bytes, free)
        self.more = sum(self.time[name] * var for name, var in self.again.items())
        self.model.minimize(self.more)

    def _run(self, time: int, present: Any) -> tuple[Any, Any]:
        start = self.model.new_int_var(0, self.horizon, "")
        end = self.model.new_int_var(0, self.horizon, "")
        self.runs.append(
            self.model.new_interval_var(start, time, end, "")
            if present is None
            else self.model.new_optional_interval_var(start, time, end, present, "")
        )
        return start, end

    def _waits(self) -> None:
        for name in self.graph.names:
            op = self.graph[name]
            for before in {*(producer for producer, _ in op.inputs), *op.after}:
                self.model.add(self.first[name][0] >= self.first[before][1])
                if name in self.again:
                    self._if(self.again[name], self.second[name][0] >= self.first[before][1])
                late = before in self.again
                if late and op.backward:
                    self._if(self.again[before], self.first[name][0] >= self.second[before][1])
                if late and name in self.again:
                    both = [self.again[name], self.again[before]]
                    self._if(both, self.second[name][0] >= self.second[before][1])
            if name in self.again:
                self._if(self.again[name], self.second[name][0] >= self.first[name][1])

    def _if(self, holds: Any, constraint: Any) -> None:
        self.model.add(constraint).only_enforce_if(holds)

    def _hold(self, name: str, port: int, size: int) -> None:
        readers = [r for r in self.graph.names if (name, port) in self.graph[r].inputs]
        if not readers:
            raise ValueError(f"{name}: nobody reads output {port}, which then lives on")
        self._tensor(name, size, self.first[name], None)
        if name in self.again:
            self._tensor(name, size, self.second[name], self.again[name])
        repeated = self.again.get(name)
        for reader in readers:
            late = self.graph[reader].backward
            if repeated is None or not late:
                self.model.add(self.end >= self.first[reader][1])
            else:
                self._if(repeated.negated(), self.end >= self.first[reader][1])
                self._if(repeated, self.late_end >= self.first[reader][1])
            if reader in self.again:
                once = [self.again[reader], *([] if repeated is None else [repeated.negated()])]
                self._if(once, self.end >= self.second[reader][1])
                if repeated is not None:
                    both = [self.again[reader], repeated]
                    self._if(both, self.late_end >= self.second[reader][1])

    def _tensor(self, name: str, size: int, run: tuple[Any, Any], present: Any) -> None:
        end = self.model.new_int_var(0, self.horizon, f"end of {name}")
        length = self.model.new_int_var(0, self.horizon, "")
        if present is None:
            self.model.add(end >= run[1])
            self.held.append(self.model.new_interval_var(run[0], length, end, ""))
            self.end = end
        else:
            self._if(present, end >= run[1])
            self.held.append(self.model.new_optional_interval_var(run[0], length, end, present, ""))
            self.late_end = end
        self.bytes.append(size)


def optimum(graph: baechi.Graph, capacity: int, seconds: float = SECONDS) -> Optimum:
    """Return the shortest step on one device of such a capacity, and a bound of it."""
    from ortools.sat.python import cp_model

    made = _Model(graph, capacity, cp_model)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(made.model)
    work = sum(made.time.values()) * made.unit
    if status == cp_model.INFEASIBLE:
        return Optimum(None, work)
    bound = work + round(solver.best_objective_bound) * made.unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Optimum(None, bound)
    return Optimum(work + round(solver.objective_value) * made.unit, bound)
