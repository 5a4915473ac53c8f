# SPDX-License-Identifier: Apache-2.0
"""One rank's part of a step of micro-batches.

Every rank goes through the same list. It runs the parts on its own device; at those of the others
it asks for what they send to it. So a rank asks for messages in the order in which another sends
them, and whatever is waited for stands earlier in the list: the first part that is not over can
always go on.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from baechi.torch.ranks.averaging import Averaging
from baechi.torch.ranks.errors import RankError
from baechi.torch.ranks.foreseen import Foreseen
from baechi.torch.ranks.messages import Message
from baechi.torch.ranks.processes import Failure
from baechi.torch.ranks.second_runs import SecondRunsHere
from baechi.torch.ranks.transport import Arriving, Transport
from baechi.torch.run.micro_batches import Loss, Step
from baechi.torch.run.placed_runs import StepRuns
from baechi.torch.run.sent_tensors import SentTensors
from baechi.torch.run.step_order import Part, Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.segments import Segment


class RankStep(Step):
    """A step of which this process runs what is on one device."""

    def __init__(
        self,
        program: StepProgram,
        sent: SentTensors,
        batches: Sequence[list[torch.Tensor]],
        loss: Loss,
        foreseen: Foreseen,
        transport: Transport,
        averaging: Averaging | None = None,
        scaler: Any = None,
    ) -> None:
        super().__init__(program, sent, batches, loss, scaler)
        self._foreseen = foreseen
        self._transport = transport
        self._averaging = averaging
        self._me = transport.device.index
        self._second: SecondRunsHere = SecondRunsHere(
            program, self._weights, StepRuns(sent), foreseen, transport.device, self._send_again
        )
        self._trains = set(foreseen.trains)
        self._to_begin: deque[Message] = deque()  # of the part that runs, before it runs
        self._to_send: deque[Message] = deque()  # by the part itself
        self._weight_gradients: list[tuple[int, Arriving]] = []  # of those that others read, too
        self.part: Part | None = None  # that runs
        self._phases: Collection[Phase] = ()  # that are run
        self.failure: Failure | None = None  # why this rank could not go on

    def run(self) -> torch.Tensor:
        """Run this rank's part; returns the mean loss where it is, elsewhere what is like it.

        A rank that fails goes on sending what others wait for, without values, so that all come to
        the end of the step, where they are told.
        """
        self._go_through(tuple(Phase))
        self._finish_backward()
        if self._program.loss_on == self._me and self.failure is None:
            return self._mean()
        shape, dtype = self._foreseen.loss
        return torch.zeros(shape, dtype=dtype)

    def _go_through(self, phases: Collection[Phase]) -> None:
        """Run this rank's part of some phases, and take part in what is sent in them."""
        self._transport.name_of = self._said
        self._phases = phases
        for position, part in enumerate(self._program.order):
            if part.phase not in phases or not self._concerns(part):
                continue
            self.part = part
            self._note_messages(part)
            if self.failure is None:
                self._try(position, functools.partial(self._run_with_messages, part))
            self._transport.skip(self._to_begin)
            self._transport.skip(self._to_send)
            if self._averaging is not None:
                self._averaging.behind(position)

    def _concerns(self, part: Part) -> bool:
        """Whether this rank runs a part, takes numbers from it, or may send or receive in it."""
        if part in self._foreseen.messages:
            return True
        if part.phase is Phase.LOSS:
            return self._program.loss_on == self._me
        segment = self._program.segments[part.segment]
        if segment.device in (self._me, None):
            return True
        numbers = not self._foreseen.numbers.keys().isdisjoint(segment.makes)
        return part.phase is Phase.FORWARD and (segment.only_looks or numbers)

    def _finish_backward(self) -> None:
        """Have all gradients where their weights are, the mean of those of all replicas."""
        if self.failure is None:
            self._try(len(self._program.order), self._take_weight_gradients)
        self._transport.finish()
        if self._averaging is not None:
            self._averaging.finish(self._part_at)

    def _try(self, position: int, call: Callable[[], None]) -> None:
        try:
            call()
        except RankError:  # then nobody listens
            raise
        except Exception as error:
            self.failure = Failure(position, self.said(), error)

    def _run_with_messages(self, part: Part) -> None:
        self._begin_part()
        self._run_part(part)
        if self._to_send:
            raise RuntimeError(f"{self._said(self._to_send[0])} was foreseen, and there is none")

    def _take_weight_gradients(self) -> None:
        for index, arriving in self._weight_gradients:
            self._accumulate(self._weights[index], arriving.wait(), self._devices[self._me])

    def _run_part(self, part: Part) -> None:
        """Run a part if it is this rank's, or everybody's."""
        if part.phase is Phase.LOSS:
            if self._program.loss_on == self._me:
                super()._run_part(part)
            return
        segment = self._program.segments[part.segment]
        if segment.only_looks:
            if part.phase is Phase.FORWARD:
                self._look(segment, part.micro_batch)
        elif segment.device in (self._me, None):
            super()._run_part(part)
        elif part.phase is Phase.FORWARD:
            self._take_numbers(segment, part.micro_batch)

    def _look(self, segment: Segment, m: int) -> None:
        """Take the numbers that follow from shapes, which are known everywhere."""
        for read in segment.reads:
            home = self._program.homes[read]
            if home in (self._me, None) or self._program.graph.nodes[read].is_host:
                self._read(m, read, self._program.read_on(segment, read))
        self._take_numbers(segment, m)

    def _take_numbers(self, segment: Segment, m: int) -> None:
        for index in segment.makes:
            if index in self._foreseen.numbers:
                self._made(m, index, self._foreseen.numbers[index])

    # Messages

    def _note_messages(self, part: Part) -> None:
        """Take note of what a part has for this rank, and of what it sends from here."""
        for message in self._foreseen.messages.get(part, ()):
            is_weight = message.value in self._weights and not message.is_gradient
            if message.source == self._me and not is_weight:
                self._to_send.append(message)
            elif self._me in (message.source, message.target):
                self._to_begin.append(message)

    def _begin_part(self) -> None:
        """Send the weights that a part reads from here, and ask for what it sends to here."""
        while self._to_begin:
            message = self._to_begin[0]
            if message.target == self._me:
                self._ask_for(message)
            else:
                weight = self._weights[message.value].data
                self._transport.send(weight, message, changes=True)
            self._to_begin.popleft()

    def _ask_for(self, message: Message) -> None:
        arriving = self._transport.receive(message)
        m, index = message.micro_batch, message.value
        if message.again:
            self._second.came(m, index, arriving)
        elif not message.is_gradient:
            self._second.expect(m, index)
            self._values[m, index, self._me] = arriving
            self._left[m, index, self._me] = self._program.readers[index][self._me]
        elif index in self._weights:
            self._weight_gradients.append((index, arriving))
        else:
            self._back.setdefault((m, index), []).append(arriving)

    def _send(self, m: int, index: int, value: Any, home: int, target: int) -> Any:  # noqa: ARG002
        if index in self._weights:  # it went when the part began
            return None
        changes = index in self._program.of_weights
        self._send_next(value, (False, m, index, target), changes=changes)
        return None

    def _send_back(self, m: int, index: int, total: torch.Tensor, where: int, home: int) -> None:  # noqa: ARG002
        self._send_next(total, (True, m, index, home), changes=False)

    def _send_again(self, tensor: torch.Tensor, m: int, index: int, target: int) -> None:
        self._send_next(tensor, (False, m, index, target), changes=False, again=True)

    def _send_next(
        self,
        tensor: torch.Tensor,
        what: tuple[bool, int, int, int],
        *,
        changes: bool,
        again: bool = False,
    ) -> None:
        """Send what is next in the list: whoever receives it takes it for that."""
        message = self._to_send[0] if self._to_send else None
        if message is None or (*message[:3], message.target, message.again) != (*what, again):
            name = self._program.graph.nodes[what[2]].key
            raise RuntimeError(f"{name} has something for rank {what[3]} that was not foreseen")
        try:
            self._transport.send(tensor, message, changes=changes)
        except RankError:
            raise
        except RuntimeError as error:
            raise RuntimeError(f"{self._said(message)} cannot be sent: {error}") from error
        self._to_send.popleft()

    def said(self) -> str:
        """Tell which part runs."""
        return "the begin of a step" if self.part is None else self.said_of(self.part)

    def said_of(self, part: Part) -> str:
        """Name a part for an error."""
        phase, number, m, *_ = part
        if phase is Phase.LOSS:
            return f"the loss of micro-batch {m}"
        segment = self._program.segments[number]
        key = (*segment.operators, self._program.graph.nodes[segment.nodes[0]].key)[0]
        return f"the {phase.name.lower()} of {key}, micro-batch {m}"

    def _part_at(self, position: int) -> str:
        """Name the part in a place of the order; behind the last one gradients from elsewhere."""
        order = self._program.order
        return "the last part" if position == len(order) else self.said_of(order[position])

    def left_to(self, rank: int) -> str:
        """Tell what a rank may not have run yet: its part that sent here last, and those behind."""
        order = [part for part in self._program.order if part.phase in self._phases]
        came = [
            number
            for number, part in enumerate(order)
            for message in self._foreseen.messages.get(part, ())
            if (message.source, message.target) == (rank, self._me)
        ]
        rest = [part for part in order[max(came, default=0) :] if self._is_of(part, rank)]
        if not rest:
            return ""
        more = f", and {len(rest) - 1} more parts" if len(rest) > 1 else ""
        return f"{self.said_of(rest[0])}{more}"

    def _is_of(self, part: Part, rank: int) -> bool:
        if part.phase is Phase.LOSS:
            return self._program.loss_on == rank
        segment = self._program.segments[part.segment]
        return segment.device == rank and not segment.only_looks

    def _said(self, message: Message) -> str:
        return message.said(self._program.graph)
