# SPDX-License-Identifier: Apache-2.0
"""Cutting a program: the part of one rank, with messages for what it gets from and gives to others.

Beyond the paper.

The program is the same list on every rank. A message sets out where its send stands; who receives
it asks for it at the same place of the list, and takes it where the wait stands. So the messages
of two ranks are asked for in the order in which they are sent, as transports without tags need.

A store is every rank's own: what is put lies where it was made, or where an output is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from baechi._core import InputError
from baechi.torch.capture.keys import is_random
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
from baechi.torch.program.parts import begin_bucket, end_bucket
from baechi.torch.program.programs import Program

EVERYWHERE = -2  # of a value that every rank has: what it is called with, and numbers


class Layout(NamedTuple):
    """How a tensor lies in a message: as a copy on another device, without gaps."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(like: torch.Tensor) -> Layout:
        """Return that of a tensor that was traced."""
        shown = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        return Layout(tuple(like.shape), tuple(torch.empty_like(shown).stride()), like.dtype)

    def empty(self) -> torch.Tensor:
        """Return memory for it on the host."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)

    @property
    def bytes(self) -> int:
        """How large it is."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Message:
    """A tensor that goes from one rank to another, maybe to its store.

    Or those of a bucket, from a rank to itself: the same part of other replicas adds up its own.
    """

    name: str
    layouts: Sequence[Layout]
    source: int
    target: int
    to_store: bool = False

    @property
    def is_bucket(self) -> bool:
        """Tell whether replicas add up what is in it."""
        return self.source == self.target

    @property
    def bytes(self) -> int:
        """How large it is."""
        return sum(layout.bytes for layout in self.layouts)

    def other(self, own: int) -> str:
        """Say who is waited for."""
        rank = self.target if self.source == own else self.source
        return "another replica" if self.is_bucket else f"rank {rank}"

    def __str__(self) -> str:
        ends = "" if self.is_bucket else f" from rank {self.source} to rank {self.target}"
        return f"{self.name}{ends}"


class Ranks(NamedTuple):
    """The ranks of one replica."""

    of_device: Mapping[int, int]  # the rank that runs each device's part
    store: int | None = None  # the device that each rank has one of


class Part(NamedTuple):
    """What one rank runs of a program: on its device, and on its store if there are any."""

    program: Program
    inputs: list[int]  # the places of its inputs among those of the whole
    owners: list[int]  # the device that has each output of the whole, or EVERYWHERE


def part_of(
    program: Program, device: int, where: Mapping[str, int], ranks: Ranks, transport: Any
) -> Part:
    """Return the part of a device.

    Args:
        program: The whole.
        device: Whose part.
        where: The device that each input belongs to, or EVERYWHERE, and the one whose store an
            output comes to.
        ranks: Who runs the parts.
        transport: Whose calls the part has, and which is told of its messages; they are numbered in
            the order in which they begin.

    """
    return _Cut(program, device, where, ranks, transport).part()


