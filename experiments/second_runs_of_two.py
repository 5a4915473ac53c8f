# SPDX-License-Identifier: Apache-2.0
"""The best choice of second runs, places and order on two equal devices, as CP-SAT finds it.

What second runs and transfers mean is as docs/explanation/recomputation.md and
docs/reference/semantics.md have it; nothing here is shared with the planner. A second run may start
whenever its inputs are there, and what a transfer takes is rounded down to the unit in which
operators are timed: so the optimum is no longer than any plan's. Needs OR-tools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.second_runs import AGAIN, repeatable
from experiments.second_runs_optimum import Optimum

if TYPE_CHECKING:
    from collections.abc import Callable

    import baechi

DEVICES = 2


@dataclass(frozen=True)
class OptimumOfTwo(Optimum):
    """Also when each run begins and ends, in nanoseconds, and on which device: 0 or 1."""

    runs: dict[str, tuple[int, int]] = field(default_factory=dict)
    device_of: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """Between the devices, both ways; transfers do not wait for each other."""

    latency: int  # ns
    bytes_per_ns: int

    def nanoseconds(self, size: int) -> int:
        """What a transfer takes."""
        return self.latency + -(-size // self.bytes_per_ns)


@dataclass(frozen=True)
class _Run:
    """A run of an operator; it is there if a variable is, or always (None)."""

    name: str
    there: Any
    start: Any
    end: Any


class _Model:
    """Runs as intervals on either device, what they make as demands on its memory."""

    def __init__(self, graph: baechi.Graph, capacity: int, link: Link, cp_model: Any) -> None:
        self.model = model = cp_model.CpModel()
        self.graph = graph
        self.link = link
        self.again = {name: model.new_bool_var(f"again {name}") for name in repeatable(graph)}
        nanoseconds = {name: max(graph[name].times.values()) for name in graph.names}
        self.unit = math.gcd(*nanoseconds.values())  # small numbers are searched faster
        self.time = {name: time // self.unit for name, time in nanoseconds.items()}
        self.horizon = 2 * sum(self.time.values()) + sum(
            2 * self._sending(size) for name in graph.names for size in graph[name].outputs
        )
        self.second_device = {name: model.new_bool_var(f"place {name}") for name in graph.names}
        self.runs: list[list[Any]] = [[] for _ in range(DEVICES)]
        self.held: list[list[Any]] = [[] for _ in range(DEVICES)]
        self.bytes: list[list[int]] = [[] for _ in range(DEVICES)]
        self.first = {name: self._run(name, None) for name in graph.names}
        self.second = {name: self._run(name, there) for name, there in self.again.items()}
        for run in self.second.values():
            self._if([run.there], run.start >= self.first[run.name].end)
        for name in graph.names:
            if graph[name].permanent or graph[name].temporary:
                raise ValueError(f"{name}: only outputs are counted here")
            self._made(name)
            for before in graph[name].after:
                model.add(self.first[name].start >= self.first[before].end)
        # Equal devices: which one begins says nothing.
        model.add(self.second_device[graph.names[0]] == 0)
        for device in range(DEVICES):
            model.add_no_overlap(self.runs[device])
            model.add_cumulative(self.held[device], self.bytes[device], capacity)
        self.step = model.new_int_var(0, self.horizon, "step")
        for run in (*self.first.values(), *self.second.values()):
            self._if([] if run.there is None else [run.there], self.step >= run.end)
        # What is known beforehand and follows from no single constraint: the work of both.
        more = sum(self.time[name] * there for name, there in self.again.items())
        model.add(DEVICES * self.step >= sum(self.time.values()) + more)
        model.minimize(self.step)

    def _sending(self, size: int) -> int:
        return self.link.nanoseconds(size) // self.unit

    def _if(self, holds: list[Any], constraint: Any) -> None:
        self.model.add(constraint).only_enforce_if(holds)

    def _both(self, *holds: Any) -> Any:
        """A variable that is true when all of these are."""
        both = self.model.new_bool_var("")
        self.model.add_bool_and(holds).only_enforce_if(both)
        self.model.add_bool_or([both, *(h.negated() for h in holds)])
        return both

    def _on(self, name: str, device: int) -> Any:
        place = self.second_device[name]
        return place if device else place.negated()

    def _run(self, name: str, there: Any) -> _Run:
        start = self.model.new_int_var(0, self.horizon, "")
        end = self.model.new_int_var(0, self.horizon, "")
        self.model.add(end == start + self.time[name])
        for device in range(DEVICES):
            on = self._on(name, device)
            here = on if there is None else self._both(there, on)
            self.runs[device].append(
                self.model.new_optional_interval_var(start, self.time[name], end, here, "")
            )
        return _Run(name, there, start, end)

    def _made(self, name: str) -> None:
        """Who reads the outputs of an operator, of which run, and how long these are held."""
        again = self.again.get(name)
        for port, size in enumerate(self.graph[name].outputs):
            of_first: list[tuple[_Run, list[Any]]] = []  # readers, and when they are
            of_second: list[tuple[_Run, list[Any]]] = []
            for reader in self.graph.names:
                if (name, port) not in self.graph[reader].inputs:
                    continue
                late = self.graph[reader].backward
                run = self.first[reader]
                if again is None or not late:
                    of_first.append((run, []))
                else:
                    of_first.append((run, [again.negated()]))
                    of_second.append((run, [again]))
                repeated = self.second.get(reader)
                if repeated is None:
                    continue
                if again is None:
                    of_first.append((repeated, [repeated.there]))
                else:
                    of_first.append((repeated, [repeated.there, again.negated()]))
                    of_second.append((repeated, [repeated.there, again]))
            if not of_first:
                raise ValueError(f"{name}: nobody reads output {port}, which then lives on")
            self._tensor(self.first[name], size, of_first)
            if again is not None:
                self._tensor(self.second[name], size, of_second)

    def _tensor(self, run: _Run, size: int, readers: list[tuple[_Run, list[Any]]]) -> None:
        """Hold an output where it is made and, if somebody reads it there, on the other device."""
        model, sending = self.model, self._sending(size)
        sent = model.new_bool_var("")
        own_end = model.new_int_var(0, self.horizon, "")
        copy_end = model.new_int_var(0, self.horizon, "")
        here = [] if run.there is None else [run.there]
        self._if(here, own_end >= run.end)
        self._if([*here, sent], own_end >= run.end + sending)
        self._if([*here, sent], copy_end >= run.end + sending)
        for reader, holds in readers:
            mine, theirs = self.second_device[run.name], self.second_device[reader.name]
            self._if(holds, reader.start >= run.end)
            for one, other in ((mine, theirs), (mine.negated(), theirs.negated())):
                self._if([*holds, one, other], own_end >= reader.end)
                elsewhere = [*holds, one, other.negated()]
                model.add_implication(self._both(*elsewhere), sent)
                self._if(elsewhere, reader.start >= run.end + sending)
                self._if(elsewhere, copy_end >= reader.end)
        for device in range(DEVICES):
            self._hold(device, size, [*here, self._on(run.name, device)], run.start, own_end)
            away = [*here, sent, self._on(run.name, 1 - device)]
            self._hold(device, size, away, run.end, copy_end)

    def _hold(self, device: int, size: int, there: list[Any], start: Any, end: Any) -> None:
        length = self.model.new_int_var(0, self.horizon, "")
        present = there[0] if len(there) == 1 else self._both(*there)
        self.held[device].append(
            self.model.new_optional_interval_var(start, length, end, present, "")
        )
        self.bytes[device].append(size)

    def found(self, value: Callable[[Any], int]) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the runs, and where each is."""
        there = dict(self.first)
        there |= {n + AGAIN: run for n, run in self.second.items() if value(run.there)}
        return (
            {n: (value(r.start) * self.unit, value(r.end) * self.unit) for n, r in there.items()},
            {n: value(self.second_device[r.name]) for n, r in there.items()},
        )


def optimum_of_two(graph: baechi.Graph, capacity: int, link: Link, seconds: float) -> OptimumOfTwo:
    """Return the shortest step on two devices of such a capacity each, and a bound of it.

    `seconds` are of CP-SAT's deterministic time, which a loaded machine does not change.
    """
    from ortools.sat.python import cp_model

    made = _Model(graph, capacity, link, cp_model)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(made.model)
    bound = 0 if status == cp_model.INFEASIBLE else round(solver.best_objective_bound) * made.unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return OptimumOfTwo(None, bound)
    return OptimumOfTwo(round(solver.objective_value) * made.unit, bound, *made.found(solver.value))
