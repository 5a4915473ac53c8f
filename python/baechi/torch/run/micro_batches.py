# SPDX-License-Identifier: Apache-2.0
"""Runs a step of several micro-batches over the devices of a placed model.

The graph of the model is cut into segments. Autograd knows one segment of one micro-batch at a
time: values that come from another begin anew there, and the gradients that they get are handed on
as values are. So each pass of each segment can be asked for alone, in the order of the plan; of the
backward of a product with weights also the gradients of the weights, which nobody waits for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.run.begun_gradients import Begin, Begun, begin_with
from baechi.torch.run.communication import Arrival
from baechi.torch.run.gradient_sums import GradientSums
from baechi.torch.run.late_gradients import Product, product_in
from baechi.torch.run.placed_runs import StepRuns
from baechi.torch.run.sent_tensors import SentTensors
from baechi.torch.run.step_order import Part, Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.run.step_refusals import check_hooks, check_loss, unchanged
from baechi.torch.run.step_second_runs import SecondRunsInStep
from baechi.torch.trace.autocast import Autocast
from baechi.torch.trace.segments import Segment
from baechi.torch.weights.homes import weight_of

Where = int | None  # a device; None: where the arguments are
Loss = Callable[[Any, int, LogicalDevice | None], torch.Tensor]  # of an output, by micro-batch


class Step:
    """One step that runs."""

    def __init__(
        self,
        program: StepProgram,
        sent: SentTensors,
        batches: Sequence[list[torch.Tensor]],
        loss: Loss,
        scaler: Any = None,  # a GradScaler, whose scale the gradients get
    ) -> None:
        self._program = program
        self._sent = sent
        self._devices = sent.devices
        self._batches = batches
        self._loss = loss
        self._scaler = scaler
        kinds = {d.torch_device.type for d in self._devices if not d.is_elsewhere}
        self._autocast = Autocast(program.exported.autocast, kinds)
        self._with_gradients = True  # autograd sees what runs
        self._with_weights = True  # which get their gradients
        self._trains_inputs = False  # those that require a gradient get one
        self._weights = {
            n.index: weight_of(program.model, n.target)
            for n in program.graph.nodes
            if n.kind == "weight"
        }
        self._trained = [
            list({id(w): w for i in s.weights if (w := self._weights[i]).requires_grad}.values())
            for s in program.segments
        ]
        check_hooks(program, self._weights, self._trained)
        self._anchor = torch.zeros((), requires_grad=True)
        self._values: dict[tuple[int, int, Where], Any] = {}  # micro-batch, value, device
        self._left: dict[tuple[int, int, Where], int] = {}  # of their readers
        self._leaving: dict[Part, tuple[Any, Any]] = {}  # with the event behind which it is made
        self._awaited: dict[tuple[int, int, Where], int] = {}  # gradients that will come for them
        self._sums = GradientSums()  # of those that came, by the same
        self._back: dict[tuple[int, int], list[Arrival]] = {}  # gradients on their way home
        self._trains: set[tuple[int, int]] = set()  # micro-batch, value: it wants a gradient
        self._begun: dict[tuple[int, int], Begun] = {}  # segment, micro-batch
        self._late: dict[tuple[int, int], tuple[Product, torch.Tensor]] = {}  # with its gradient
        self._second = SecondRunsInStep(program, self._weights, StepRuns(sent))
        self._leaves: dict[int, Any] = {}  # autograd's nodes of weights, by id
        self._total: torch.Tensor | None = None
        self._share: torch.Tensor | None = None

    def run(self) -> torch.Tensor:
        """Run it; returns the mean of the losses."""
        for part in self._program.order:
            self._run_part(part)
        assert not self._late, "gradients of weights were left"
        return self._mean()

    def _run_part(self, part: Part) -> None:
        segments, autocast = self._program.segments, self._autocast
        backward = part.phase in (Phase.BACKWARD, Phase.BY_WEIGHTS)
        with autocast.backward() if backward else autocast.forward():
            if part.phase is Phase.FORWARD:
                self._forward(segments[part.segment], part.micro_batch)
            elif part.phase in (Phase.SEND, Phase.SEND_BACK):
                self._send_later(part)
            elif part.phase is Phase.AGAIN:
                self._second.again(segments[part.segment], part.micro_batch)
            elif part.phase is Phase.BACKWARD:
                self._backward(segments[part.segment], part.micro_batch)
            elif part.phase is Phase.BY_WEIGHTS:
                self._by_weights(segments[part.segment], part.micro_batch)
            else:
                self._lose(part.micro_batch)

    def _mean(self) -> torch.Tensor:
        assert self._total is not None
        device = self._device(self._program.loss_on)
        with torch.no_grad(), _on(device):
            mean = self._total / len(self._batches)
        self._sent.mark(mean, device)
        return mean

    # Forward

    def _forward(self, segment: Segment, m: int) -> None:
        begun = Begun()
        device = self._device(segment.device)
        taken: list[Any] = []
        sources: dict[int, Any] = {}
        for read in segment.reads:
            value = self._read(m, read, self._program.read_on(segment, read))
            if (m, read) in self._trains and not segment.only_looks:
                with torch.enable_grad(), _on(device):
                    value = Begin.apply(self._anchor, value)
                begun.starts.append((read, value.grad_fn))
                key = m, read, segment.device
                self._awaited[key] = self._awaited.get(key, 0) + 1
            source = self._second.source(m, read)
            if source is not None and isinstance(value, torch.Tensor):
                sources[id(value)] = source.at(device)
            taken.append(value)
            del value  # `taken` alone has it
        made = self._run_first(segment, m, taken, sources)
        for index, value in zip(segment.makes, made, strict=True):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                if _may_get_gradient(value):
                    begun.ends.append((index, get_gradient_edge(value)))
                    self._trains.add((m, index))
                value = value.data
            self._made(m, index, value)
        if begun.ends:
            self._begun[segment.index, m] = begun
        else:
            self._end(segment, m, begun, [None] * len(begun.starts))

    def _run_first(self, segment: Segment, m: int, taken: list[Any], sources: Any) -> Any:
        """Run a segment for the first time."""
        program, device = self._program, self._device(segment.device)
        call = program.functions[segment.index]
        again = segment.index in program.repeated and self._with_gradients
        if device is None or not (again or sources):
            with torch.set_grad_enabled(self._with_gradients), _on(device):
                return call.from_list(taken)
        return self._second.first(segment, m, call, taken, sources, device)

    def _made(self, m: int, index: int, value: Any) -> None:
        """Keep a value for its readers, and send it to those elsewhere."""
        home = self._program.homes[index]
        self._values[m, index, home] = value
        ready = None
        for target, readers in self._program.readers[index].items():
            self._left[m, index, target] = readers
            if home is None or target is None or target == home:
                continue
            later = self._leaves_later(Phase.SEND, m, index, target)
            if later is not None:
                ready = ready or _behind_all_of(self._devices[home])
                self._leaving[later] = value, ready
            else:
                self._values[m, index, target] = self._send(m, index, value, home, target)
        if home is not None and home not in self._program.readers[index]:
            del self._values[m, index, home]

    def _send(self, m: int, index: int, value: Any, home: int, target: int) -> Any:  # noqa: ARG002
        """Send a value of a micro-batch; returns what is waited for where it is read."""
        arrival = self._sent.links.send(value, self._devices[home], self._devices[target])
        if index in self._program.of_weights:  # which may change once it was sent
            arrival.settle(self._devices[home])
        return arrival

    def _leaves_later(self, phase: Phase, m: int, index: int, reader: int) -> Part | None:
        """Return the part in which a value, or the gradient of one, is sent; None: now."""
        if (phase, index, reader) not in self._program.sent_later:
            return None
        return Part(phase, self._program.maker[index], m, index, reader)

    def _send_later(self, part: Part) -> None:
        """Send what was made for another device, behind what made it alone."""
        phase, _, m, index, reader = part
        tensor, ready = self._leaving.pop(part, (None, None))
        if tensor is None:  # there is no gradient
            return
        home = self._program.homes[index]
        assert home is not None
        way = (home, reader) if phase is Phase.SEND else (reader, home)
        source, target = (self._devices[number] for number in way)
        arrival = self._sent.links.send(tensor, source, target, ready)
        if phase is Phase.SEND:
            self._values[m, index, reader] = arrival
        else:
            self._back.setdefault((m, index), []).append(arrival)

    def _read(self, m: int, index: int, where: Where) -> Any:
        """Return a value where a segment reads it; drop it behind the last one."""
        node = self._program.graph.nodes[index]
        key = m, index, where
        if node.kind == "input" and key not in self._left:
            self._made_outside(m, index, self._batches[m][node.target])
        elif node.kind == "weight" and key not in self._left:
            self._made_of_weight(m, index)
        value = self._values.get(key)
        if value is None:  # what is where the arguments are comes when it is wanted
            outside = self._values[m, index, self._program.homes[index]]
            value = self._values[key] = self._sent.fetched(outside, self._devices[where or 0])
        elif isinstance(value, Arrival):
            value = self._values[key] = value.wait()
        self._left[key] -= 1
        if not self._left[key] and where is not None:  # what is outside others may still want
            del self._values[key]
        return value

    def _made_outside(self, m: int, index: int, value: torch.Tensor) -> None:
        if self._trains_inputs and value.requires_grad:
            self._trains.add((m, index))
            value = value.detach()
        self._values[m, index, None] = value
        for target, readers in self._program.readers[index].items():
            self._left[m, index, target] = readers

    def _made_of_weight(self, m: int, index: int) -> None:
        weight = self._weights[index]
        if weight.requires_grad and self._with_gradients:
            self._trains.add((m, index))
        self._made(m, index, weight.data)

    # The loss

    def _lose(self, m: int) -> None:
        """Compute a micro-batch's loss, and its gradient."""
        program, where = self._program, self._program.loss_on
        device = self._device(where)
        leaves: dict[int, torch.Tensor] = {}
        for index in program.read_at_end:
            leaf = self._read(m, index, where).detach()
            leaves[index] = leaf.requires_grad_((m, index) in self._trains)
        with torch.enable_grad(), _on(device):
            unread = torch.empty(0)
            output = program.exported.rebuild(
                [leaves.get(o, unread) for o in program.graph.outputs]
            )
            loss = self._loss(output, m, device)
            check_loss(loss)
            begun = loss if self._scaler is None else self._scaler.scale(loss)
            if self._share is None:
                self._share = torch.full_like(begun, 1.0 / len(self._batches))
            with self._autocast.backward():
                self._differentiate(begun, list(leaves.values()), self._share)
        with torch.no_grad(), _on(device):
            loss = loss.detach()
            self._total = loss if self._total is None else self._total + loss
        for index, leaf in leaves.items():
            if leaf.requires_grad:
                self._begin_at(m, index, where, leaf.grad)

    def _begin_at(self, m: int, index: int, where: Where, gradient: torch.Tensor | None) -> None:
        """Begin a backward with the gradient of an output."""
        self._awaited[m, index, where] = self._awaited.get((m, index, where), 0) + 1
        self._came(m, index, where, gradient)

    def _differentiate(
        self,
        loss: torch.Tensor,
        outputs: list[torch.Tensor],  # noqa: ARG002
        share: torch.Tensor,
    ) -> None:
        """Give the outputs that a loss was computed from their gradients."""
        torch.autograd.backward(loss, share)

    # Backward

    def _backward(self, segment: Segment, m: int) -> None:
        begun = self._begun.pop((segment.index, m), None)
        if begun is None:
            return
        device = self._device(segment.device)
        ends, gradients = [], []
        for index, edge in begun.ends:
            gradient = self._gradient(m, index, device)
            if gradient is not None:
                ends.append(edge)
                gradients.append(gradient)
            del gradient  # `gradients` alone has it
        trained = self._trained[segment.index]
        late = None
        if ends and begun.starts and segment.index in self._program.apart:
            late = product_in(ends, trained)
        if not (ends and (begun.starts or (trained and self._with_weights))):
            self._end(segment, m, begun, [None] * len(begun.starts))
        elif late is None and self._with_weights:
            nodes = {node for _, node in begun.starts}
            first = [weight for weight in trained if weight.grad is None]
            # Autograd adds to what nobody else holds in place, and a copy may still read that.
            being_read = list(filter(self._is_being_sent, gradients))
            kept = unchanged(trained, len(self._batches))
            with _on(device), kept, begin_with(ends, nodes, gradients) as begins:
                torch.autograd.backward(ends, begins)
                self._own_gradients(first)
            del being_read
            self._end(segment, m, begun, begun.take())
        else:
            self._backward_in_two(segment, m, begun, (ends, gradients), late)

    def _is_being_sent(self, tensor: torch.Tensor) -> bool:
        """Whether copies of a tensor's memory may still read it."""
        return self._sent.links.reads.may_read(tensor)

    def _own_gradients(self, weights: Sequence[torch.Tensor]) -> None:
        """Give weights gradients of their own, where autograd has given them a part of another.

        It asks who holds the tensor, and not who holds its storage: the next micro-batch would add
        its gradient to that of a value, too.
        """
        for weight in weights:
            gradient = weight.grad
            if gradient is None or gradient.layout is not torch.strided:
                continue
            _, holders = _private.references(gradient)
            if holders > 1 or self._is_being_sent(gradient):
                weight.grad = gradient.clone()

    def _backward_in_two(
        self,
        segment: Segment,
        m: int,
        begun: Begun,
        given: tuple[list[Any], list[torch.Tensor]],
        late: Product | None,
    ) -> None:
        """Run a backward without the gradients of weights that come later, or never."""
        device, (ends, gradients) = self._device(segment.device), given
        starts = [GradientEdge(node, 0) for _, node in begun.starts]
        at_once = [] if late is None else late.at_once
        edges = starts if late is None else [*starts, late.edge]
        wanted = [*starts, *at_once, *edges[len(starts) :]]
        nodes = {edge.node for edge in edges}
        with _on(device), begin_with(ends, nodes, gradients) as begins:
            found = torch.autograd.grad(
                ends, wanted, begins, retain_graph=late is not None, allow_unused=True
            )
        if late is not None:
            *found, arrived = found
            if arrived is not None:
                self._late[segment.index, m] = late, arrived
        for weight, gradient in zip(at_once, found[len(starts) :], strict=True):
            if gradient is not None:
                self._accumulate(weight, gradient, device)
        self._end(segment, m, begun, found[: len(starts)])

    def _by_weights(self, segment: Segment, m: int) -> None:
        """Take what a backward left for later: gradients that nobody waits for."""
        known = self._late.pop((segment.index, m), None)
        if known is None:
            return
        late, arrived = known
        device = self._device(segment.device)
        with _on(device):
            found = torch.autograd.grad([late.edge], late.weights, [arrived], allow_unused=True)
        for weight, gradient in zip(late.weights, found, strict=True):
            if gradient is not None:
                self._accumulate(weight, gradient, device)

    def _end(self, segment: Segment, m: int, begun: Begun, found: Sequence[Any]) -> None:
        for (index, _), gradient in zip(begun.starts, found, strict=True):
            self._came(m, index, segment.device, gradient)

    def _came(self, m: int, index: int, where: Where, gradient: torch.Tensor | None) -> None:
        """Add up what came for a value on a device; behind the last one it goes home."""
        key = m, index, where
        if gradient is not None:
            with _on(self._device(where)):
                self._sums.add(key, gradient)
        self._awaited[key] -= 1
        home, weight = self._program.homes[index], self._weights.get(index)
        if self._awaited[key] or (home == where and weight is None):
            return
        total = self._sums.pop(key)
        if total is None:
            return
        assert where is not None
        later = self._leaves_later(Phase.SEND_BACK, m, index, where)
        if later is not None:
            self._leaving[later] = total, _behind_all_of(self._devices[where])
        elif home is None:
            self._came_outside(m, index, total, where)
        elif home != where:
            self._send_back(m, index, total, where, home)
        elif weight is not None:
            self._accumulate(weight, total, self._devices[home])

    def _came_outside(self, m: int, index: int, total: torch.Tensor, where: int) -> None:
        """Add what came for a value that is where the arguments are, by way of the host."""
        target = self._batches[m][0].device
        if target.type != "cpu" or total.device.type != "cpu":
            with _on(self._devices[where]):
                total = total.to("cpu")
            total = total.to(target)
        self._sums.add((m, index, None), total)

    def of_inputs(self) -> dict[int, torch.Tensor]:
        """Return the gradients of arguments that came here, by their nodes, of one micro-batch."""
        inputs = (node.index for node in self._program.graph.nodes if node.kind == "input")
        return {i: total for i in inputs if (total := self._sums.get((0, i, None))) is not None}

    def _send_back(self, m: int, index: int, total: torch.Tensor, where: int, home: int) -> None:
        """Send the gradient of a value to where the value was made."""
        arrival = self._sent.links.send(total, self._devices[where], self._devices[home])
        weight = self._weights.get(index)
        if weight is not None:
            self._accumulate(weight, arrival.wait(), self._devices[home])
        else:
            self._back.setdefault((m, index), []).append(arrival)

    def _gradient(self, m: int, index: int, device: LogicalDevice | None) -> torch.Tensor | None:
        """Return all that came for a value that a segment made, where it made it."""
        key = m, index, self._program.homes[index]
        for arrival in self._back.pop((m, index), ()):
            gradient = arrival.wait()
            with _on(device):
                self._sums.add(key, gradient, own=True)
        return self._sums.pop(key)

    def _accumulate(
        self, weight: torch.Tensor, gradient: torch.Tensor, device: LogicalDevice | None
    ) -> None:
        """Add to the gradient of a weight as a backward of the whole would, hooks included."""
        leaf = self._leaves.get(id(weight))
        if leaf is None:
            leaf = self._leaves[id(weight)] = get_gradient_edge(weight).node
        with torch.no_grad(), _on(device), unchanged([weight], len(self._batches)):
            leaf(gradient)

    def _device(self, where: Where) -> LogicalDevice | None:
        return None if where is None else self._devices[where]


def _may_get_gradient(value: torch.Tensor) -> bool:
    """Whether autograd knows how a value was made.

    A view that was made without gradients only says that what it shows requires one.
    """
    return value.grad_fn is not None or not value._is_view()


def _on(device: LogicalDevice | None) -> Any:
    return contextlib.nullcontext() if device is None else device.computing()


def _behind_all_of(device: LogicalDevice) -> Any:
    """Return an event behind all that a device was asked to do so far."""
    return device.stream.record_event() if device.has_streams else None
