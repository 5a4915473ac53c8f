# SPDX-License-Identifier: Apache-2.0
"""Lowering: calls with devices become a program, with the sends, waits and frees between them.

Paper 3.2.

A tensor is sent right behind its producer to each other device that reads it, in the order of the
first readers, and waited for right before the first reader there. What is read travels: a view if
that is all that is read, else its storage, and the views are made again there.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from baechi.torch.program.calls import Call, Calls, calls_of
from baechi.torch.program.instructions import (
    HOST,
    Free,
    Instruction,
    Run,
    Send,
    Slot,
    Wait,
    mapped,
    reads_of,
    slots_in,
)
from baechi.torch.program.programs import Program


def lower(
    graph: fx.GraphModule | fx.Graph | Calls,
    device_of: Mapping[fx.Node, int] | None = None,
    *,
    devices: int | None = None,
    order: Sequence[Hashable] | None = None,
    promised: Sequence[int | None] | None = None,
    names: Mapping[fx.Node, str] | None = None,
    given: Collection[str] = (),
) -> Program:
    """Return the program of a graph, or of calls that were read from one.

    ``order`` are nodes in the order in which the host asks for them, by default the graph's. What
    it leaves out comes when it is needed, or at the end; what needs something later waits for it.
    Inputs that are ``given`` come to every device that reads them: to another than their own as
    `name@device`.
    """
    if isinstance(graph, Calls):
        calls = graph
    else:
        calls = calls_of(graph, device_of or {}, promised=promised, names=names)
    return _Lowering(calls, order, given).program(devices)


@dataclass(frozen=True)
class _Travel:
    """A tensor that goes to a device, in the order of the first readers there."""

    rank: int
    slot: Slot
    device: int


class _Lowering:
    def __init__(
        self, calls: Calls, order: Sequence[Hashable] | None, given: Collection[str]
    ) -> None:
        self.calls = calls
        self.given = {slot.name: list[Slot]() for slot in calls.inputs if slot.name in given}
        self.maker = {slot.name: call for call in calls.calls for slot in call.run.outs}
        constants = [slot for slot, _ in calls.constants]
        made = [slot for call in calls.calls for slot in call.run.outs]
        self.root = {slot.name: slot for slot in (*calls.inputs, *constants, *made)}
        self.constants = dict(calls.constants)
        self.behind: dict[str, frozenset[Hashable]] = {}
        for call in calls.calls:
            if call.lazy:
                behind = frozenset().union(*(self.roots(s) for s in reads_of(call.run)))
                self.behind.update((slot.name, behind) for slot in call.run.outs)
        self.sequence = self.sorted(order)
        self.code: list[Instruction] = []
        self.local_slots: dict[tuple[str, int | None], Slot] = {}
        self.used_constants: dict[Slot, int] = {}
        self.sends: list[Send] = []
        self.sent: dict[str, int] = {}  # by the copy's name
        self.sent_of: dict[str, list[int]] = defaultdict(list)  # by the source's storage
        self.input_storages = {slot.storage for slot in calls.inputs}
        self.arrived: dict[tuple[int | None, int | None, int, bool], int] = {}
        self.constant_names = {slot.name for slot in constants}
        self.asked: set[str] = set()  # lazy slots that were made at home

    # Order.

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

    # Travel.

    def travels(self) -> dict[int, list[_Travel]]:
        """Return what is sent, by the place in the sequence behind which it can be."""
        wants: dict[tuple[str, int], dict[Slot, int]] = defaultdict(dict)
        rank = 0
        for slot, device, stale in self.readings():
            if device != slot.device and slot.storage not in self.constant_names:
                if stale:
                    raise ValueError(f"{slot.name}: read on another device behind its change")
                wants[slot.storage, device].setdefault(slot, rank)
                rank += 1
        position = {call.node: i for i, call in enumerate(self.sequence)}
        result: dict[int, list[_Travel]] = defaultdict(list)
        for (storage, device), found in wants.items():
            slots = {slot: rank for slot, rank in found.items() if not self.came(slot, device)}
            if not slots:
                continue
            first = min(slots.values())
            for slot in self.chosen(self.root[storage], slots):
                behind = max((position[node] for node in self.roots(slot)), default=-1)
                result[behind].append(_Travel(slots.get(slot, first), slot, device))
        return result

    def came(self, slot: Slot, device: int) -> bool:
        """Tell whether a slot is, or shows, an input that is given; note the device."""
        if not self.redoable(slot):
            return False
        while (maker := self.maker.get(slot.name)) is not None and maker.view:
            slot = next(read for read in reads_of(maker.run) if read.device is not None)
        if slot.name not in self.given:
            return False
        if (slot.name, device) not in self.local_slots:
            name = f"{slot.name}@{_place(device)}"
            copy = replace(slot, name=name, device=device, bytes=slot.dense, of=None)
            self.local_slots[slot.name, device] = copy
            self.given[slot.name].append(copy)
        return True

    def inputs(self, outputs: tuple[Any, ...]) -> Iterator[Slot]:
        """Yield the inputs; of those that are given, on the devices that read them."""
        read = {*slots_in(outputs), *(slot for one in self.code for slot in reads_of(one))}
        for slot in self.calls.inputs:
            if slot.name not in self.given or slot in read or slot.device is None:
                yield slot
            yield from self.given.get(slot.name, ())

    def readings(self) -> Iterator[tuple[Slot, int, bool]]:
        """Yield tensors with the device that they are read on, and whether they were changed."""
        changed: dict[str, set[str]] = {}  # storages, with what shows them as they are now

        def stale(slot: Slot) -> bool:
            return slot.storage in changed and slot.name not in changed[slot.storage]

        for call in self.sequence:
            for slot in reads_of(call.run):
                device = self.read_on(call, slot)
                if device is not None:
                    source = self.packed(slot, device)
                    yield source, device, stale(source)
            shown = {slot.name for slot in call.run.outs}
            changed.update(dict.fromkeys(call.changes, shown))
        for out, device in zip(self.calls.outputs, self.calls.promised, strict=True):
            for slot in slots_in(out):
                if slot.device is not None:
                    place = slot.device if device is None else device
                    source = self.packed(slot, place)
                    yield source, place, stale(source)

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

    def chosen(self, root: Slot, slots: Mapping[Slot, int]) -> list[Slot]:
        """Of the views of one storage that a device reads, return what goes there."""
        again = [slot for slot in slots if slot != root and self.redoable(slot)]
        fixed = [slot for slot in slots if slot != root and slot not in again]
        if root in slots or sum(slot.dense for slot in again) > root.dense:
            return [root, *fixed]
        return [*again, *fixed]

    def redoable(self, slot: Slot) -> bool:
        """Tell whether a view can be made again from a copy of its storage, or of what is given."""
        while slot.of is not None and slot.name not in self.given:
            maker = self.maker.get(slot.name)
            if maker is None or not maker.view or maker.run.target in _BY_STORAGE:
                return False
            slot = next(read for read in reads_of(maker.run) if read.device is not None)
        return True

    # Emission.

    def program(self, devices: int | None) -> Program:
        travels = self.travels()
        self.send(travels[-1])
        for i, call in enumerate(self.sequence):
            self.run(call)
            self.send(travels[i])
        outputs = tuple(
            mapped(out, functools.partial(self.output, device))
            for out, device in zip(self.calls.outputs, self.calls.promised, strict=True)
        )
        self.wait_at_home(self.kept(outputs))
        constants = tuple(self.used_constants.items())
        inputs = tuple(self.inputs(outputs))
        code = with_frees(inputs, constants, self.code, outputs)
        if devices is None:
            devices = 1 + max((slot.device or 0 for slot in self.root.values()), default=0)
            devices = max([devices, *(1 + call.run.device for call in self.calls.calls)])
        return Program(devices, inputs, constants, tuple(code), outputs, tuple(self.calls.table))

    def run(self, call: Call) -> None:
        def told(part: Any) -> Any:
            return self.local(part, self.read_on(call, part)) if isinstance(part, Slot) else part

        args, kwargs = mapped(call.run.args, told), mapped(call.run.kwargs, told)
        self.wait_at_home(call.changes)
        self.code.append(replace(call.run, args=args, kwargs=kwargs))

    def send(self, travels: list[_Travel]) -> None:
        for travel in sorted(travels, key=lambda travel: travel.rank):
            source = self.local(travel.slot, travel.slot.device)
            name = f"{source.name}@{_place(travel.device)}"
            out = replace(source, name=name, device=travel.device, bytes=source.dense, of=None)
            self.local_slots[source.name, travel.device] = out
            self.sent[name] = len(self.sends)
            self.sent_of[source.storage].append(len(self.sends))
            self.sends.append(Send(source, out))
            self.code.append(self.sends[-1])

    def kept(self, outputs: tuple[Any, ...]) -> set[str]:
        """Return the storages that the caller has behind the program, and may change."""
        pairs = zip(outputs, self.calls.promised, strict=True)
        given = [slot for out, device in pairs if device is not None for slot in slots_in(out)]
        return {slot.storage for slot in (*self.calls.inputs, *given)}

    def output(self, device: int | None, part: Any) -> Any:
        if not isinstance(part, Slot):
            return part
        return self.local(part, part.device if device is None else device)

    def local(self, slot: Slot, device: int | None) -> Slot:
        """Return a slot as it is on a device; there it is waited for, or made of what is there."""
        maker = self.maker.get(slot.name)
        if slot.device is None or (device == slot.device and slot not in self.constants):
            if maker is not None and maker.lazy and slot.name not in self.asked:
                self.asked.update(out.name for out in maker.run.outs)
                self.run(maker)
            return slot
        if slot in self.constants:
            return self.constant(slot, device)
        here = self.local_slots.get((slot.name, device))
        if here is None:
            assert maker is not None  # what cannot be made again was sent
            assert device is not None
            here = self.again(maker, slot, device)
        elif here.name in self.sent:
            self.wait(here, device)
        return here

    def wait(self, copy: Slot, device: int | None) -> None:
        """Have a device wait for a copy, if it did not for a later one on the same way."""
        assert device is not None
        number = self.sent[copy.name]
        source = self.sends[number].source
        way = source.device, copy.device, device, source.storage in self.input_storages
        if self.arrived.get(way, -1) < number:
            self.arrived[way] = number
            self.code.append(Wait(copy, device))

    def wait_at_home(self, storages: Collection[str]) -> None:
        """Have what is changed in place wait until it has been sent."""
        sent = [number for storage in storages for number in self.sent_of.get(storage, ())]
        for number in sorted(sent, reverse=True):
            send = self.sends[number]
            self.wait(send.out, send.source.device)

    def constant(self, slot: Slot, device: int | None) -> Slot:
        here = slot
        if device != HOST:
            here = replace(slot, name=f"{slot.name}@{_place(device)}", device=device)
        self.used_constants[here] = self.constants[slot]
        return here

    def again(self, maker: Call, slot: Slot, device: int) -> Slot:
        """Make a view on another device than its storage's, or pack what is there."""
        if maker.packs:
            (source,) = reads_of(maker.run)
            copy = self.local(source, device)
            if copy.of is None:  # it came, without gaps
                self.local_slots[slot.name, device] = copy
                return copy

        def told(part: Any) -> Any:
            return self.local(part, device) if isinstance(part, Slot) else part

        args, kwargs = mapped(maker.run.args, told), mapped(maker.run.kwargs, told)
        base = next(read for read in slots_in((args, kwargs)) if read.device is not None)

        def moved(part: Any) -> Any:
            if not isinstance(part, Slot):
                return part
            name = f"{part.name}@{_place(device)}"
            of = None if maker.packs else base.storage
            out = replace(part, name=name, device=device, of=of)
            self.local_slots[part.name, device] = out
            return out

        out = mapped(maker.run.out, moved)
        self.code.append(replace(maker.run, args=args, kwargs=kwargs, out=out, device=device))
        return self.local_slots[slot.name, device]


