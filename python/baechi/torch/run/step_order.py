# SPDX-License-Identifier: Apache-2.0
"""The order in which the host asks for the parts of a step of micro-batches.

Devices work on their own, each on what it was asked for, in that order. So a list that keeps to the
plan's starts, later only where a value must be there first, has every device work in the plan's
order, and never has one wait for what was not asked for yet.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import NamedTuple

from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.trace.segments import Segment, may_end_later


class Phase(IntEnum):
    """What is asked for."""

    FORWARD = 0
    LOSS = 1  # and its gradient
    AGAIN = 2  # the second run of a forward, for the backward pass
    BACKWARD = 3
    BY_WEIGHTS = 4  # the rest of a backward in two: the gradients of its weights
    SEND = 5  # a value, to another device
    SEND_BACK = 6  # its gradient, to where it was made


class Part(NamedTuple):
    """A segment's pass, the loss, or what a segment sends, of a micro-batch."""

    phase: Phase
    segment: int
    micro_batch: int
    value: int = -1  # that is sent, or whose gradient is
    reader: int = -1  # the device that reads it


class Sending(NamedTuple):
    """Something that leaves in every micro-batch; parts are those of the first one."""

    part: Part
    starts: tuple[int, ...]  # by micro-batch
    behind: tuple[Part, ...]  # what makes it
    ahead_of: tuple[Part, ...]  # what reads it


StartOf = Callable[[Phase, str, int], int | None]  # planned, of an operator and a micro-batch


def step_order(
    graph: ExportedGraph,
    segments: list[Segment],
    micro_batches: int,
    start_of: StartOf,
    repeated: Collection[int] = (),
    sendings: Sequence[Sending] = (),
    whole: Collection[str] = (),
) -> list[Part]:
    """Return all parts of a step, in the order of the plan's starts.

    Args:
        graph: The nodes.
        segments: Of the graph.
        micro_batches: How many.
        start_of: When the plan has an operator begin.
        repeated: The segments that run again.
        sendings: What leaves when the plan says.
        whole: The operators whose backward is asked for in one, also where the plan has two.

    """
    before = _waits(graph, segments, micro_batches)
    for m in range(micro_batches):
        _add_second_runs(before, segments, repeated, m)
    sent_at = _add_sendings(before, micro_batches, sendings)
    for segment in filter(functools.partial(is_apart, start_of, whole=whole), segments):
        for m in range(micro_batches):
            backward = Part(Phase.BACKWARD, segment.index, m)
            before[Part(Phase.BY_WEIGHTS, segment.index, m)] = {backward}
    followers: dict[Part, list[Part]] = {}
    for part, waits in before.items():
        for earlier in waits:
            followers.setdefault(earlier, []).append(part)
    missing = {part: len(waits) for part, waits in before.items()}
    known: dict[Part, int] = {}

    def entry(part: Part) -> tuple[int, bool, int, Part]:
        planned: list[int] = []
        if part in sent_at:
            planned.append(sent_at[part])
        elif part.phase is not Phase.LOSS:
            for operator in segments[part.segment].operators:
                start = start_of(part.phase, operator, part.micro_batch)
                if start is not None:
                    planned.append(start)
        earliest = max((known[b] for b in before[part]), default=0)
        known[part] = max(planned, default=earliest)
        return known[part], part not in sent_at, part.micro_batch, part

    ready = [entry(part) for part, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[Part] = []
    while ready:
        part = heapq.heappop(ready)[-1]
        order.append(part)
        for follower in followers.get(part, ()):
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, entry(follower))
    return order


def _add_second_runs(
    before: dict[Part, set[Part]], segments: list[Segment], repeated: Collection[int], m: int
) -> None:
    """Add them behind all who read the first ones, and before the backwards that need them."""
    maker = {made: s.index for s in segments for made in s.makes if s.index in repeated}
    for index in repeated:
        before[Part(Phase.AGAIN, index, m)] = {Part(Phase.FORWARD, index, m)}
    for segment in segments:
        needed = {maker[read] for read in segment.reads if read in maker}
        for index in needed:
            again = Part(Phase.AGAIN, index, m)
            before[again].add(Part(Phase.FORWARD, segment.index, m))
            before[Part(Phase.BACKWARD, segment.index, m)].add(again)
            if segment.index in repeated:
                before[Part(Phase.AGAIN, segment.index, m)].add(again)
        if segment.index in repeated:
            own = Part(Phase.AGAIN, segment.index, m)
            before[Part(Phase.BACKWARD, segment.index, m)].add(own)


def _add_sendings(
    before: dict[Part, set[Part]], micro_batches: int, sendings: Sequence[Sending]
) -> dict[Part, int]:
    """Add what leaves when the plan says, between who makes and who reads it; return when."""
    sent_at: dict[Part, int] = {}
    for part, starts, behind, ahead_of in sendings:
        for m in range(micro_batches):
            mine = part._replace(micro_batch=m)
            sent_at[mine] = starts[m]
            before[mine] = {other._replace(micro_batch=m) for other in behind}
            for other in ahead_of:
                before[other._replace(micro_batch=m)].add(mine)
    return sent_at


def is_apart(start_of: StartOf, segment: Segment, whole: Collection[str] = ()) -> bool:
    """Whether the backward of a segment is in two: it is one operator that is planned so."""
    if not may_end_later(segment) or segment.operators[0] in whole:
        return False
    return start_of(Phase.BY_WEIGHTS, segment.operators[0], 0) is not None


def _waits(
    graph: ExportedGraph, segments: list[Segment], micro_batches: int
) -> dict[Part, set[Part]]:
    """Return what each part waits for."""
    maker = {made: segment.index for segment in segments for made in segment.makes}
    returned = {maker[o] for o in graph.outputs if o in maker}
    readers: dict[int, set[int]] = {}
    for segment in segments:
        for read in segment.reads:
            if read in maker:
                readers.setdefault(maker[read], set()).add(segment.index)
    before: dict[Part, set[Part]] = {}
    for m in range(micro_batches):
        loss = Part(Phase.LOSS, 0, m)
        before[loss] = {Part(Phase.FORWARD, s, m) for s in returned}
        before[loss] |= {Part(Phase.FORWARD, s.index, m) for s in segments if s.shows_changed}
        if m:
            before[loss].add(Part(Phase.LOSS, 0, m - 1))
        for segment in segments:
            forward = Part(Phase.FORWARD, segment.index, m)
            before[forward] = {
                Part(Phase.FORWARD, maker[r], m) for r in segment.reads if r in maker
            }
            if m and segment.in_turn:
                before[forward].add(Part(Phase.FORWARD, segment.index, m - 1))
            if m and segment.reads_changed:  # what its backward kept must not change before that
                before[forward].add(Part(Phase.BACKWARD, segment.index, m - 1))
            if m and segment.shows_changed:
                before[forward].add(Part(Phase.LOSS, 0, m - 1))
            backward = {Part(Phase.BACKWARD, s, m) for s in readers.get(segment.index, ())}
            backward.add(forward)
            if segment.index in returned:
                backward.add(loss)
            before[Part(Phase.BACKWARD, segment.index, m)] = backward
    return before
