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

    def __str__(self) -> str:
        return f"{self.slot!r} from rank {self.source} to rank {self.target}"


class Transport:
    """Sends and receives what one rank has to, run after run of its program."""

    def __init__(self, processes: Processes, messages: Sequence[Message]) -> None:
        self.processes, self.messages = processes, messages
        self.begun = 0  # of the messages, in their order, in this run
        self._open: dict[int, tuple[Any, torch.Tensor]] = {}  # on their way: work and memory

    def send(self, tensor: torch.Tensor, number: int) -> None:
        """Begin to send."""
        message = self._begin(number)
        host = _laid_out(tensor, message)
        self._let_go()
        if host.numel():
            work = distributed.isend(_bytes(host), message.target, group=self.processes.group)
            self._open[number] = work, host

    def expect(self, number: int) -> None:
        """Ask for a message."""
        message = self._begin(number)
        like = message.slot.like
        buffer = torch.empty_strided(like.shape, message.strides, dtype=like.dtype)
        work = None
        if buffer.numel():
            work = distributed.irecv(_bytes(buffer), message.source, group=self.processes.group)
        self._open[number] = work, buffer

    def take(self, number: int) -> torch.Tensor:
        """Return what was asked for, once it is there."""
        work, buffer = self._open.pop(number)
        message = self.messages[number]
        self._wait(work, message, message.source)
        return buffer.to(self.processes.device)

    def gone(self, number: int) -> None:
        """Wait until a message has left, so that its memory may be changed."""
        if number in self._open:
            work, _ = self._open.pop(number)
            message = self.messages[number]
            self._wait(work, message, message.target)

    def finish(self) -> None:
        """Begin what was not begun, without values, so that no rank waits for it; end all."""
        own = self.processes.rank
        while self.begun < len(self.messages):
            message = self.messages[self.begun]
            if message.source == own:
                like = message.slot.like
                nothing = torch.zeros(like.shape, dtype=like.dtype)
                self.send(nothing, self.begun)
            else:
                self.expect(self.begun)
        for number in list(self._open):
            work, _ = self._open.pop(number)
            message = self.messages[number]
            self._wait(work, message, message.target if message.source == own else message.source)
        self.begun = 0

    def _begin(self, number: int) -> Message:
        assert number == self.begun
        self.begun += 1
        return self.messages[number]

    def _wait(self, work: Any, message: Message, other: int) -> None:
        if work is not None:
            self.processes.waited(work.wait, f"{message}", f"rank {other}")

    def _let_go(self) -> None:
        """Forget what has left."""
        own = self.processes.rank
        for number, (work, _) in list(self._open.items()):
            if self.messages[number].source == own and work.is_completed():
                work.wait()
                del self._open[number]


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


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor as bytes."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)
