# SPDX-License-Identifier: Apache-2.0
"""Travels: which tensors go from device to device, and behind which call each is asked for.

A store, beyond the paper, is a device that runs no call of the plan. What is away lies there: it
was put, or it is a weight whose home it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from baechi.torch.program.calls import Call, Calls
from baechi.torch.program.instructions import HOST, Slot, reads_of, slots_in


@dataclass(frozen=True)
class Fetch:
    """One copy that a device gets from the store, for one reader or several.

    It is asked for right ``behind`` a call; None: at once, or, if it is ``late``, right before the
    first reader.
    """

    moment: int  # in the plan
    behind: Hashable | None = None
    late: bool = False
    number: int = 0


@dataclass(frozen=True)
class PutEnd:
    """When a put has ended, and what is put is on its device no more: behind a call.

    Where the call is in no program, that is at the end.
    """

    moment: int
    behind: Hashable | None


@dataclass(frozen=True)
class Fetching:
    """The fetches of a program, by the storage that is read and the call that reads it.

    Reader None is the caller, who keeps a copy. What has its home on the store is fetched late for
    readers that are not named, unless it is ``kept``: those have a copy already. ``puts`` say of
    storages until when they are on their devices.
    """

    store: int | None = None
    by_reader: Mapping[tuple[str, Hashable | None], Fetch] = field(default_factory=dict)
    kept: frozenset[tuple[str, Hashable | None]] = frozenset()
    puts: Mapping[str, PutEnd] = field(default_factory=dict)

    def of(self, storage: str, home: int | None, device: int, reader: Hashable) -> Fetch | None:
        """Return how a reader on a device gets what lies in a storage; None: as anywhere else."""
        if self.store is None or device == self.store:
            return None
        found = self.by_reader.get((storage, reader))
        if found is None and home == self.store and (storage, reader) not in self.kept:
            return Fetch(_LAST, reader, late=True)
        return found


_LAST = 1 << 62


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


@dataclass(frozen=True)
class Travel:
    """A tensor that goes to a device, in the order of the first readers there."""

    rank: int
    slot: Slot
    device: int
    fetch: Fetch | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Its place among what is sent behind one call."""
        return (0, self.rank) if self.fetch is None else (self.fetch.moment, self.fetch.number)


@dataclass(frozen=True)
class _Reading:
    """A tensor that is read on a device; ``at``: by which call of the sequence."""

    slot: Slot
    device: int
    at: int
    fetch: Fetch | None
    stale: bool  # it was changed before


Where = tuple[str, int | None, "Fetch | None"]  # a slot's name, a device, and how it comes there


