# SPDX-License-Identifier: Apache-2.0
"""The memory of gradients in the backward of a placed model (beyond the paper).

The engine of autograd is followed node by node. A gradient waits in a buffer of the node that wants
it; further ones are added to it, in place where nothing else holds its memory. A gradient that
another device wants waits where it was made until all of that device's readers have added theirs,
and then goes over at once: transfers run before everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from baechi.torch.autograd_graph import Gradient, Node
from baechi.torch.recorded_step import Capture, Run, rounded

TICKS = 4  # of the clock per event of the trace: what is freed, made and freed again in between

Hold = Callable[[str | None, int, int, int], None]  # device, bytes, from, until


@dataclass
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
    dense: bool


class Gradients:
    """The engine's buffers while the nodes of a recorded backward run."""

    def __init__(
        self, captured: Capture, device_of_node: Callable[[Node], str | None], hold: Hold
    ) -> None:
        self._captured = captured
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
                key = (gradient.target, gradient.slot, device)
                self._waiting[key] = self._waiting.get(key, 0) + 1
        self._buffers: dict[tuple[int, int], _Held] = {}
        self._departing: dict[tuple[int, int, str | None], _Held] = {}

    def replay(self) -> set[int]:
        """Hold all that is made in the backward; returns those tensors."""
        events = self._captured.trace
        begins = 0
        for index, node in enumerate(self._captured.nodes):
            made = {
                tensor: at
                for at in range(begins, node.at)
                if isinstance(event := events[at], Run) and event.backward and not event.sums
                for tensor in event.made
            }
            self._run(index, node, made)
            begins = node.at
        return set(self._made)

    def _run(self, index: int, node: Node, made: Mapping[int, int]) -> None:
        device, end = self._devices[index], node.at * TICKS
        inputs = {
            slot: held
            for slot in {*node.received, *(s for n, s in self._buffers if n == index)}
            if (held := self._buffers.pop((index, slot), None)) is not None
        }
        known = {node.received[s]: h.storage for s, h in inputs.items() if s in node.received}
        for tensor, at in made.items():
            storage = _Storage(device, self._captured.tensors[tensor].bytes, at * TICKS)
            known[tensor] = storage
        given = [g for g in node.gives if g.tensor in known]
        for gradient in given:
            known[gradient.tensor].holders += 1  # type: ignore[index]
        for tensor, at in made.items():
            if known[tensor].holders == 0:
                until = self._freed.get(tensor, len(self._captured.trace))
                self._hold(device, known[tensor].bytes, at * TICKS, until * TICKS)
        for held in inputs.values():
            if node.weight is not None and not made:  # it is the weight's gradient from now on
                self._hold(device, held.storage.bytes, held.storage.since, self._end)
            else:
                self._drop(held.storage, end)
        for gradient in node.gives:
            found = known.get(gradient.tensor) if gradient.tensor is not None else None
            self._deliver(device, gradient, found, end)

    def _drop(self, storage: _Storage, at: int) -> None:
        storage.holders -= 1
        if storage.holders == 0:
            self._hold(storage.device, storage.bytes, storage.since, at)

    def _deliver(
        self, device: str | None, gradient: Gradient, storage: _Storage | None, at: int
    ) -> None:
        place = (gradient.target, gradient.slot)
        wanted = self._devices[gradient.target]
        if device == wanted:
            if storage is not None:
                self._add(self._buffers, place, _Held(storage, gradient.dense), gradient, at)
            return
        key = (*place, device)
        if storage is not None:
            self._add(self._departing, key, _Held(storage, gradient.dense), gradient, at)
        self._waiting[key] -= 1
        if self._waiting[key] == 0 and (leaves := self._departing.pop(key, None)) is not None:
            copy = _Storage(wanted, rounded(gradient.bytes), at + 1, 1)
            self._add(self._buffers, place, _Held(copy, True), gradient, at)
            self._drop(leaves.storage, at + 2)

    def _add(self, buffers: Any, key: Any, new: _Held, gradient: Gradient, at: int) -> None:
        old = buffers.get(key)
        if old is None:
            buffers[key] = new
            return
        if old.storage.holders == 1 and old.dense:
            self._drop(new.storage, at + 2)
            return
        total = _Storage(new.storage.device, rounded(gradient.bytes), at + 1, 1)
        buffers[key] = _Held(total, True)
        self._drop(old.storage, at + 2)
        self._drop(new.storage, at + 2)
