# SPDX-License-Identifier: Apache-2.0
"""Takes messages between ranks, by torch.distributed.

Nothing is tagged, as NCCL knows no tags: the messages of a pair of ranks are received in the order
in which they are sent. No call here waits but `Arriving.wait` and `Transport.finish`.
What was sent is let go of once it has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.ranks.messages import Message, bytes_of, laid_out
from baechi.torch.ranks.outgoing import Outgoing, Sent
from baechi.torch.ranks.processes import Processes
from baechi.torch.run.communication import Arrival

Bring = Callable[[torch.Tensor, LogicalDevice], torch.Tensor]  # from the host to a device


class Arriving(Arrival):
    """A message that was asked for."""

    __slots__ = ("_is_there", "_message", "_transport", "_work")

    def __init__(self, transport: Transport, message: Message) -> None:
        where = transport.device.torch_device if transport.is_direct else torch.device("cpu")
        super().__init__(message.buffer(where), None, None, None)
        self._transport = transport
        self._message = message
        self._work = transport.received(self.tensor, message)
        self._is_there = False

    def wait(self) -> torch.Tensor:
        """Return the tensor, once it is there."""
        if not self._is_there:
            self.finish()
            self.tensor = self._transport.brought(self.tensor)
            self._is_there = True
        return self.tensor

    def finish(self) -> None:
        """Wait until it is there, for whoever wants it or not."""
        if self._work is not None:
            self._transport.wait_for(self._work, self._message, self._message.source)
            self._work = None
        self._transport.open.pop(id(self), None)


class Transport:
    """Sends and receives what one rank has to."""

    def __init__(self, processes: Processes, device: LogicalDevice, bring: Bring) -> None:
        self.device = device
        self.is_direct = processes.is_direct
        self._processes = processes
        self._bring = bring
        self.outgoing = Outgoing(processes.is_direct)
        self.open: dict[int, Arriving] = {}  # asked for, and not waited for yet
        self.messages = 0  # that were sent so far
        self.bytes = 0
        self.name_of: Callable[[Message], str] = repr  # for errors

    def send(self, tensor: torch.Tensor, message: Message, *, changes: bool) -> None:
        """Begin to send; `changes`: the memory may be written to before `finish`."""
        if message.elements == 0:
            return
        tensor = laid_out(tensor, message, changes=changes)
        if not self.is_direct:
            tensor = tensor.to("cpu")
        flat = bytes_of(tensor)
        group = self._processes.group_of(message.source, message.target)
        work = distributed.isend(flat, self._processes.number_of(message.target), group=group)
        self.outgoing.add(Sent(work, flat, message))
        self.messages += 1
        self.bytes += flat.numel()

    def received(self, buffer: torch.Tensor, message: Message) -> Any:
        """Begin to receive into a buffer; None where there is nothing to come."""
        if message.elements == 0:
            return None
        group = self._processes.group_of(message.source, message.target)
        number = self._processes.number_of(message.source)
        return distributed.irecv(bytes_of(buffer), number, group=group)

    def receive(self, message: Message) -> Arriving:
        """Ask for a message; those of a pair of ranks in the order in which they are sent."""
        arriving = Arriving(self, message)
        self.open[id(arriving)] = arriving
        return arriving

    def skip(self, messages: deque[Message]) -> None:
        """Send and receive what nobody will look at, so that other ranks need not wait for it."""
        while messages:
            message = messages.popleft()
            if message.target == self.device.index:
                self.receive(message)
            else:
                nothing = message.buffer(self.device.torch_device).zero_()
                self.send(nothing, message, changes=False)

    def brought(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return what came where this rank computes."""
        if buffer.device == self.device.torch_device:
            return buffer
        return self._bring(buffer, self.device)

    def wait_for(self, work: Any, message: Message, rank: int) -> None:
        """Wait for a message that another rank sends or receives."""
        self._processes.waited(work.wait, self.name_of(message), rank)

    def finish(self) -> None:
        """Wait until all has left and arrived, so that its memory may be used again."""
        for arriving in list(self.open.values()):
            arriving.finish()
        for sent in self.outgoing.rest():
            self.wait_for(sent.work, sent.message, sent.message.target)
