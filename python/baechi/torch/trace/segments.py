# SPDX-License-Identifier: Apache-2.0
"""An exported graph in segments: calls that run, forward and backward, as one and on one device.

A segment is a planned operator, with what only looks at its results. Calls that change a storage in
place, and those that read it before the last change, are one segment, so that whoever reads its
values later finds them complete.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from baechi.torch.trace.graph import ExportedGraph, Node, NotExportedError


@dataclass(frozen=True)
class Segment:
    """Calls that run as one."""

    index: int
    device: int | None  # None: where the arguments of the model are
    nodes: tuple[int, ...]  # in the order of the program
    reads: tuple[int, ...]  # results of other segments, inputs, and weights from elsewhere
    makes: tuple[int, ...]  # what others read, or the model returns
    weights: tuple[int, ...]  # that it reads where they are
    operators: tuple[str, ...]  # the planned ones that it is
    in_turn: bool  # micro-batches run it in their order: it draws random numbers, or keeps averages
    only_looks: bool  # its results are numbers of the host: it reads values where they are
    reads_changed: bool = False  # a weight that it changes in place, which its backward may need
    shows_changed: bool = False  # such a weight, or a view of it, is an output of the model


class _Sets:
    """Numbers in sets that are united."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def of(self, number: int) -> int:
        while self._above[number] != number:
            self._above[number] = self._above[self._above[number]]
            number = self._above[number]
        return number

    def join(self, numbers: Iterable[int]) -> None:
        first, *rest = {self.of(n) for n in numbers} or {0}
        for other in rest:
            self._above[max(first, other)] = min(first, other)
            first = min(first, other)


def segments_of(
    graph: ExportedGraph,
    devices: list[int | None],
    operator_of: Callable[[Node], str | None],
    *,
    whole: bool = True,
    together: Iterable[Iterable[int]] = (),
) -> list[Segment]:
    """Return the segments in an order in which they can run.

    Args:
        graph: The nodes.
        devices: The device of every node.
        operator_of: The planned operator that a call is a part of.
        whole: Each runs as one; else it only says what belongs together.
        together: Nodes that are to be one segment, too.

    Raises:
        NotExportedError: What must run as one is on several devices.

    """
    sets = _Sets(len(graph.nodes))
    calls = [node for node in graph.nodes if node.kind == "call"]
    _join_operators(sets, graph, calls, devices, operator_of)
    _join_changes(sets, graph, calls)
    for nodes in together:
        sets.join(nodes)
    order = _without_circles(sets, graph, calls)
    members: dict[int, list[Node]] = {}
    for node in calls:
        members.setdefault(sets.of(node.index), []).append(node)
    found = [
        _segment(i, members[root], graph, devices, operator_of) for i, root in enumerate(order)
    ]
    for segment in found if whole else ():
        check_is_whole(graph, segment, devices)
    return found


def check_is_whole(graph: ExportedGraph, segment: Segment, devices: list[int | None]) -> None:
    """Raise NotExportedError where what must run as one cannot: it is on several devices."""
    nodes = [graph.nodes[n] for n in segment.nodes]
    if len({devices[n.index] for n in nodes if not n.is_host}) > 1:
        raise NotExportedError(
            f"{nodes[0].key} and {nodes[-1].key} are on several devices and must run as one: they "
            "change the same values in place, or wait for each other"
        )
    if not _changed_weights(graph, nodes).isdisjoint(_storages(graph, segment.reads)):
        raise NotExportedError(f"{nodes[0].key} changes a weight on another device")


def inseparable(segments: Iterable[Segment]) -> list[list[str]]:
    """Return the planned operators that are one segment with others, and so share a device.

    Args:
        segments: Those of a graph that is on one device.

    """
    return [list(s.operators) for s in segments if len(s.operators) > 1]


def divisible(segments: Iterable[Segment]) -> set[str]:
    """Return the planned operators that are a segment each, whose backward may end later."""
    segments = list(segments)
    count = Counter(operator for s in segments for operator in s.operators)
    return {s.operators[0] for s in segments if may_end_later(s) and count[s.operators[0]] == 1}


def may_run_again(segment: Segment) -> bool:
    """Whether a segment makes the same when it runs again, and changes nothing."""
    return not (segment.in_turn or segment.reads_changed or segment.only_looks)


def repeatable(segments: Iterable[Segment]) -> set[str]:
    """Return the planned operators that are segments of their own, which may run again."""
    may: set[str] = set()
    not_alone: set[str] = set()
    for segment in segments:
        alone = len(segment.operators) == 1 and may_run_again(segment)
        (may if alone else not_alone).update(segment.operators)
    return may - not_alone


def repeated_segments(segments: Iterable[Segment], again: Collection[str]) -> frozenset[int]:
    """Return the segments that run again where operators do; views of what they make do, too."""
    found: set[int] = set()
    made: set[int] = set()
    for segment in segments:  # in an order in which they can run
        views = not segment.operators and not made.isdisjoint(segment.reads)
        named = bool(segment.operators) and set(segment.operators) <= set(again)
        if (views or named) and segment.device is not None and may_run_again(segment):
            found.add(segment.index)
            made.update(segment.makes)
    return frozenset(found)


def may_end_later(segment: Segment) -> bool:
    """Whether the gradients of a segment's weights may be taken when other micro-batches ran."""
    return len(segment.operators) == 1 and not (segment.in_turn or segment.reads_changed)