class _Cut:
    def __init__(
        self,
        program: Program,
        own: int,
        where: Mapping[str, int],
        ranks: Ranks,
        transport: Any,
    ) -> None:
        self.program, self.own, self.ranks, self.transport = program, own, ranks, transport
        self.wanted, self.where = where, dict(where)
        names = "send", "expect", "take", "gone"
        self.calls = {name: getattr(transport, name) for name in names}  # a text knows them by id
        self.functions = {begin_bucket: self.calls["send"], end_bucket: self.calls["take"]}
        self.bucket: dict[int, int] = {}  # its place among the messages
        for slot, _ in program.constants:
            shared = slot.device in (HOST, None, ranks.store)
            self.where[slot.name] = EVERYWHERE if shared else slot.device or 0
        self.code: list[Instruction] = []
        self.lanes = program.lanes()
        self.ways: dict[tuple[int | None, int | None, int], list[_Sent]] = {}
        self.number_of: dict[str, tuple[int, _Sent]] = {}  # by the copy's name
        self.shown: dict[str, str] = {}  # by the name of a copy to where it is: what it shows

    def part(self) -> Part:
        for one in self.program.code:
            if isinstance(one, Run):
                self.run(one)
            elif isinstance(one, Send):
                self.send(one)
            elif isinstance(one, Wait):
                self.wait(one)
            elif here := tuple(self.local(slot) for slot in one.slots if self.is_here(slot)):
                self.code.append(Free(here))
        there = [i for i, slot in enumerate(self.program.inputs) if self.is_here(slot)]
        outputs = tuple(mapped(out, self.output) for out in self.program.outputs)
        inputs = tuple(self.local(self.program.inputs[i]) for i in there)
        constants = tuple(
            (self.local(slot), i) for slot, i in self.program.constants if self.is_here(slot)
        )
        devices = 1 if self.ranks.store is None else 2
        table = (*self.program.table, *self.calls.values())
        made = Program(devices, inputs, constants, tuple(self.code), outputs, table)
        names = [out.name if isinstance(out, Slot) else "" for out in self.program.outputs]
        return Part(made, there, [self.where.get(name, EVERYWHERE) for name in names])

    def is_here(self, slot: Slot) -> bool:
        return self.where[slot.name] in (EVERYWHERE, self.own)

    def output(self, part: Any) -> Any:
        if not isinstance(part, Slot):
            return part
        here, wanted = self.where[part.name], self.wanted.get(part.name)
        if part.device == self.ranks.store is not None and wanted not in (None, here):
            raise InputError(
                f"{part.name} lies in the host's memory of rank {here}, and rank {wanted} needs it "
                "there: plan with another seed, or place the model in one process"
            )
        return self.local(part) if self.is_here(part) else None

    def local(self, part: Any) -> Any:
        """Return a slot as this rank has it."""
        if not isinstance(part, Slot) or part.device is None:
            return part
        of = self.shown.get(part.storage, part.of)
        return replace(part, device=self.here(part.device), of=of)

    def here(self, device: int) -> int:
        """Return a device as this rank has it: its own one, its store, or the host."""
        return HOST if device == HOST else int(device == self.ranks.store)

    def run(self, call: Run) -> None:
        reads = [self.where[slot.name] for slot in reads_of(call)]
        owners = {device for device in reads if device != EVERYWHERE}
        numbers = bool(call.outs) and all(slot.device is None for slot in call.outs)
        shows = bool(call.outs) and all(slot.of is not None for slot in call.outs)
        if call.device in (HOST, self.ranks.store) or numbers or (shows and not owners):
            if len(owners) > 1:
                raise InputError(
                    f"{call.name} reads on the host what ranks {sorted(owners)} have: over ranks "
                    "that cannot be; compute it from the batch, or on a device"
                )
            owner = next(iter(owners), 0 if is_random(call) else EVERYWHERE)
        else:
            owner = call.device
        if strange := owners - {owner}:
            raise InputError(
                f"{call.name} on rank {owner} reads a number that rank {min(strange)} computes: "
                "over ranks no number may follow from values (item())"
            )
        self.where.update((slot.name, owner) for slot in call.outs)
        if owner in (EVERYWHERE, self.own):
            parts = (call.args, call.kwargs, call.out)
            args, kwargs, out = (mapped(part, self.local) for part in parts)
            target = self.functions.get(call.target, call.target)
            if call.target is begin_bucket:
                self.bucket[args[0]] = self.begun(call.name, call.args[1:], self.own, self.own)
            if target is not call.target:
                args = self.bucket[args[0]], *args[1:]
            self.code.append(Run(target, args, kwargs, out, self.here(call.device), call.name))

    def begun(self, name: str, slots: Sequence[Slot], *ends: int, to_store: bool = False) -> int:
        """Return the number of a new message."""
        source, target = (self.ranks.of_device[device] for device in ends)
        if strange := next((slot for slot in slots if slot.like is None), None):
            raise InputError(
                f"{strange!r} cannot be a message from rank {source} to rank {target}: only plain "
                "tensors can, not sparse ones"
            )
        layouts = [Layout.of(slot.like) for slot in slots]
        self.transport.messages.append(Message(name, layouts, source, target, to_store))
        return len(self.transport.messages) - 1

    def send(self, send: Send) -> None:
        source, out, store = send.source, send.out, self.ranks.store
        owner = self.where[source.name]
        if out.device in (HOST, None, store):
            target = self.where.get(out.name, owner)
        else:
            target = int(out.device)
        self.where[out.name] = target
        way = self.way(send)
        sent = _Sent(send, None)
        if self.own == owner and source.device == store is not None:
            self.arrived(source, is_sent=target != owner)
        if target != owner and owner != EVERYWHERE:
            if self.own in (owner, target):
                to_store = out.device == store
                number = self.begun(f"{source!r}", [source], owner, target, to_store=to_store)
                sent = _Sent(send, number)
                if self.own == owner:
                    self.call("send", number, self.local(source))
                else:
                    self.call("expect", number)
        elif self.is_here(out):
            here = self.local(source)
            if out.device is not None and here.device == self.here(out.device):
                self.shown[out.name] = here.storage
            self.code.append(Send(here, self.local(out), send.kind))
        self.number_of[out.name] = len(way), sent
        way.append(sent)

    def way(self, send: Send) -> list[_Sent]:
        """Return what is sent in one order, so that who waits for one need not for those before."""
        ends = send.source.device, send.out.device
        return self.ways.setdefault((*ends, self.lanes[send.out.name]), [])

    def arrived(self, slot: Slot, *, is_sent: bool) -> None:
        """Have what was put be there: a fetch waits for that itself, but for no message."""
        if slot.name in self.number_of:
            _, put = self.number_of[slot.name]
            if is_sent or put.number is not None:
                self.wait(Wait(slot, slot.device or 0))

    def wait(self, wait: Wait) -> None:
        """Wait for a copy, and for all that were sent before it on the same way."""
        place, last = self.number_of[wait.slot.name]
        way = self.way(last.send)
        leaves, own = wait.device != wait.slot.device, self.ranks.of_device[self.own]
        copied: Slot | None = None  # the last copy on this rank that is waited for
        for sent in way[: place + 1]:
            out, number, known = sent.send.out, sent.number, leaves in sent.known
            sent.known.add(leaves)
            if number is None:
                if self.is_here(out) and (sent is last or not known):
                    copied = out
                continue
            message = self.transport.messages[number]
            if leaves and message.source == own and not known:
                self.call("gone", number)
            elif not leaves and message.target == own and not known:
                self.call("take", number, out=self.local(out))
        if copied is not None:
            self.code.append(Wait(self.local(copied), self.here(wait.device)))

    def call(self, name: str, number: int, *args: Slot, out: Slot | None = None) -> None:
        device = next((slot.device or 0 for slot in slots_in((args, out))), 0)
        title = f"{name} {self.transport.messages[number]}"
        self.code.append(Run(self.calls[name], (number, *args), {}, out, device, title))


@dataclass
class _Sent:
    send: Send
    number: int | None  # of the message, if it is one of this rank's
    known: set[bool] = field(default_factory=set)  # whether it has left (True), or has arrived
