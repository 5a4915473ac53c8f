# SPDX-License-Identifier: Apache-2.0
"""Takes the messages of one program between ranks, by torch.distributed.

Nothing is tagged: the messages of two ranks are asked for in the order in which they are sent. No
call here waits but `take`, `gone` and `finish`. What was sent is kept until one of them has waited.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import distributed

from baechi.torch.program.cutting import Layout, Message
from baechi.torch.ranks.processes import Processes


class Transport:
    """Sends and receives what one rank has to, run after run of its program."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.messages: list[Message] = []
        self.begun = 0  # of the messages, in their order, in this run
        self._open: dict[int, tuple[list[Any], Any]] = {}  # on their way: works and memory

    def send(self, number: int, *tensors: torch.Tensor) -> None:
        """Begin to send a tensor, or to add up those of a bucket: those of each type as one."""
        message, processes = self.messages[number], self.processes
        pairs = zip(tensors, message.layouts, strict=True)
        laid = [_laid_out(*pair, message) for pair in pairs]  # if it raises, `finish` sends others
        self._begin(number)
        begin: Any
        if message.is_bucket:
            kinds = dict.fromkeys(tensor.dtype for tensor in laid)
            lines = {k: torch.cat([_flat(t) for t in laid if t.dtype == k]) for k in kinds}
            begin = functools.partial(distributed.all_reduce, group=processes.alike, async_op=True)
        else:
            lines = {torch.uint8: _flat(laid[0]).view(torch.uint8)}
            begin = functools.partial(distributed.isend, dst=message.target, group=processes.group)
        works = [begin(line) for line in lines.values() if line.numel()]
        self._open[number] = works, lines

    def expect(self, number: int) -> None:
        """Ask for a message."""
        message = self._begin(number)
        buffer = message.layouts[0].empty()
        line, group = _flat(buffer).view(torch.uint8), self.processes.group
        works = [distributed.irecv(line, message.source, group=group)] if line.numel() else []
        self._open[number] = works, buffer

    def take(self, number: int) -> Any:
        """Return what was asked for, once it is there; of a bucket a list."""
        message, memory = self.messages[number], self._ended(number)
        if not message.is_bucket:
            return memory if message.to_store else memory.to(self.processes.device)
        found: list[torch.Tensor] = []
        for layout in message.layouts:
            made = layout.empty()
            line = memory[layout.dtype]
            _flat(made).copy_(line[: made.numel()])
            memory[layout.dtype] = line[made.numel() :]
            found.append(made.to(self.processes.device))
        return found

    def gone(self, number: int) -> None:
        """Wait until a message has left, so that its memory may be changed."""
        if number in self._open:
            self._ended(number)

    def finish(self) -> None:
        """Begin what was not begun, without values, so that no rank waits for it; end all."""
        while self.begun < len(self.messages):
            message = self.messages[self.begun]
            if message.source == self.processes.rank:
                self.send(self.begun, *(layout.empty().zero_() for layout in message.layouts))
            else:
                self.expect(self.begun)
        for number in list(self._open):
            self._ended(number)
        self.begun = 0

    def _begin(self, number: int) -> Message:
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


def _laid_out(tensor: torch.Tensor, layout: Layout, message: Message) -> torch.Tensor:
    """Return a tensor on the host as whoever receives it has it: itself, or a copy."""
    if (tuple(tensor.shape), tensor.dtype) != (layout.shape, layout.dtype):
        raise RuntimeError(
            f"{message} is of shape {tuple(tensor.shape)} and {tensor.dtype}, and was traced with "
            f"{layout.shape} and {layout.dtype}"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.cpu() if plain.stride() == layout.strides else layout.empty().copy_(plain)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