def _join_operators(
    sets: _Sets,
    graph: ExportedGraph,
    calls: list[Node],
    devices: list[int | None],
    operator_of: Callable[[Node], str | None],
) -> None:
    first: dict[tuple[str, int | None], int] = {}
    for node in calls:
        if node.is_host:
            continue
        if node.part_of is not None:
            sets.join((node.index, node.part_of))
            continue
        for read in node.reads:  # a tuple as a whole
            parts = [u for u in graph.users.get(read, ()) if graph.nodes[u].part_of == read]
            if len(graph.nodes[read].storages) > 1 or parts:
                sets.join((node.index, read))
        here, operator = devices[node.index], operator_of(node)
        if operator is not None:
            known = first.setdefault((operator, here), node.index)
            sets.join((node.index, known))
            continue
        made = [graph.nodes[r] for r in node.reads if graph.nodes[r].kind == "call"]
        near = [m.index for m in made if not m.is_host and devices[m.index] == here]
        if len(near) == 1 and len(made) == 1:  # a view, most often
            sets.join((node.index, near[0]))


def _join_changes(sets: _Sets, graph: ExportedGraph, calls: list[Node]) -> None:
    weights = {s for n in graph.nodes if n.kind == "weight" for s in n.storages}
    last: dict[int, int] = {}
    for node in calls:
        for written in node.writes:
            for storage in graph.nodes[written].storages:
                last[storage] = len(graph.nodes) if storage in weights else node.index
    touching: dict[int, list[int]] = {}
    for node in calls:
        seen = {s for r in node.reads for s in graph.nodes[r].storages} | set(node.storages)
        for storage in seen:
            if node.index <= last.get(storage, -1) and not node.only_looks:
                touching.setdefault(storage, []).append(node.index)
    for nodes in touching.values():
        sets.join(nodes)


def _read_sets(sets: _Sets, graph: ExportedGraph, calls: list[Node]) -> dict[int, set[int]]:
    """Return for every set those that it reads from."""
    before: dict[int, set[int]] = {}
    for node in calls:
        mine = before.setdefault(sets.of(node.index), set())
        mine.update(sets.of(r) for r in node.reads if graph.nodes[r].kind == "call")
    for root, read in before.items():
        read.discard(root)
    return before


def _without_circles(sets: _Sets, graph: ExportedGraph, calls: list[Node]) -> list[int]:
    """Join sets that wait for each other; return the sets in an order in which they can run."""
    while True:
        before = _read_sets(sets, graph, calls)
        order, stuck = _in_order(before)
        if not stuck:
            return order
        sets.join(_a_circle(before, stuck))


def _in_order(before: Mapping[int, set[int]]) -> tuple[list[int], set[int]]:
    followers: dict[int, list[int]] = {}
    for root, read in before.items():
        for b in read:
            followers.setdefault(b, []).append(root)
    missing = {root: len(read) for root, read in before.items()}
    ready = [root for root, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        root = heapq.heappop(ready)
        order.append(root)
        for follower in followers.get(root, ()):
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    return order, set(before).difference(order)


def _a_circle(before: Mapping[int, set[int]], stuck: set[int]) -> list[int]:
    """Return sets that wait for each other: whoever is stuck waits for another that is."""
    path = [min(stuck)]
    while True:
        following = min(before[path[-1]] & stuck)
        if following in path:
            return path[path.index(following) :]
        path.append(following)


def _segment(
    index: int,
    nodes: list[Node],
    graph: ExportedGraph,
    devices: list[int | None],
    operator_of: Callable[[Node], str | None],
) -> Segment:
    inside = {node.index for node in nodes}
    tensors = [node for node in nodes if not node.is_host]
    here = devices[(tensors or nodes)[0].index]
    reads: dict[int, None] = {}
    weights: dict[int, None] = {}
    for node in nodes:
        for read in node.reads:
            known = graph.nodes[read]
            if known.kind == "weight" and devices[read] == here:
                weights[read] = None
            elif known.kind != "constant" and read not in inside:
                reads[read] = None
    changed = _changed_weights(graph, nodes)
    outputs = set(graph.outputs)
    makes = [
        n.index
        for n in nodes
        if n.index in outputs or any(u not in inside for u in graph.users.get(n.index, ()))
    ]
    operators = dict.fromkeys(filter(None, map(operator_of, tensors)))
    in_turn = any(n.random for n in nodes) or bool(changed)
    looks = not tensors
    reads_changed = any(
        not changed.isdisjoint(_storages(graph, n.reads) - _storages(graph, n.writes))
        for n in nodes
    )
    shows_changed = not changed.isdisjoint(_storages(graph, graph.outputs))
    return Segment(
        index,
        here,
        tuple(sorted(inside)),
        tuple(reads),
        tuple(makes),
        tuple(weights),
        tuple(operators),
        in_turn,
        looks,
        reads_changed,
        shows_changed,
    )


def _storages(graph: ExportedGraph, nodes: Iterable[int]) -> set[int]:
    return {storage for node in nodes for storage in graph.nodes[node].storages}


def _changed_weights(graph: ExportedGraph, nodes: list[Node]) -> set[int]:
    """Return the storages of weights that calls change in place, also by views of them."""
    weights = _storages(graph, (n.index for n in graph.nodes if n.kind == "weight"))
    return weights & _storages(graph, (w for n in nodes for w in n.writes))
