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
from baechi.torch.run.stepping import StepPlan

# Of the right size for a loaded two-core x86 machine; `python bench/torch_overhead.py steps` has
# the host's time of whole steps.
PER_OPERATOR = 30_000  # nanoseconds, of a pass of one
PER_PART = 100_000  # of what is asked for by itself


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
    """What the host takes for a step, in nanoseconds."""

    operators: int
    parts: int

    @property
    def total(self) -> int:
        """Both, one behind the other."""
        return self.operators + self.parts


def host_time(step: StepPlan, *, hosts_apart: bool = False) -> HostTime:
    """Return what the host takes for a step, about.

    What a device runs one behind the other in every pass of every micro-batch is asked for as one;
    the backward of an operator whose gradients of weights come later is asked for by itself.

    Args:
        step: The plan.
        hosts_apart: Each device has a host of its own, of which the busiest counts.

    """
    each = [_host_time_of(runs, step.micro_batches) for runs in _runs(step).values()]
    if hosts_apart:
        return max(each, key=lambda host: host.total, default=HostTime(0, 0))
    return HostTime(sum(host.operators for host in each), sum(host.parts for host in each))


def waits_for_host(step: StepPlan, *, hosts_apart: bool = False) -> str:
    """Say in a line that a step is longer than its plan, and the way out; empty where it is not."""
    host = host_time(step, hosts_apart=hosts_apart).total
    devices = step.plan.makespan_ns
    if host <= devices:
        return ""
    fewer = "fewer micro-batches, " if step.micro_batches > 1 else ""
    return (
        f"{'a' if hosts_apart else 'the'} host takes about {in_time(host)} to ask for what devices "
        f"do in {in_time(devices)}, so that a step is longer than predicted: take {fewer}larger "
        "batches, or a plan of fewer parts (fewer devices, or method='pipeline')"
    )


def _host_time_of(runs: list[_Run], micro_batches: int) -> HostTime:
    """Return what the host takes for what one device runs."""
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
    return HostTime(len(runs) * PER_OPERATOR, (len(passes) - joined) * PER_PART)
