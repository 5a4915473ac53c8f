# SPDX-License-Identifier: Apache-2.0
"""What the host takes to ask for the parts of a planned step of micro-batches.

Where kernels are short, this is what a step takes. Both times are rough: they say which of two
plans the host is done with sooner, and whether it is what a step waits for.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import NamedTuple

from baechi.summary import in_time
from baechi.torch.record.recorded_step import BACKWARD, BY_WEIGHTS
from baechi.torch.run.stepping import Hosts, StepPlan

# Of the right size for a loaded two-core x86 machine; `python bench/torch_overhead.py steps` has
# the host's time of whole steps.
PER_OPERATOR = 30_000  # nanoseconds, of a pass of one
PER_PART = 100_000  # of what is asked for by itself
_LONGER = 1.1  # than its plan: such a step is worth a line


class _Run(NamedTuple):
    """A pass of an operator."""

    start: int
    place: int  # in the plan's graph, where several begin at once
    operator: str
    phase: str
    micro_batch: int


def _runs(step: StepPlan) -> dict[str, list[_Run]]:
    """Return the passes on every device, in the order of the plan."""
    found: dict[str, list[_Run]] = defaultdict(list)
    device_of = step.plan.device_of
    place = {name: number for number, name in enumerate(step.plan.graph.names)}
    for name in step.plan.micro_batch_graph.names:
        phase = next((p for p in (BY_WEIGHTS, BACKWARD) if name.endswith(p)), "")
        for m in range(step.micro_batches):
            copy = step.copy_of(name, m)
            if copy is not None:
                run = _Run(step.starts[copy], place[copy], name.removesuffix(phase), phase, m)
                found[device_of[copy]].append(run)
    for runs in found.values():
        runs.sort()
    return found


class HostTime(NamedTuple):
    """What the host takes for a step, in nanoseconds, and what the step takes with it."""

    operators: int
    parts: int
    step: int  # of the devices or of the host, whichever takes longer

    @property
    def total(self) -> int:
        """Both, one behind the other."""
        return self.operators + self.parts

    @property
    def has_many_parts(self) -> bool:
        """Whether fewer parts make much of a difference."""
        return 4 * self.parts > self.operators


def host_time(step: StepPlan) -> HostTime:
    """Return what the host takes for a step, about; where devices have their own, the busiest.

    What a device runs one behind the other in every pass of every micro-batch is asked for as one;
    the backward of an operator whose gradients of weights come later is asked for by itself. Where
    hosts are the devices, they ask and compute in turn.
    """
    each = [_asked_of(runs, step.micro_batches) for runs in _runs(step).values()] or [(0, 0)]
    if step.hosts is Hosts.ONE:
        operators, parts = map(sum, zip(*each, strict=True))
    else:
        operators, parts = max(each, key=sum)
    devices = step.plan.makespan_ns
    if step.hosts is Hosts.DEVICES:  # what is measured of an operator has its call in it
        return HostTime(operators, parts, devices + parts)
    return HostTime(operators, parts, max(devices, operators + parts))


def waits_for_host(step: StepPlan) -> str:
    """Say in a line that a step is longer than its plan, and the way out; empty where it is not."""
    host, devices = host_time(step), step.plan.makespan_ns
    if host.step <= _LONGER * devices:
        return ""
    if step.hosts is Hosts.DEVICES:
        longer = (
            f"a host takes about {in_time(host.parts)} to ask for parts, and computes for "
            f"{in_time(devices)}, so that a step takes about {in_time(host.step)}"
        )
    else:
        which = "the" if step.hosts is Hosts.ONE else "a"
        longer = (
            f"{which} host takes about {in_time(host.total)} to ask for what devices do in "
            f"{in_time(devices)}, so that a step is longer than predicted"
        )
    *others, last = _ways_out(step, host)
    return f"{longer}: take {', '.join(others)}{', or ' if others else ''}{last}"


def _ways_out(step: StepPlan, host: HostTime) -> list[str]:
    ways = ["fewer micro-batches"] if step.micro_batches > 1 else []
    ways.append("larger batches")
    if not host.has_many_parts or len(set(step.plan.devices)) == 1:
        return ways
    fewer = ["fewer devices"] if step.hosts is Hosts.ONE else []  # else each host asks for more
    if step.micro_batches > 1 and step.plan.method != "pipeline" and not step.compared:
        fewer.append("method='pipeline'")
    if fewer:
        ways.append(f"a plan of fewer parts ({', or '.join(fewer)})")
    return ways


def _asked_of(runs: list[_Run], micro_batches: int) -> tuple[int, int]:
    """Return what is asked of one device: nanoseconds for the operators, and for the parts."""
    in_two = {
        run.operator
        for before, run in zip([None, *runs], runs, strict=False)
        if run.phase == BY_WEIGHTS
        and (before is None or (before.operator, before.phase) != (run.operator, BACKWARD))
    }
    passes = [run for run in runs if run.phase != BY_WEIGHTS or run.operator in in_two]
    adjacent: Counter[tuple[str, frozenset[str]]] = Counter()
    for before, run in itertools.pairwise(passes):
        if (before.phase, before.micro_batch) == (run.phase, run.micro_batch):
            adjacent[run.phase, frozenset((before.operator, run.operator))] += 1
    joined = sum(
        count
        for (_, pair), count in adjacent.items()
        if in_two.isdisjoint(pair)
        and all(adjacent[phase, pair] == micro_batches for phase in ("", BACKWARD))
    )
    return len(runs) * PER_OPERATOR, (len(passes) - joined) * PER_PART
