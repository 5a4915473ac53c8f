# SPDX-License-Identifier: Apache-2.0
"""One rank's part of a call of the model, and of the backward that the caller begins behind it.

What the model returns goes to every rank, where one autograd function stands for the whole call. So
each rank computes the caller's loss from the same outputs, and its backward begins with gradients
that all of them have: whoever made an output takes its gradient, and the rest is as in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from baechi._core import InputError
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.ranks.averaging import Averaging
from baechi.torch.ranks.elsewhere import ElsewhereOutput
from baechi.torch.ranks.foreseen import Dry, Foreseen, Rehearsal
from baechi.torch.ranks.messages import Message, bytes_of, message_of
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.step import RankStep
from baechi.torch.ranks.transport import Transport
from baechi.torch.run.sent_tensors import SentTensors
from baechi.torch.run.step_order import Phase
from baechi.torch.run.step_program import StepProgram

_BACKWARD = (Phase.AGAIN, Phase.BACKWARD, Phase.BY_WEIGHTS)


def _no_loss(*_: Any) -> torch.Tensor:
    raise AssertionError("a call has no loss of its own")


def outputs_of(program: StepProgram) -> list[int]:
    """Return the nodes that make what the model returns, each once."""
    return list(dict.fromkeys(program.graph.outputs))


def outputs_for_all(program: StepProgram) -> set[int]:
    """Return the outputs that go to every rank: all, or numbers where a loss is among them."""
    outputs = program.graph.outputs
    stand_ins = [torch.empty(()) for _ in outputs]
    loss = getattr(program.exported.rebuild(stand_ins), "loss", None)
    return {o for o, t in zip(outputs, stand_ins, strict=True) if t is loss} or set(outputs)


class _CallRehearsal(Rehearsal):
    """A call with shapes only."""

    def __init__(self, dry: Dry, with_gradients: bool) -> None:
        super().__init__(dry, _no_loss)
        self._with_gradients = self._trains_inputs = with_gradients
        self._outside: dict[int, torch.Tensor] = {}  # outputs that are where the arguments are

    def forward(self) -> None:
        """Run the forward; take note of what is returned."""
        for part in self._program.order:
            if part.phase is Phase.FORWARD:
                self._run_part(part)
        for output in outputs_of(self._program):
            home = self._program.homes[output]
            value = self._read(0, output, home)
            if home is not None:
                key = self._program.graph.nodes[output].key
                message = message_of(value, False, (0, output, home, home), key)
                self.found.outputs[output] = message
            elif isinstance(value, torch.Tensor):
                self._outside[output] = value
        self.found.trains = set(self._trains)
        self.found.again = self._second.sent_again()

    def backward(self, wanted: Sequence[int]) -> None:
        """Run a backward that begins with the gradients of some outputs."""
        for output in outputs_of(self._program):
            if (0, output) in self._trains:
                home = self._program.homes[output]
                self._begin_at(
                    0, output, home, self._gradient_like(output) if output in wanted else None
                )
        for part in self._program.order:
            if part.phase in _BACKWARD:
                self._run_part(part)
        self.take_weights()
        self.found.of_inputs = set(self.of_inputs())

    def _gradient_like(self, output: int) -> torch.Tensor:
        if output in self._outside:
            return torch.empty_like(self._outside[output])
        message, where = self.found.outputs[output], self._dry.host.where
        return torch.empty(message.size, dtype=message.dtype, device=where)


def call_foreseen(with_gradients: bool) -> Callable[[Dry], Foreseen]:
    """Return what `rehearsed` runs of a call."""

    def run(dry: Dry) -> Foreseen:
        call = _CallRehearsal(dry, with_gradients)
        call.forward()
        return call.found

    return run


def backward_foreseen(wanted: Sequence[int]) -> Callable[[Dry], Foreseen]:
    """Return what `rehearsed` runs of a call and the backward behind it."""

    def run(dry: Dry) -> Foreseen:
        with torch.enable_grad():
            call = _CallRehearsal(dry, True)
            call.forward()
        call.backward(wanted)
        return call.found

    return run


class RankCall(RankStep):
    """A call of the model of which this process runs what is on one device."""

    def __init__(
        self,
        program: StepProgram,
        sent: SentTensors,
        tensors: list[torch.Tensor],
        foreseen: Foreseen,
        transport: Transport,
        number: int,
        *,
        with_gradients: bool,
    ) -> None:
        super().__init__(program, sent, [tensors], _no_loss, foreseen, transport)
        self._with_gradients = self._trains_inputs = with_gradients
        self._with_weights = True  # which get their gradients
        self.number = number  # of the call
        self.is_over = False  # its backward ran
        self.arguments = tensors  # whose shapes its backward is foreseen from
        self._mine: dict[int, Any] = {}  # outputs that are on this rank, or everywhere
        self._versions: dict[int, int] = {}  # of weights that are read here, by node

    @property
    def trained(self) -> set[int]:
        """The outputs that want a gradient."""
        return {o for o in outputs_of(self._program) if (0, o) in self._trains}

    def forward(self) -> None:
        """Run this rank's part of the forward; `failure` says why it could not."""
        self._note_versions()
        self._go_through((Phase.FORWARD,))
        if self.failure is None:
            self._try(len(self._program.order), self._take_outputs)
        self._transport.finish()

    def _note_versions(self) -> None:
        """Take note of the weights of this rank that one segment hands on, or a view of them.

        Autograd sees what becomes of a weight only in segments that read the weight itself.
        """
        nodes, readers = self._program.graph.nodes, self._program.readers
        handed = [i for i in self._program.of_weights if self._me in readers.get(i, ())]
        storages = {storage for index in handed for storage in nodes[index].storages}
        for index, weight in self._weights.items():
            here = self._program.homes[index] == self._me and weight.requires_grad
            if here and not storages.isdisjoint(nodes[index].storages):
                self._versions[index] = weight._version

    def check_weights(self) -> None:
        """Raise InputError where the backward would take a weight for what it was in the call."""
        for index, version in self._versions.items():
            if self._weights[index]._version != version:
                raise InputError(
                    f"{self._program.graph.nodes[index].target!r} was changed since this call of "
                    "the model, whose backward needs it as it was: call backward() before the "
                    "optimizer's step"
                )

    def _take_outputs(self) -> None:
        for output in outputs_of(self._program):
            home = self._program.homes[output]
            if home in (self._me, None):
                self._mine[output] = self._read(0, output, home)

    def exchanged(
        self, processes: Processes, for_all: set[int], home: torch.device
    ) -> dict[int, Any]:
        """Return what the call returns, by node, on the device of the caller.

        Outputs are copies: the caller may change them, and what the backward needs stays.
        """
        found: dict[int, Any] = {}
        leaving: list[tuple[Any, Message]] = []
        for output in outputs_of(self._program):
            message = self._foreseen.outputs.get(output)
            if message is None:
                found[output] = self._mine[output]
            elif output in for_all:
                found[output] = message.buffer(torch.device("cpu"))
                if message.source == self._me:
                    found[output].copy_(self._mine[output])
                if message.elements:
                    work = _broadcast(found[output], message.source, processes)
                    leaving.append((work, message))
            elif message.source == self._me:
                found[output] = self._mine[output].clone()
            else:
                found[output] = ElsewhereOutput.like(message, processes.number_of(message.source))
        for work, message in leaving:
            name = f"what the model returns of {self._said(message)}"
            processes.waited(work.wait, name, message.source)
        self._mine.clear()
        return {o: v if isinstance(v, ElsewhereOutput) else v.to(home) for o, v in found.items()}

    def backward(
        self,
        foreseen: Foreseen,
        gradients: Mapping[int, torch.Tensor | None],
        averaging: Averaging | None,
        *,
        with_weights: bool,
    ) -> None:
        """Run this rank's part of the backward; `failure` says why it could not."""
        self._foreseen, self._averaging = foreseen, averaging
        self._with_weights = with_weights
        if not with_weights:
            self._trained = [[] for _ in self._trained]
        self._try(0, lambda: self._begin_with(gradients))
        self._go_through(_BACKWARD)
        self._finish_backward()

    def _begin_with(self, gradients: Mapping[int, torch.Tensor | None]) -> None:
        here = self._devices[self._me]
        for output, gradient in gradients.items():
            home = self._program.homes[output]
            if home == self._me:
                taken = None if gradient is None else self._sent.fetched(gradient, here)
                self._begin_at(0, output, self._me, taken)
            elif home is None:  # every rank has it, and one begins
                self._begin_at(0, output, None, None if self._me else gradient)

    def _accumulate(
        self, weight: torch.Tensor, gradient: torch.Tensor, device: LogicalDevice | None
    ) -> None:
        if self._with_weights:
            super()._accumulate(weight, gradient, device)

    def gradients_of_inputs(self, processes: Processes) -> dict[int, torch.Tensor]:
        """Return what the arguments get of all ranks, by their number among the tensors."""
        mine = self.of_inputs()
        found = {}
        for index in sorted(self._foreseen.of_inputs):
            number = self._program.graph.nodes[index].target
            argument = self.arguments[number]
            gradient = mine.get(index)
            if gradient is None:
                gradient = torch.zeros_like(argument, requires_grad=False)
            total = processes.summed(gradient.detach().to("cpu"))
            found[number] = total.to(argument.device, argument.dtype)
        return found


def _broadcast(tensor: torch.Tensor, source: int, processes: Processes) -> Any:
    number, group = processes.number_of(source), processes.group_of(source, source)
    return distributed.broadcast(bytes_of(tensor), number, group=group, async_op=True)
