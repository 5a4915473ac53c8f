# SPDX-License-Identifier: Apache-2.0
"""What the host takes to ask for the parts of a planned step of micro-batches.

Where kernels are short, this is what a step takes. Both times are rough: they say which of two
plans the host is done with sooner, and whether it is what a step waits for.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import NamedTuple

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


def host_time(step: StepPlan) -> HostTime:
    """Return what the host takes for a step, about.

    What a device runs one behind the other in every pass of every micro-batch is asked for as one;
    the backward of an operator whose gradients of weights come later is asked for by itself.
    """
    devices = _runs(step)
    in_two = {
        run.operator
        for runs in devices.values()
        for before, run in zip([None, *runs], runs, strict=False)
        if run.phase == BY_WEIGHTS
        and (before is None or (before.operator, before.phase) != (run.operator, BACKWARD))
    }
    passes = [
        [run for run in runs if run.phase != BY_WEIGHTS or run.operator in in_two]
        for runs in devices.values()
    ]
    adjacent: Counter[tuple[str, frozenset[str]]] = Counter()
    for runs in passes:
        for before, run in itertools.pairwise(runs):
            if (before.phase, before.micro_batch) == (run.phase, run.micro_batch):
                adjacent[run.phase, frozenset((before.operator, run.operator))] += 1
    joined = sum(
        count
        for (_, pair), count in adjacent.items()
        if in_two.isdisjoint(pair)
        and all(adjacent[phase, pair] == step.micro_batches for phase in ("", BACKWARD))
    )
    parts = sum(map(len, passes)) - joined
    return HostTime(sum(map(len, devices.values())) * PER_OPERATOR, parts * PER_PART)
