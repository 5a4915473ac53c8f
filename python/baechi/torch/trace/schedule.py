# SPDX-License-Identifier: Apache-2.0
"""Where and in which order the calls of an exported graph run, and when tensors travel (Paper 3.2).

A tensor goes to another device once per version: right behind the call that made it or changed it
last, and who reads it there waits for it right before. A call that changes a storage in place
waits for the copies of it that are on their way; what it changes elsewhere comes back at once. All
of that is known before the step runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from baechi.torch.trace.blocks import Blocks
from baechi.torch.trace.graph import ExportedGraph, Node
from baechi.torch.trace.segments import Segment

ORDER = "streams+order"  # the mode in which calls keep to the order of the plan


@dataclass(frozen=True)
class Run:
    """A call."""

    node: int


@dataclass(frozen=True)
class RunBlock:
    """Calls that run as one: again in the backward, or on what does."""

    segment: Segment


@dataclass(frozen=True)
class Send:
    """A value starts on its way to a device."""

    value: int
    target: int
    version: int  # the position behind which it is sent: tells its copies apart


@dataclass(frozen=True)
class Wait:
    """The reader of a value that was sent waits until it has arrived."""

    value: int
    target: int
    version: int


@dataclass(frozen=True)
class Settle:
    """What changes a value in place waits until it was sent."""

    value: int
    target: int
    version: int


@dataclass(frozen=True)
class Return:
    """What a call on another device changed in the copy of a value comes back into the value."""

    value: int
    target: int
    version: int
    node: int  # the call


@dataclass(frozen=True)
class Bring:
    """A value from outside comes to a device."""

    value: int
    target: int
    version: int


@dataclass
class Schedule:
    """The steps of a graph in order, the device of every node, and where each read comes from."""

    steps: list[Run | RunBlock | Send | Wait | Settle | Return | Bring]
    devices: list[int | None]  # None: a number, or where the model's arguments are
    copies: dict[tuple[int, int], int]  # (reader, value) -> the version that it reads
    blocks: Blocks = field(default_factory=Blocks)

    @property
    def order(self) -> list[int]:
        """The nodes in the order in which they run."""
        nodes = (s.segment.nodes if isinstance(s, RunBlock) else (s.node,) for s in self._runs)
        return [node for some in nodes for node in some]

    @property
    def _runs(self) -> Iterator[Run | RunBlock]:
        return (step for step in self.steps if isinstance(step, (Run, RunBlock)))


class _Together:
    """Nodes that share a storage or a tuple run on one device."""

    def __init__(self, graph: ExportedGraph) -> None:
        self._above = list(range(len(graph.nodes)))
        by_storage: dict[int, int] = {}
        for node in graph.nodes:
            for storage in node.storages:
                self._join(node.index, by_storage.setdefault(storage, node.index))
            if node.part_of is not None:
                self._join(node.index, node.part_of)

    def of(self, node: int) -> int:
        while self._above[node] != node:
            self._above[node] = self._above[self._above[node]]
            node = self._above[node]
        return node

    def _join(self, a: int, b: int) -> None:
        a, b = self.of(a), self.of(b)
        self._above[max(a, b)] = min(a, b)


_OUTSIDE = -1


def devices_of(
    graph: ExportedGraph, weights: Mapping[str, int], planned: Callable[[Node], int | None]
) -> list[int | None]:
    """Return the device of every node: its weight's, the planned one, or that of what it reads."""
    together = _Together(graph)
    of = [together.of(n.index) for n in graph.nodes]
    device: dict[int, int] = {}
    for node in graph.nodes:  # weights cannot be elsewhere
        if node.kind == "weight":
            device.setdefault(of[node.index], weights[node.target])
    for node in graph.nodes:
        if node.kind == "input":
            device.setdefault(of[node.index], _OUTSIDE)
    for node in graph.nodes:
        if node.kind == "call" and not node.is_host and of[node.index] not in device:
            wanted = planned(node)
            if wanted is not None:
                device[of[node.index]] = wanted
    for node in graph.nodes:  # what no plan knows follows what it reads, or else who reads it
        if node.kind == "call" and not node.is_host and of[node.index] not in device:
            found = [device[of[r]] for r in node.reads if of[r] in device]
            if any(d != _OUTSIDE for d in found):
                device[of[node.index]] = next(d for d in found if d != _OUTSIDE)
    for node in reversed(graph.nodes):
        if not node.is_host and of[node.index] not in device:
            readers = [device.get(of[u], _OUTSIDE) for u in graph.users.get(node.index, ())]
            inside = [d for d in readers if d != _OUTSIDE]
            if inside:
                device[of[node.index]] = inside[0]
    for node in graph.nodes:  # what is where the arguments are is not changed from elsewhere
        here = device.get(of[node.index], _OUTSIDE)
        for written in node.writes if here != _OUTSIDE else ():
            if device.get(of[written]) == _OUTSIDE:
                device[of[written]] = here
    result: list[int | None] = []
    for node in graph.nodes:
        where: int | None = device.get(of[node.index], 0)
        if node.is_host:
            reads = [] if node.only_looks else [device.get(of[r], 0) for r in node.reads]
            where = next((d for d in reads if d != _OUTSIDE), None)
        result.append(None if where == _OUTSIDE else where)
    return result


def _touched(graph: ExportedGraph, node: Node) -> tuple[set[int], set[int]]:
    """Return the storages that a call reads or makes, and those of them that it changes."""
    written = {s for w in node.writes for s in graph.nodes[w].storages}
    seen = {s for r in node.reads for s in graph.nodes[r].storages} | set(node.storages)
    return seen, written


