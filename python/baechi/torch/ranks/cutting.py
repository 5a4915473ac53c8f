# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a program: what its device does, and what it sends to other ranks and receives.

The program is the same list on every rank. A message sets out where its send stands; who receives
it asks for it at the same place of the list, and takes it where the wait stands. So the messages
of two ranks are asked for in the order in which they are sent, as transports without tags need.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from baechi._core import InputError
from baechi.torch.program import Free, Program, Run, Send, Slot, Wait, reductions
from baechi.torch.program.instructions import HOST, Instruction, mapped, reads_of, slots_in
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.transport import Bucket, Message, Transport

EVERYWHERE = -2  # of a value that every rank has: what it is called with, and numbers


@dataclass
class Part:
    """What one rank runs of a program, and its messages in the order in which it begins them."""

    program: Program
    inputs: list[int]  # the places of its inputs among those of the whole
    transport: Transport


def part_of(program: Program, rank: int, everywhere: Collection[str], processes: Processes) -> Part:
    """Return the part of a rank of the first replica; all have the inputs ``everywhere``."""
    return _Cut(program, rank, set(everywhere), processes).part()


class _Cut:
    def __init__(
        self, program: Program, rank: int, everywhere: set[str], processes: Processes
    ) -> None:
        self.program, self.rank = program, rank
        self.ranks = processes.replicas.of_parts(processes.replica)
        self.messages: list[Message | Bucket] = []
        self.transport = made = Transport(processes, self.messages)
        self.send_, self.expect, self.take, self.gone = made.send, made.expect, made.take, made.gone
        self.functions = {reductions.begin: made.reduce, reductions.end: made.reduced}
        self.bucket: dict[int, int] = {}  # its place among the messages
        self.table = (*program.table, self.send_, self.expect, self.take, self.gone)
        self.table += tuple(self.functions.values())
        self.where: dict[str, int] = {}  # the rank that has a value
        for slot in program.inputs:
            self.where[slot.name] = EVERYWHERE if slot.name in everywhere else slot.device or 0
        for slot, _ in program.constants:
            self.where[slot.name] = EVERYWHERE if slot.device in (HOST, None) else slot.device or 0
        self.code: list[Instruction] = []
        self.ways: dict[tuple[int | None, int | None], list[_Sent]] = {}
        self.number_of: dict[str, tuple[int, _Sent]] = {}  # by the copy's name

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
        made = Program(1, inputs, constants, tuple(self.code), outputs, self.table)
        return Part(made, there, self.transport)

    def is_here(self, slot: Slot) -> bool:
        return self.where[slot.name] in (EVERYWHERE, self.rank)

    def output(self, part: Any) -> Any:
        if not isinstance(part, Slot):
            return part
        return self.local(part) if self.is_here(part) else None

    def local(self, part: Any) -> Any:
        """Return a slot as this rank has it: on its one device, or on the host."""
        if not isinstance(part, Slot) or part.device in (None, HOST):
            return part
        return replace(part, device=0)

    def run(self, call: Run) -> None:
        reads = [self.where[slot.name] for slot in reads_of(call)]
        owners = {rank for rank in reads if rank != EVERYWHERE}
        numbers = bool(call.outs) and all(slot.device is None for slot in call.outs)
        shows = bool(call.outs) and all(slot.of is not None for slot in call.outs)
        if call.device == HOST or numbers or (shows and not owners):
            if len(owners) > 1:
                raise InputError(
                    f"{call.name} reads on the host what ranks {sorted(owners)} have: over ranks "
                    "that cannot be; compute it from the batch, or on a device"
                )
            owner = next(iter(owners), EVERYWHERE)
        else:
            owner = call.device
        if strange := next((r for r in owners if r != owner), None):
            raise InputError(
                f"{call.name} on rank {owner} reads a number that rank {strange} computes: over "
                "ranks no number may follow from values (item())"
            )
        self.where.update((slot.name, owner) for slot in call.outs)
        if owner in (EVERYWHERE, self.rank):
            device = HOST if call.device == HOST else 0
            parts = (call.args, call.kwargs, call.out)
            args, kwargs, out = (mapped(part, self.local) for part in parts)
            target = self.functions.get(call.target, call.target)
            if call.target is reductions.begin:
                self.bucket[args[0]] = len(self.messages)
                self.messages.append(Bucket(call.name, [self.gradient(slot) for slot in args[1:]]))
            if target is not call.target:
                args = self.bucket[args[0]], *args[1:]
            rest = {"args": args, "kwargs": kwargs, "out": out, "device": device}
            self.code.append(replace(call, target=target, **rest))

    def gradient(self, slot: Slot) -> Message:
        own = self.ranks[self.rank]
        if slot.like is None:
            raise InputError(f"{slot.name}: replicas cannot add up sparse gradients")
        return Message(slot, own, own)

    def send(self, send: Send) -> None:
        source, out = send.source, send.out
        owner = self.where[source.name]
        target = owner if out.device in (HOST, None) else int(out.device)
        self.where[out.name] = target
        way = self.ways.setdefault((source.device, out.device), [])
        sent = _Sent(send, None)
        if target != owner and owner != EVERYWHERE:
            message = Message(source, self.ranks[owner], self.ranks[target])
            if source.like is None:
                raise InputError(
                    f"{source.name} cannot be sent from rank {owner} to rank {target}: only plain "
                    "tensors can, not sparse ones"
                )
            if self.rank in (owner, target):
                sent = _Sent(send, len(self.messages))
                self.messages.append(message)
                if self.rank == owner:
                    self.call(self.send_, (self.local(source), sent.number), None, message)
                else:
                    self.call(self.expect, (sent.number,), None, message)
        elif self.is_here(out):
            self.code.append(Send(self.local(source), self.local(out)))
        self.number_of[out.name] = len(way), sent
        way.append(sent)

    def wait(self, wait: Wait) -> None:
        """Wait for a copy, and for all that were sent before it on the same way."""
        place, last = self.number_of[wait.slot.name]
        way = self.ways[last.send.source.device, wait.slot.device]
        leaves, own = wait.device != wait.slot.device, self.ranks[self.rank]
        for sent in way[: place + 1]:
            out = sent.send.out
            if sent.number is None:
                if sent is last and self.is_here(out):
                    device = HOST if wait.device == HOST else 0
                    self.code.append(Wait(self.local(out), device))
                continue
            message = self.messages[sent.number]
            if leaves and message.source == own and not sent.left:
                sent.left = True
                self.call(self.gone, (sent.number,), None, message)
            elif not leaves and message.target == own and not sent.arrived:
                sent.arrived = True
                self.call(self.take, (sent.number,), self.local(out), message)

    def call(
        self, function: Any, args: tuple[Any, ...], out: Slot | None, message: Message
    ) -> None:
        device = 0 if HOST not in [slot.device for slot in slots_in((args, out))] else HOST
        name = f"{function.__name__} {message}"
        self.code.append(Run(function, args, {}, out, device, name))


@dataclass
class _Sent:
    send: Send
    number: int | None  # of the message, if it is one of this rank's
    arrived: bool = False
    left: bool = False
