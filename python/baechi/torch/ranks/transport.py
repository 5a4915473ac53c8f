# SPDX-License-Identifier: Apache-2.0
"""Takes the messages of one program between ranks, by torch.distributed.

Nothing is tagged: the messages of two ranks are asked for in the order in which they are sent. No
call here waits but `take`, `gone` and `finish`. What was sent is let go of once it has left.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from baechi.torch.program import Slot
from baechi.torch.ranks.processes import Processes


@dataclass(frozen=True)
class Message:
    """A tensor that goes from one rank to another."""

    slot: Slot  # what is sent
    source: int
    target: int

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        """The strides of a copy on another device: those that were traced, without gaps."""
        like = self.slot.like
        shown = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        return tuple(torch.empty_like(shown).stride())

    def other(self, own: int) -> str:
        """Say who is waited for."""
        return f"rank {self.target if self.source == own else self.source}"

    def __str__(self) -> str:
        return f"{self.slot!r} from rank {self.source} to rank {self.target}"


@dataclass(frozen=True)
class Bucket:
    """Gradients that those who run the same part of other replicas add up with this rank."""

    name: str
    gradients: Sequence[Message]  # from this rank to itself
    source = target = slot = None

    def other(self, _: int) -> str:
        """Say who is waited for."""
        return "another replica"

    def __str__(self) -> str:
        return self.name


class Transport:
    """Sends and receives what one rank has to, run after run of its program."""

    def __init__(self, processes: Processes, messages: Sequence[Message | Bucket]) -> None:
        self.processes, self.messages = processes, messages
        self.begun = 0  # of the messages, in their order, in this run
        self._open: dict[int, tuple[list[Any], Any]] = {}  # on their way: works and memory

    def send(self, tensor: torch.Tensor, number: int) -> None:
        """Begin to send."""
        message: Any = self.messages[number]
        host = _laid_out(tensor, message)  # if it raises, `finish` sends another
        self._begin(number)
        self._let_go()
        if host.numel():
            work = distributed.isend(_bytes(host), message.target, group=self.processes.group)
            self._open[number] = [work], host

    def expect(self, number: int) -> None:
        """Ask for a message."""
        message = self._begin(number)
        like = message.slot.like
        buffer = torch.empty_strided(like.shape, message.strides, dtype=like.dtype)
        works = []
        if buffer.numel():
            works.append(
                distributed.irecv(_bytes(buffer), message.source, group=self.processes.group)
            )
        self._open[number] = works, buffer

    def take(self, number: int) -> torch.Tensor:
        """Return what was asked for, once it is there."""
        return self._ended(number).to(self.processes.device)

    def gone(self, number: int) -> None:
        """Wait until a message has left, so that its memory may be changed."""
        if number in self._open:
            self._ended(number)

    def reduce(self, number: int, *gradients: torch.Tensor) -> None:
        """Begin to add up the gradients of a bucket over replicas: those of each type as one."""
        bucket: Any = self.messages[number]
        lines: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient, one in zip(gradients, bucket.gradients, strict=True):
            lines.setdefault(gradient.dtype, []).append(_flat(_laid_out(gradient, one)))
        sums = {kind: torch.cat(line) for kind, line in lines.items()}
        self._begin(number)
        group, filled = self.processes.alike, [s for s in sums.values() if s.numel()]
        works = [distributed.all_reduce(one, group=group, async_op=True) for one in filled]
        self._open[number] = works, sums

    def reduced(self, number: int) -> list[torch.Tensor]:
        """Return the sums of a bucket's gradients, once they are there."""
        bucket: Any = self.messages[number]
        sums, found = self._ended(number), []
        begun = dict.fromkeys(sums, 0)
        for one in bucket.gradients:
            like = one.slot.like
            made = torch.empty_strided(like.shape, one.strides, dtype=like.dtype)
            first = begun[like.dtype]
            begun[like.dtype] += made.numel()
            _flat(made).copy_(sums[like.dtype][first : first + made.numel()])
            found.append(made.to(self.processes.device))
        return found

    def finish(self) -> None:
        """Begin what was not begun, without values, so that no rank waits for it; end all."""
        own = self.processes.rank
        while self.begun < len(self.messages):
            message = self.messages[self.begun]
            if isinstance(message, Bucket):
                self.reduce(self.begun, *(_zeros(one) for one in message.gradients))
            elif message.source == own:
                self.send(_zeros(message), self.begun)
            else:
                self.expect(self.begun)
        for number in list(self._open):
            self._ended(number)
        self.begun = 0

    def _begin(self, number: int) -> Any:
        assert number == self.begun
        self.begun += 1
        return self.messages[number]

    def _ended(self, number: int) -> Any:
        """Wait for a message; return its memory."""
        works, memory = self._open.pop(number)
        message = self.messages[number]
        for work in works:
            self.processes.waited(work.wait, f"{message}", message.other(self.processes.rank))
        return memory

    def _let_go(self) -> None:
        """Forget what has left."""
        own = self.processes.rank
        for number, (works, _) in list(self._open.items()):
            if self.messages[number].source == own and works[0].is_completed():
                works[0].wait()
                del self._open[number]


def _zeros(message: Message) -> torch.Tensor:
    return torch.zeros(message.slot.like.shape, dtype=message.slot.like.dtype)


def _laid_out(tensor: torch.Tensor, message: Message) -> torch.Tensor:
    """Return a tensor on the host as whoever receives it has it: itself, or a copy."""
    like = message.slot.like
    if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
        raise RuntimeError(
            f"{message} is of shape {tuple(tensor.shape)} and {tensor.dtype}, and was traced with "
            f"{tuple(like.shape)} and {like.dtype}"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.stride() == message.strides:
        return plain.cpu()
    made = torch.empty_strided(like.shape, message.strides, dtype=like.dtype)
    return made.copy_(plain)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor).view(torch.uint8)