def planned_order(
    graph: ExportedGraph,
    start_of: Callable[[Node], int | None],
    random_on: Callable[[Node], Any],
) -> list[int]:
    """Return the calls by their planned start, later where the data or a storage wants it so.

    Args:
        graph: The nodes.
        start_of: When a node starts; None: as soon as it can.
        random_on: Whose random numbers a node draws; these stay in the order of the program.

    """
    after: dict[int, set[int]] = {n.index: set() for n in graph.nodes}
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    drew: dict[Any, int] = {}
    for node in graph.nodes:
        before = after[node.index]
        before.update(node.reads)
        seen, written = _touched(graph, node)
        for storage in seen:
            if storage in writer:
                before.add(writer[storage])
        for storage in written:
            before.update(readers.pop(storage, ()))
            writer[storage] = node.index
        for storage in seen:
            readers.setdefault(storage, []).append(node.index)
        if node.random:
            generator = random_on(node)
            if generator in drew:
                before.add(drew[generator])
            drew[generator] = node.index
        before.discard(node.index)
    return _by_start(graph, after, start_of)


def _by_start(
    graph: ExportedGraph, after: Mapping[int, set[int]], start_of: Callable[[Node], int | None]
) -> list[int]:
    starts = [start_of(node) for node in graph.nodes]
    wanted: dict[int, int] = {}  # by whom it is read first, be it through what has no start itself
    for node in reversed(graph.nodes):
        own = starts[node.index]
        users = [wanted[u] for u in graph.users.get(node.index, ()) if u in wanted]
        first = min(users, default=None) if own is None else own
        if first is not None:
            wanted[node.index] = first
    known: list[int] = []
    for node in graph.nodes:
        own = starts[node.index]
        if own is None and not after[node.index]:
            own = wanted.get(node.index, 0)  # an input, or what makes a constant
        known.append(max((known[b] for b in after[node.index]), default=0) if own is None else own)
    followers: dict[int, list[int]] = {}
    missing = {n: len(before) for n, before in after.items()}
    for node_index, before in after.items():
        for b in before:
            followers.setdefault(b, []).append(node_index)
    ready = [(known[n], n) for n, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for follower in followers.get(n, ()):
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (known[follower], follower))
    return order


def last_change(changes: Mapping[int, list[int]], node: Node, made: int, before: int) -> int:
    """Return the position behind which a value is as a reader at `before` has to see it."""
    found = made
    for storage in node.storages:
        for at in changes.get(storage, ()):
            if found < at < before:
                found = at
    return found


def scheduled(
    graph: ExportedGraph,
    devices: list[int | None],
    order: Iterable[int],
    *,
    early: Collection[int] = (),
    blocks: Blocks | None = None,
) -> Schedule:
    """Return the steps with the transfers between them.

    Args:
        graph: The nodes.
        devices: The device of every node.
        order: The nodes in the order in which they run.
        early: The devices between which values are sent as soon as they are made; between others
            right before the first reader.
        blocks: Calls that run as one, and are side by side in that order.

    """
    blocks = blocks or Blocks()
    calls = list(order)
    at = {n: i for i, n in enumerate(calls)}
    changes: dict[int, list[int]] = {}
    for position, n in enumerate(calls):
        for storage in _touched(graph, graph.nodes[n])[1]:
            changes.setdefault(storage, []).append(position)
    before: dict[int, list[Any]] = {}
    behind: dict[int, list[Any]] = {}
    copies: dict[tuple[int, int], int] = {}
    known: set[Any] = set()
    for position, n in enumerate(calls):
        node, here = graph.nodes[n], devices[n]
        if here is None or node.kind != "call" or node.part_of is not None:
            continue
        for read in node.reads:
            value, there = graph.nodes[read], devices[read]
            if value.is_host or there == here or node.only_looks or is_everywhere(graph, value):
                continue
            version = last_change(changes, value, at[read], position)
            copies[n, read] = version
            if read in node.writes:
                behind.setdefault(position, []).append(Return(read, here, version, n))
            if (read, here, version) in known:
                continue
            known.add((read, here, version))
            first = before.setdefault(position, [])
            if there is None:
                first.append(Bring(read, here, version))
                continue
            send = Send(read, here, version)
            if here in early and there in early and value.kind == "call":
                behind.setdefault(version, []).append(send)
            else:
                first.append(send)
            first.append(Wait(read, here, version))
            change = _next_change(changes, value, version)
            if change is not None and change != position:  # it has waited for its own copy
                before.setdefault(change, []).insert(0, Settle(read, here, version))
    steps: list[Any] = []
    position = 0
    while position < len(calls):
        segment = blocks.segments.get(calls[position])
        end = position + (1 if segment is None else len(segment.nodes))
        span = range(position, end)
        steps += [step for p in span for step in before.get(p, ())]
        steps.append(Run(calls[position]) if segment is None else RunBlock(segment))
        steps += [step for p in span for step in behind.get(p, ())]
        position = end
    return Schedule(steps, devices, copies, blocks)


def is_everywhere(graph: ExportedGraph, value: Node) -> bool:
    """Whether every device has the value: a constant that has no views and never changes."""
    if value.kind != "constant":
        return False
    mine = set(value.storages)
    return not any(
        mine & set(graph.nodes[u].storages) or u in graph.nodes[u].writes
        for u in graph.users.get(value.index, ())
    )


def _next_change(changes: Mapping[int, list[int]], value: Node, version: int) -> int | None:
    later = [p for s in value.storages for p in changes.get(s, ()) if p > version]
    return min(later, default=None)
