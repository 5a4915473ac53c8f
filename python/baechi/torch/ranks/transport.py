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
        self._expected: list[int] = []  # that are asked for once ranks have agreed
        self._open: dict[int, tuple[list[Any], Any]] = {}  # on their way: works and memory

    def send(self, number: int, *tensors: torch.Tensor) -> None:
        """Begin to send a tensor, or to add up those of a bucket: those of each type as one."""
        message, processes = self.messages[number], self.processes
        pairs = zip(tensors, message.layouts, strict=True)
        laid = [_laid_out(*pair, message) for pair in pairs]  # if it raises, `finish` sends others
        self._begin(number)
        self._ask()
        if not message.is_bucket:
            self._open[number] = self._posted(processes.group.send, laid[0], message.target)
            return
        kinds = dict.fromkeys(tensor.dtype for tensor in laid)
        lines = {k: torch.cat([_flat(t) for t in laid if t.dtype == k]) for k in kinds}
        begin = functools.partial(distributed.all_reduce, group=processes.alike, async_op=True)
        self._open[number] = [begin(line) for line in lines.values() if line.numel()], lines

    def expect(self, number: int) -> None:
        """Ask for a message."""
        self._begin(number)
        self._expected.append(number)
        if self.processes.asked is None:
            self._ask()

    def take(self, number: int) -> Any:
        """Return what was asked for, once it is there; of a bucket a list."""
        message, memory = self.messages[number], self._ended(number)
        if not message.is_bucket:
            stays = message.to_store or self.processes.device.type == "cpu"
            return memory if stays else memory.to(self.processes.device)
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
        self._ask()
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
        self._ask()
        for number in list(self._open):
            self._ended(number)
        self.begun = 0

    def forget(self) -> None:
        """Begin anew: ranks have not agreed on this run, and nothing was on its way."""
        self._expected.clear()
        self.begun = 0

    def _ask(self) -> None:
        """Ask for what is expected."""
        self.processes.agreed()
        for number in self._expected:
            message = self.messages[number]
            buffer = message.layouts[0].empty()
            self._open[number] = self._posted(self.processes.group.recv, buffer, message.source)
        self._expected.clear()

    def _posted(self, begin: Any, tensor: torch.Tensor, rank: int) -> tuple[list[Any], Any]:
        """Begin to send or receive a tensor, by a call that costs the asking thread little."""
        line = tensor if tensor.is_contiguous() else _flat(tensor)
        return [begin([line], rank, 0)] if line.numel() else [], tensor

    def _begin(self, number: int) -> None:
        assert number == self.begun
        self.begun += 1

    def _ended(self, number: int) -> Any:
        """Wait for a message; return its memory."""
        self._ask()
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
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.stride() != layout.strides:
        return layout.empty().copy_(tensor)
    return tensor if tensor.device.type == "cpu" else tensor.cpu()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
