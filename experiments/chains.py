# SPDX-License-Identifier: Apache-2.0
"""Training graphs whose branches wait for each other, so that any stages of them form a chain.

Control edges put what depends on the batch into one order: forward operators one behind the other,
and the backward operators that others wait for behind those of later forward operators. A stage
then waits for all before it, as in a pipeline without branches; gradients by weights and what runs
once per step stay free, and tensors that skip stages go straight to their reader.
"""

from __future__ import annotations

import heapq
import itertools
import json
from typing import TYPE_CHECKING, Any

import baechi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Operator = dict[str, Any]


class _Links:
    """Who waits for whom, by numbers."""

    def __init__(self, operators: list[Operator]) -> None:
        number = {operator["name"]: i for i, operator in enumerate(operators)}

        def of(name: str | int) -> int:
            return number[name] if isinstance(name, str) else name

        self.before: list[list[int]] = [
            sorted(
                {of(i[0] if isinstance(i, list) else i) for i in operator.get("inputs", [])}
                | {of(name) for name in operator.get("after", [])}
            )
            for operator in operators
        ]
        self.after: list[list[int]] = [[] for _ in operators]
        for i, before in enumerate(self.before):
            for other in before:
                self.after[other].append(i)
        self.forward = [
            None if (name := operator.get("forward")) is None else of(name)
            for operator in operators
        ]

    def order(self, members: Iterable[int], key: Callable[[int], int]) -> list[int]:
        """Sort topologically: of the free ones always the one with the least key."""
        inside = set(members)
        waits = {i: sum(other in inside for other in self.before[i]) for i in inside}
        free = [(key(i), i) for i in inside if waits[i] == 0]
        heapq.heapify(free)
        found = []
        while free:
            _, i = heapq.heappop(free)
            found.append(i)
            for other in self.after[i]:
                if other in inside:
                    waits[other] -= 1
                    if waits[other] == 0:
                        heapq.heappush(free, (key(other), other))
        return found

    def depth_first(self, members: set[int]) -> list[int]:
        """Sort topologically, each branch to its end before the next."""
        found: list[int] = []
        seen: set[int] = set()
        for root in sorted(members):
            path = [(root, 0)]
            while path:
                i, at = path.pop()
                if at == 0:
                    if i in seen:
                        continue
                    seen.add(i)
                inputs = [other for other in self.before[i] if other in members]
                if at < len(inputs):
                    path.append((i, at + 1))
                    path.append((inputs[at], 0))
                else:
                    found.append(i)
        return found

    def behind(self, roots: Iterable[int]) -> set[int]:
        """All that depend on these, and they themselves."""
        found = set(roots)
        ready = sorted(found)
        while ready:
            for other in self.after[ready.pop()]:
                if other not in found:
                    found.add(other)
                    ready.append(other)
        return found


def chains(graph: baechi.Graph) -> list[baechi.Graph]:
    """The graph as a chain, in two orders: branch after branch, and side by side."""
    document = json.loads(graph.to_json())
    operators: list[Operator] = document["operators"]
    links = _Links(operators)
    once = {i for i, operator in enumerate(operators) if operator.get("per") == "step"}
    sources = (i for i in range(len(operators)) if not links.before[i] and i not in once)
    backward = {i for i in range(len(operators)) if _is_backward(operators[i])}
    # Constants and penalties on weights do not depend on the batch.
    data = [i for i in sources if i not in backward and operators[i].get("kind") != "Const"]
    forward = links.behind(data) - once - backward
    level = _levels(links, len(operators))
    found = []
    for order in (links.depth_first(forward), links.order(forward, lambda i: level[i])):
        added = _pairs(links, order, backward - once)
        changed = [dict(operator) for operator in operators]
        for a, b in added:
            if a not in links.before[b]:
                changed[b]["after"] = [*changed[b].get("after", []), operators[a]["name"]]
        found.append(baechi.Graph.from_json(json.dumps({**document, "operators": changed})))
    return found


def _is_backward(operator: Operator) -> bool:
    return "forward" in operator or bool(operator.get("backward"))


def _levels(links: _Links, count: int) -> list[int]:
    level = [0] * count
    for i in links.order(range(count), lambda i: i):
        for other in links.after[i]:
            level[other] = max(level[other], level[i] + 1)
    return level


def _pairs(links: _Links, order: list[int], backward: set[int]) -> list[tuple[int, int]]:
    """Operators of which the second is to wait for the first."""
    found = list(itertools.pairwise(order))
    place = {i: at for at, i in enumerate(order)}

    def place_of(i: int) -> int:
        forward = links.forward[i]
        return -1 if forward is None else place.get(forward, -1)

    last: int | None = None
    for i in links.order(backward, lambda i: -place_of(i)):
        here = place_of(i)
        needed = any(place_of(other) != here for other in links.after[i] if other in backward)
        # One that must wait for an earlier stage's is no link of the chain.
        if here < 0 or not needed or (last is not None and here > place_of(last)):
            continue
        if last is not None:
            found.append((last, i))
        last = i
    return found
