# SPDX-License-Identifier: Apache-2.0
"""Lowering: calls with devices become a program, with the sends, waits and frees between them.

Paper 3.2.

A tensor is sent right behind its producer to each other device that reads it, in the order of the
first readers, and waited for right before the first reader there. What is read travels: a view if
that is all that is read, else its storage, and the views are made again there.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from baechi.torch.program.calls import Call, Calls
from baechi.torch.program.instructions import (
    HOST,
    Instruction,
    Send,
    Slot,
    Wait,
    mapped,
    reads_of,
    slots_in,
)
from baechi.torch.program.programs import Program, with_frees
from baechi.torch.program.travels import (
    Fetch,
    Fetching,
    Travel,
    Travels,
    Where,
    place_name,
)


def lower(
    calls: Calls,
    *,
    devices: int | None = None,
    order: Sequence[Hashable] | None = None,
    given: Collection[str] = (),
    fetching: Fetching | None = None,
) -> Program:
    """Return the program of the calls of a graph.

    ``order`` are nodes in the order in which the host asks for them, by default the graph's. What
    it leaves out comes when it is needed, or at the end; what needs something later waits for it.
    Inputs that are ``given`` come to every device that reads them: to another than their own as
    `name@device`. What ``fetching`` names comes from a store; what that computes comes last.
    """
    fetching = fetching or Fetching()
    if fetching.store is not None:
        late = {call.node: None for call in calls.calls if call.run.device == fetching.store}
        behind = [replace(c, behind=late.get(c.node, c.behind)) for c in calls.calls]
        calls = replace(calls, calls=behind)
    return _Lowering(Travels(calls, order, given, fetching)).program(devices)


class _Lowering:
    def __init__(self, travels: Travels) -> None:
        self.travels, self.calls, self.fetching = travels, travels.calls, travels.fetching
        self.maker, self.root, self.constants = travels.maker, travels.root, travels.constants
        self.code: list[Instruction] = []
        self.local_slots: dict[Where, Slot] = {}
        self.copies: Counter[tuple[str, int]] = Counter()  # that were fetched
        self.used_constants: dict[Slot, int] = {}
        self.sends: list[Send] = []
        self.open_puts: list[int] = []
        self.sent: dict[str, int] = {}  # by the copy's name
        self.sent_of: dict[str, list[int]] = defaultdict(list)  # by the source's storage
        self.input_storages = {slot.storage for slot in self.calls.inputs}
        self.arrived: dict[tuple[int | None, int | None, int, bool], int] = {}
        self.asked: set[str] = set()  # lazy slots that were made at home

    def inputs(self, outputs: tuple[Any, ...]) -> Iterator[Slot]:
        """Yield the inputs; of those that are given, on the devices that read them."""
        read = {*slots_in(outputs), *(slot for one in self.code for slot in reads_of(one))}
        for slot in self.calls.inputs:
            if slot.name not in self.travels.given or slot in read or slot.device is None:
                yield slot
            yield from self.travels.given.get(slot.name, ())

    def program(self, devices: int | None) -> Program:
        travels = self.travels.by_place()
        self.local_slots.update(self.travels.copies)
        self.send_behind(None, travels[-1])
        for i, call in enumerate(self.travels.sequence):
            self.run(call)
            self.send_behind(call.node, travels[i])
        self.end(self.open_puts)
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
            if not isinstance(part, Slot):
                return part
            device = self.travels.read_on(call, part)
            source = part if device is None else self.travels.packed(part, device)
            return self.local(part, device, self.travels.fetch_of(source, device, call.node))

        args, kwargs = mapped(call.run.args, told), mapped(call.run.kwargs, told)
        self.wait_at_home(call.changes)
        self.code.append(replace(call.run, args=args, kwargs=kwargs))

    def send_behind(self, node: Hashable | None, travels: list[Travel]) -> None:
        """Ask for what stands behind a call: what it made goes at once, the rest as planned."""
        for travel in sorted((t for t in travels if t.fetch is None), key=lambda t: t.place):
            self.send(travel)
        ends = {n: self.fetching.puts.get(self.sends[n].source.storage) for n in self.open_puts}
        planned: list[tuple[tuple[int, int], Travel | int]] = [
            ((one.moment, -1), n) for n, one in ends.items() if one and one.behind == node
        ]
        planned += [(travel.place, travel) for travel in travels if travel.fetch is not None]
        for _, one in sorted(planned, key=lambda pair: pair[0]):
            if isinstance(one, int):
                self.end([one])
            else:
                self.send(one)

    def end(self, puts: Sequence[int]) -> None:
        """Have devices wait for puts, behind which they have not what was put."""
        for number in list(puts):
            send = self.sends[number]
            self.open_puts.remove(number)
            self.code.append(Wait(send.out, send.source.device or 0))

    def send(self, travel: Travel) -> None:
        fetch, store = travel.fetch, self.fetching.store
        source = self.local_slots.get((travel.slot.name, store, None)) if fetch else None
        if source is None:
            source = self.local(travel.slot, travel.slot.device)
        name = f"{source.name}@{place_name(travel.device)}"
        if fetch is not None:
            name = f"{travel.slot.name}@{place_name(travel.device)}{self.suffix(travel)}"
        out = replace(source, name=name, device=travel.device, bytes=source.dense, of=None)
        self.local_slots[travel.slot.name, travel.device, fetch] = out
        self.sent[name] = len(self.sends)
        self.sent_of[source.storage].append(len(self.sends))
        kind = "fetch" if fetch else "put" if travel.device == store else "send"
        if kind == "put":
            self.open_puts.append(len(self.sends))
        self.sends.append(Send(source, out, kind))
        self.code.append(self.sends[-1])

    def suffix(self, travel: Travel) -> str:
        """Return what tells a copy that is fetched, and its views, from others of the storage."""
        self.copies[travel.slot.storage, travel.device] += 1
        return f".{self.copies[travel.slot.storage, travel.device]}"

    def kept(self, outputs: tuple[Any, ...]) -> set[str]:
        """Return the storages that the caller has behind the program, and may change."""
        pairs = zip(outputs, self.calls.promised, strict=True)
        given = [slot for out, device in pairs if device is not None for slot in slots_in(out)]
        return {slot.storage for slot in (*self.calls.inputs, *given)}

    def output(self, device: int | None, part: Any) -> Any:
        if not isinstance(part, Slot):
            return part
        place = part.device if device is None else device
        source = part if place is None else self.travels.packed(part, place)
        return self.local(part, place, self.travels.fetch_of(source, place, None))

    def local(self, slot: Slot, device: int | None, fetch: Fetch | None = None) -> Slot:
        """Return a slot as it is on a device; there it is waited for, or made of what is there."""
        slot = slot if fetch is None else self.travels.whole(slot)
        maker = self.maker.get(slot.name)
        home = device == slot.device and slot not in self.constants and fetch is None
        if slot.device is None or home:
            if maker is not None and maker.lazy and slot.name not in self.asked:
                self.asked.update(out.name for out in maker.run.outs)
                self.run(maker)
            return slot
        if slot in self.constants:
            return self.constant(slot, device)
        here = self.local_slots.get((slot.name, device, fetch))
        if here is None:
            assert maker is not None  # what cannot be made again was sent
            assert device is not None
            here = self.again(maker, slot, device, fetch)
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
            here = replace(slot, name=f"{slot.name}@{place_name(device)}", device=device)
        self.used_constants[here] = self.constants[slot]
        return here

    def again(self, maker: Call, slot: Slot, device: int, fetch: Fetch | None) -> Slot:
        """Make a view on another device than its storage's, or pack what is there."""
        if maker.packs:
            (source,) = reads_of(maker.run)
            copy = self.local(source, device, fetch)
            if copy.of is None:  # it came, without gaps
                self.local_slots[slot.name, device, fetch] = copy
                return copy

        def told(part: Any) -> Any:
            return self.local(part, device, fetch) if isinstance(part, Slot) else part

        args, kwargs = mapped(maker.run.args, told), mapped(maker.run.kwargs, told)
        base = next(read for read in slots_in((args, kwargs)) if read.device is not None)
        end = f".{base.name.rpartition('.')[2]}" if fetch is not None else ""

        def moved(part: Any) -> Any:
            if not isinstance(part, Slot):
                return part
            name = f"{part.name}@{place_name(device)}{end}"
            of = None if maker.packs else base.storage
            out = replace(part, name=name, device=device, of=of)
            self.local_slots[part.name, device, fetch] = out
            return out

        out = mapped(maker.run.out, moved)
        self.code.append(replace(maker.run, args=args, kwargs=kwargs, out=out, device=device))
        return self.local_slots[slot.name, device, fetch]
