# SPDX-License-Identifier: Apache-2.0
"""Ordered: the calls of a program in the order in which the host asks for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from baechi.torch.program.calls import Call, Calls
from baechi.torch.program.instructions import Slot, reads_of


class Ordered:
    """Calls as `sequence`, each behind what it needs, without the lazy ones.

    What an order leaves out comes when it is needed, or at the end.
    """

    def __init__(self, calls: Calls, order: Sequence[Hashable] | None) -> None:
        self.calls = calls
        self.maker = {slot.name: call for call in calls.calls for slot in call.run.outs}
        made = [slot for call in calls.calls for slot in call.run.outs]
        self.constants = dict(calls.constants)
        self.root = {slot.name: slot for slot in (*calls.inputs, *self.constants, *made)}
        self.behind: dict[str, frozenset[Hashable]] = {}
        for call in calls.calls:
            if call.lazy:
                behind = frozenset().union(*(self.roots(s) for s in reads_of(call.run)))
                self.behind.update((slot.name, behind) for slot in call.run.outs)
        self.sequence = self.sorted(order)

    def roots(self, slot: Slot) -> frozenset[Hashable]:
        """Return the calls that have to run before a slot can be read."""
        if slot.name in self.behind:
            return self.behind[slot.name]
        maker = self.maker.get(slot.name)
        return frozenset() if maker is None else frozenset((maker.node,))

    def sorted(self, order: Sequence[Hashable] | None) -> list[Call]:
        """Return the calls but the lazy ones, each behind what it needs."""
        real = {call.node: call for call in self.calls.calls if not call.lazy}
        place = {node: i for i, node in enumerate(real)}
        follow = defaultdict[Hashable, list[Hashable]](list)
        for node, call in real.items():
            follow[call.behind].append(node)
        known = {*(order or ())} | {node for node, call in real.items() if call.behind is None}
        wanted = list[Hashable]()
        stack = [*reversed([*(order or ()), *(node for node in real if node in known)])]
        while stack:
            wanted.append(stack.pop())
            stack += reversed([node for node in follow[wanted[-1]] if node not in known])
        wanted = [node for node in (*wanted, *real) if node in real]
        done: set[Hashable] = set()
        result = []
        for first in wanted:
            stack = [first]
            while stack:
                node = stack[-1]
                call = real[node]
                needs = {n for slot in reads_of(call.run) for n in self.roots(slot)}
                needs = {n for n in needs.union(call.after) if n in real and n not in done}
                if node in done or not needs:
                    stack.pop()
                    if node not in done:
                        done.add(node)
                        result.append(call)
                elif len(stack) > len(real):
                    raise ValueError(f"{call.run.name}: needs its own result")
                else:
                    stack.extend(sorted(needs, key=lambda n: -place[n]))
        return result