class Travels(Ordered):
    """What calls in an order read on other devices than where it was made.

    Inputs that are ``given`` come to every device that reads them.
    """

    def __init__(
        self,
        calls: Calls,
        order: Sequence[Hashable] | None,
        given: Collection[str],
        fetching: Fetching,
    ) -> None:
        super().__init__(calls, order)
        self.fetching = fetching
        self.constant_names = {slot.name for slot in self.constants}
        self.given = {s.name: list[Slot]() for s in calls.inputs if s.name in given}
        self.copies: dict[Where, Slot] = {}  # of what is given

    def by_place(self) -> dict[int, list[Travel]]:
        """Return what is sent, by the place in the sequence behind which it can be."""
        wants: dict[Where, dict[Slot, int]] = defaultdict(dict)
        first_at: dict[Where, int] = {}
        for rank, read in enumerate(self.readings()):
            slot, fetch = read.slot, read.fetch
            if (
                read.device == slot.device and fetch is None
            ) or slot.storage in self.constant_names:
                continue
            if read.stale:
                raise ValueError(f"{slot.name}: read on another device behind its change")
            wants[slot.storage, read.device, fetch].setdefault(slot, rank)
            first_at.setdefault((slot.storage, read.device, fetch), read.at)
        for (storage, _, fetch), found in list(wants.items()):
            if fetch is not None and self.root[storage].device != self.fetching.store:
                for slot, rank in found.items():
                    wants[storage, self.fetching.store, None].setdefault(slot, rank)
        position = {call.node: i for i, call in enumerate(self.sequence)}
        follower = {call.behind: i for i, call in enumerate(self.sequence)}
        result: dict[int, list[Travel]] = defaultdict(list)
        for (storage, device, fetch), found in wants.items():
            assert device is not None  # a number is everywhere
            slots = {slot: r for slot, r in found.items() if fetch or not self.came(slot, device)}
            if not slots:
                continue
            chosen = self.chosen(self.root[storage], slots, came=fetch is None)
            if fetch is not None and self.root[storage].device != self.fetching.store:
                put = self.chosen(self.root[storage], wants[storage, self.fetching.store, None])
                chosen = [slot for slot in put if slot == self.root[storage] or slot in slots]
            first = min(slots.values())
            for slot in chosen:
                behind = max((position[node] for node in self.roots(slot)), default=-1)
                if fetch is not None:
                    last = first_at[storage, device, fetch] - 1
                    end = position.get(fetch.behind, -1)
                    asked = last if fetch.late else max(end, follower.get(fetch.behind, -1))
                    behind = max(behind, min(asked, last))
                result[behind].append(Travel(slots.get(slot, first), slot, device, fetch))
        return result

    def came(self, slot: Slot, device: int) -> bool:
        """Tell whether a slot is, or shows, an input that is given; note the device."""
        if not self.redoable(slot):
            return False
        while (maker := self.maker.get(slot.name)) is not None and maker.view:
            slot = next(read for read in reads_of(maker.run) if read.device is not None)
        if slot.name not in self.given:
            return False
        if (slot.name, device, None) not in self.copies:
            name = f"{slot.name}@{place_name(device)}"
            copy = replace(slot, name=name, device=device, bytes=slot.dense, of=None)
            self.copies[slot.name, device, None] = copy
            self.given[slot.name].append(copy)
        return True

    def readings(self) -> Iterator[_Reading]:
        """Yield tensors with the device that they are read on."""
        changed: dict[str, set[str]] = {}  # storages, with what shows them as they are now

        def reading(slot: Slot, device: int, at: int, reader: Hashable) -> _Reading:
            source = self.packed(slot, device)
            stale = source.storage in changed and source.name not in changed[source.storage]
            fetch = self.fetch_of(source, device, reader)
            return _Reading(self.whole(source) if fetch else source, device, at, fetch, stale)

        for at, call in enumerate(self.sequence):
            for slot in reads_of(call.run):
                device = self.read_on(call, slot)
                if device is not None:
                    yield reading(slot, device, at, call.node)
            shown = {slot.name for slot in call.run.outs}
            changed.update(dict.fromkeys(call.changes, shown))
        for out, device in zip(self.calls.outputs, self.calls.promised, strict=True):
            for slot in slots_in(out):
                if slot.device is not None:
                    place = slot.device if device is None else device
                    yield reading(slot, place, len(self.sequence), None)

    def fetch_of(self, slot: Slot, device: int | None, reader: Hashable) -> Fetch | None:
        """Return how a slot comes from the store, if it does."""
        if device is None or slot.device is None or slot in self.constants:
            return None
        return self.fetching.of(slot.storage, self.root[slot.storage].device, device, reader)

    def whole(self, slot: Slot) -> Slot:
        """Return the input all of which an input shows, or the slot: one of them is fetched."""
        root = self.root[slot.storage]
        if slot.of is None or slot.name in self.maker or root.name in self.maker:
            return slot
        return root if _layout(slot) == _layout(root) is not None else slot

    def packed(self, slot: Slot, device: int) -> Slot:
        """Return what goes to another device for a slot: of what packs a tensor, that tensor."""
        while device != slot.device:
            maker = self.maker.get(self.root[slot.storage].name)
            if maker is None or not maker.packs:
                break
            slot = next(iter(reads_of(maker.run)))
        return slot

    def read_on(self, call: Call, slot: Slot) -> int | None:
        """Return the device on which a call reads a slot; scalars of the host are read there."""
        if slot.device is None or call.anywhere:
            return slot.device
        if _host_scalar(slot) and any(
            other.device is not None and not _host_scalar(other) for other in reads_of(call.run)
        ):
            return slot.device
        return call.run.device

    def chosen(self, root: Slot, slots: Mapping[Slot, int], *, came: bool = True) -> list[Slot]:
        """Of the views of one storage that a device reads, return what goes there."""
        again = [slot for slot in slots if slot != root and self.redoable(slot, came=came)]
        fixed = [slot for slot in slots if slot != root and slot not in again]
        if root in slots or sum(slot.dense for slot in again) > root.dense:
            return [root, *fixed]
        return [*again, *fixed]

    def redoable(self, slot: Slot, *, came: bool = True) -> bool:
        """Tell whether a view can be made again from a copy of its storage, or of what is given.

        That is, unless it ``came``, only the storage.
        """
        while slot.of is not None and not (came and slot.name in self.given):
            maker = self.maker.get(slot.name)
            if maker is None or not maker.view or maker.run.target in _BY_STORAGE:
                return False
            slot = next(read for read in reads_of(maker.run) if read.device is not None)
        return True


_BY_STORAGE = (torch.ops.aten.as_strided.default,)  # views of a storage, whatever shows it


def _layout(slot: Slot) -> str | None:
    like = slot.like
    if like is None:
        return None
    return f"{like.dtype} {like.shape} {like.stride()} {like.storage_offset()}"


def _host_scalar(slot: Slot) -> bool:
    return slot.device == HOST and slot.scalar


def place_name(device: int | None) -> str:
    """Return how the name of a copy on a device ends."""
    return "host" if device == HOST else str(device)
