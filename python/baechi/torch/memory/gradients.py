# SPDX-License-Identifier: Apache-2.0
"""The memory of gradients in the backward of a placed model (beyond the paper).

The engine of autograd is followed node by node. A gradient waits in a buffer of the node that wants
it; further ones are added to it, in place where nothing else holds its memory. A gradient that
another device wants waits where it was made until all of that device's readers have added theirs,
and then goes over at once: transfers run before everything else. While something else holds it,
too, it is held on, and so not added to in place. Those that came over for one tensor meet in a
buffer of their own. It is added to the node's when the engine has nothing to do that the forward
did after the tensor was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from baechi.torch.record.autograd_graph import AutogradNode, Gradient
from baechi.torch.record.recorded_step import Capture, KernelRun, rounded

TICKS = 64  # of the clock per event of the trace: what is freed, made and freed again in between

Hold = Callable[[str | None, int, int, int], None]  # device, bytes, from, until


@dataclass(eq=False)
class _Storage:
    """Memory on a device, and how many hold it."""

    device: str | None
    bytes: int
    since: int
    holders: int = 0


@dataclass
class _Held:
    """What a buffer holds of a storage."""

    storage: _Storage
    addable: bool
    lazy: bool = False  # as of a `Gradient`


class Gradients:
    """The engine's buffers while the nodes of a recorded backward run."""

    def __init__(
        self,
        captured: Capture,
        device_of_node: Callable[[AutogradNode], str | None],
        hold: Hold,
        sent_behind: Mapping[tuple[int, int], int],
        *,
        added_to_held: bool = False,
    ) -> None:
        self._captured = captured
        self._added_to_held = added_to_held  # a weight has a gradient, which its new one joins
        self._sent_behind = sent_behind  # as nodes are ordered, by what went to other devices
        self._device_of_node = device_of_node
        self._hold = hold
        self._end = len(captured.trace) * TICKS
        self._freed: dict[int, int] = {}
        self._made: dict[int, int] = {}
        self._sums: set[int] = set()
        for at, event in enumerate(captured.trace):
            if isinstance(event, int):
                self._freed[event] = at
            elif event.backward:
                for tensor in event.made:
                    self._made.setdefault(tensor, at)
                if event.sums:
                    self._sums.update(event.made)
        self._devices = [device_of_node(node) for node in captured.nodes]
        self._waiting: dict[tuple[int, int, str | None], int] = {}
        for device, node in zip(self._devices, captured.nodes, strict=True):
            for gradient in node.gives:
                key = (*gradient.place, device)
                self._waiting[key] = self._waiting.get(key, 0) + 1
        self._abroad: dict[tuple[int, int], int] = {}  # devices that have yet to send theirs
        for target, slot, device in self._waiting:
            if self._collects(target, device):
                self._abroad[target, slot] = self._abroad.get((target, slot), 0) + 1
        self._buffers: dict[tuple[int, int], _Held] = {}
        self._departing: dict[tuple[int, int, str | None], _Held] = {}
        self._arrived: dict[tuple[int, int], _Held] = {}
        self._leaves: dict[int, _Storage] = {}  # gradients of an inner backward's leaves, by tensor
        self._sent: dict[_Storage, int] = {}  # that something else held when a backward sent them
        # Seen where backwards run inside a backward: what was sent is held until that one ends.
        self._held_on = any(node.backward for node in captured.nodes)
        self._now = 0

    def _collects(self, target: int, source: str | None) -> bool:
        """Whether what comes from `source` meets others; from outside the devices it does not."""
        return source is not None and source != self._devices[target]

    def replay(self) -> set[int]:
        """Hold all that is made in the backward; returns those tensors."""
        events = self._captured.trace
        begins = 0
        for index, node in enumerate(self._captured.nodes):
            made = {
                tensor: at
                for at in range(begins, node.at)
                if isinstance(event := events[at], KernelRun)
                and event.backward
                and not (event.sums or event.again)
                for tensor in event.made
            }
            self._run(index, node, made)
            begins = node.at
        for storage in self._leaves.values():
            self._drop(storage, self._next())
        for storage in self._sent:
            storage.holders = 1
            self._drop(storage, self._next())
        return set(self._made)

    def _run(self, index: int, node: AutogradNode, made: Mapping[int, int]) -> None:
        for storage in [s for s, backward in self._sent.items() if backward > node.backward]:
            del self._sent[storage]  # that backward is over
            self._drop(storage, self._next())
        self._collect(index, node)
        device, end = self._devices[index], node.at * TICKS
        if node.weight is not None and self._added_to_held:
            made = {}
        self._now = max(self._now, end)
        inputs = {
            slot: held
            for slot in {*node.received, *(s for n, s in self._buffers if n == index)}
            if (held := self._buffers.pop((index, slot), None)) is not None
        }
        known = {node.received[s]: h.storage for s, h in inputs.items() if s in node.received}
        known |= self._of_outer(node, inputs)
        for tensor, at in made.items():
            known[tensor] = _Storage(device, self._captured.tensors[tensor].bytes, _made_at(at))
        for gradient in node.gives:
            if gradient.tensor in known:
                known[gradient.tensor].holders += 1
        if node.leaf is not None:
            self._accumulate(node, made, known)
        for tensor, at in made.items():
            if known[tensor].holders == 0:
                last = node.at if self._added_to_held else len(self._captured.trace)
                until = self._freed.get(tensor, last)
                self._hold(device, known[tensor].bytes, _made_at(at), until * TICKS)
        # What is gone again was for a sum of others: conjugated numbers, written out.
        copied = any(tensor not in self._freed for tensor in made)
        for held in inputs.values():
            becomes = node.weight is not None and not copied and not self._added_to_held
            if becomes and held.storage in self._sent and held.addable:  # the weight gets a copy
                self._hold(device, held.storage.bytes, self._next(), self._end)
                self._drop(held.storage, self._next())
            elif becomes:  # it is the weight's gradient from now on
                self._hold(device, held.storage.bytes, held.storage.since, self._end)
            else:
                self._drop(held.storage, end)
        for gradient in node.gives:
            found = known.get(gradient.tensor) if gradient.tensor is not None else None
            self._deliver(device, gradient, found)
        for gradient in node.gives:
            self._send(device, gradient, node.backward)
        for tensor in {g.tensor for g in node.gives if g.tensor is not None}:
            if tensor in self._leaves:
                self._drop(self._leaves.pop(tensor), end)

    def _of_outer(self, node: AutogradNode, inputs: Mapping[int, Any]) -> dict[int, _Storage]:
        """Return what a node of a backward inside the backward was given from around it, or gives.

        Its root has the gradient that the outer node waits with; the outer node passes on what was
        accumulated for the leaves.
        """
        found = {g.tensor: self._leaves[g.tensor] for g in node.gives if g.tensor in self._leaves}
        nodes = self._captured.nodes
        for tensor in (t for slot, t in node.received.items() if slot not in inputs):
            for (target, slot), held in self._buffers.items():
                if nodes[target].received.get(slot) == tensor:
                    found[tensor] = held.storage
        return found

    def _accumulate(
        self, node: AutogradNode, made: Mapping[int, int], known: Mapping[int, _Storage]
    ) -> None:
        """Keep the gradient of a leaf of an inner backward until the outer node passes it on."""
        for tensor in made or node.received.values():
            if tensor in known:
                known[tensor].holders += 1
                self._leaves[tensor] = known[tensor]

    def _drop(self, storage: _Storage, at: int) -> None:
        storage.holders -= 1
        if storage.holders == 0:
            self._hold(storage.device, storage.bytes, storage.since, at)

    def _next(self) -> int:
        """Return a moment after all that happened so far, and before the next event."""
        if (self._now + 2) % TICKS:
            self._now += 1
        return self._now

    def _deliver(self, device: str | None, gradient: Gradient, storage: _Storage | None) -> None:
        """Put a gradient into the buffer of its target, or with those that go there."""
        here = device == self._devices[gradient.target]
        buffers: Any = self._buffers if here else self._departing
        key = gradient.place if here else (*gradient.place, device)
        if storage is not None:
            held = _Held(storage, gradient.addable, gradient.lazy)
            self._add(buffers, key, held, gradient.bytes)

    def _send(self, device: str | None, gradient: Gradient, backward: int) -> None:
        """Copy what goes to another device once it is complete."""
        key = (*gradient.place, device)
        if device == self._devices[gradient.target]:
            return
        self._waiting[key] -= 1
        if self._waiting[key] > 0:
            return
        meets = self._collects(gradient.target, device)
        if meets:
            self._abroad[gradient.place] -= 1
        leaves = self._departing.pop(key, None)
        if leaves is None:
            return
        size = rounded(gradient.bytes)
        copy = _Storage(self._devices[gradient.target], size, self._next(), 1)
        leaves.storage.holders += gradient.held
        self._let_go(leaves.storage, backward)
        into = self._arrived if meets else self._buffers
        self._add(into, gradient.place, _Held(copy, True, leaves.lazy), size)

    def _let_go(self, storage: _Storage, backward: int) -> None:
        """Hold what was sent only if others do, and nothing of before that none does any more."""
        mine = [sent for sent, by in self._sent.items() if by == backward]
        for alone in [sent for sent in mine if sent.holders == 1 and not self._held_on]:
            del self._sent[alone]
            self._drop(alone, self._next())
        if storage.holders == 1 or storage in self._sent:
            self._drop(storage, self._next())
        else:
            self._sent[storage] = backward

    def _collect(self, index: int, node: AutogradNode) -> None:
        """Add what came over to the buffers, as far as the engine does so before a node."""
        for place in list(self._arrived):
            sent = self._sent_behind.get(place, self._captured.nodes[place[0]].order)
            early = sent is None or (node.order is not None and node.order <= sent)
            if self._abroad[place] == 0 and (early or place[0] == index):
                held = self._arrived.pop(place)
                self._add(self._buffers, place, held, held.storage.bytes)

    def _add(self, buffers: Any, key: Any, new: _Held, size: int) -> None:
        old = buffers.get(key)
        if old is None:
            buffers[key] = new
            return
        begins, device = self._next(), new.storage.device
        if old.storage.holders == 1 and old.addable:
            at = self._next()
            self._hold(device, rounded(size) * new.lazy, begins, at)
            self._drop(new.storage, at)
            return
        total = _Storage(device, rounded(size), self._next(), 1)
        buffers[key] = _Held(total, True)
        at = self._next()
        self._hold(device, rounded(size) * (old.lazy + new.lazy), begins, at)
        self._drop(old.storage, at)
        self._drop(new.storage, at)


def _made_at(event: int) -> int:
    """Return when a kernel's results are allocated: behind all that comes before its event."""
    return event * TICKS + TICKS - 1