_BY_STORAGE = (torch.ops.aten.as_strided.default,)  # views of a storage, whatever shows it


def _host_scalar(slot: Slot) -> bool:
    return slot.device == HOST and slot.scalar


def _place(device: int | None) -> str:
    return "host" if device == HOST else str(device)


def with_frees(
    inputs: Sequence[Slot],
    constants: Sequence[tuple[Slot, int]],
    code: Sequence[Instruction],
    outputs: tuple[Any, ...],
) -> Iterator[Instruction]:
    """Yield code with what nobody reads any more freed right behind its last reader."""
    last: dict[Slot, int] = dict.fromkeys(inputs, -1)
    for i, instruction in enumerate(code):
        if isinstance(instruction, Run):
            last.update(dict.fromkeys(instruction.outs, i))
        elif isinstance(instruction, Send):
            last[instruction.out] = i
        last.update(dict.fromkeys(reads_of(instruction), i))
    kept = {*slots_in(outputs), *(slot for slot, _ in constants)}
    free: dict[int, list[Slot]] = defaultdict(list)
    for slot, i in last.items():
        if slot not in kept:
            free[i].append(slot)
    if free[-1]:
        yield Free(tuple(free[-1]))
    for i, instruction in enumerate(code):
        yield instruction
        if free[i]:
            yield Free(tuple(free[i]))
