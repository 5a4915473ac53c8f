# SPDX-License-Identifier: Apache-2.0
"""The calls of a graph that run as one: those that run again in the backward, and who reads these.

All calls are taken segment by segment, so that what runs again runs as the plan has it: with its
views, its parts and what it changes in place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baechi.torch.trace.graph import ExportedGraph, Node, NotExportedError
from baechi.torch.trace.segments import (
    Segment,
    check_is_whole,
    repeated_segments,
    segments_of,
)


@dataclass(frozen=True)
class Blocks:
    """Segments that run as one call each."""

    segments: Mapping[int, Segment] = field(default_factory=dict)  # by their first node
    repeated: frozenset[int] = frozenset()  # the indices of those that run again
    made_again: frozenset[int] = frozenset()  # the values that these make


def blocks_in(
    graph: ExportedGraph,
    devices: list[int | None],
    operator_of: Callable[[Node], str | None],
    again: Collection[str],
    order: Sequence[int],
    generator_of: Callable[[Node], Any],
) -> tuple[Blocks, list[int]]:
    """Return the blocks of a graph, and the order of its nodes in which each of them is together.

    Args:
        graph: The nodes.
        devices: The device of every node.
        operator_of: The planned operator that a call is a part of.
        again: The operators that run again.
        order: Of the nodes, if nothing had to be together.
        generator_of: Whose random numbers a node draws.

    Raises:
        NotExportedError: An operator cannot run again in this graph.

    """
    segments = segments_of(graph, devices, operator_of, whole=False)
    repeated = repeated_segments(segments, again)
    runs_again = {o for s in segments if s.index in repeated for o in s.operators}
    for segment in segments:
        stuck = next((o for o in segment.operators if o in again and o not in runs_again), None)
        if stuck is not None:
            raise NotExportedError(
                f"{stuck!r} is to run again, and is one with others in its graph, or changes "
                "something there"
            )
    made = frozenset(m for s in segments if s.index in repeated for m in s.makes)
    taken = [
        s
        for s in segments
        if s.device is not None
        and not s.only_looks
        and (s.index in repeated or not made.isdisjoint(s.reads))
    ]
    for segment in taken:
        check_is_whole(graph, segment, devices)
    found = _together(graph, segments, order)
    _check_random(graph, found, generator_of)
    return Blocks({s.nodes[0]: s for s in taken}, repeated, made), found


def _together(graph: ExportedGraph, segments: Sequence[Segment], order: Sequence[int]) -> list[int]:
    """Return the nodes with those of each segment side by side, else as they were."""
    at = {node: position for position, node in enumerate(order)}
    first = [min(at[n] for n in s.nodes) for s in segments]
    maker = {n: s.index for s in segments for n in s.nodes}
    missing: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    for segment in segments:
        before = {maker[r] for n in segment.nodes for r in graph.nodes[n].reads if r in maker}
        before.discard(segment.index)
        missing[segment.index] = len(before)
        for other in before:
            followers.setdefault(other, []).append(segment.index)
    ready = [(first[index], index) for index, count in missing.items() if count == 0]
    heapq.heapify(ready)
    found = [n for n in order if n not in maker]
    while ready:
        _, index = heapq.heappop(ready)
        found.extend(segments[index].nodes)
        for follower in followers.get(index, ()):
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (first[follower], follower))
    return found


def _check_random(
    graph: ExportedGraph, order: Sequence[int], generator_of: Callable[[Node], Any]
) -> None:
    last: dict[Any, int] = {}
    for index in order:
        node = graph.nodes[index]
        if not node.random:
            continue
        generator = generator_of(node)
        if last.get(generator, -1) > index:
            raise NotExportedError(
                f"{node.key} would draw its random numbers before what comes earlier in the "
                "program, where operators run again"
            )
        last[generator] = index
