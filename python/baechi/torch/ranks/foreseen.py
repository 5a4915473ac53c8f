# SPDX-License-Identifier: Apache-2.0
"""What ranks send each other in a step, found by running it with shapes only.

Every rank does so, of the whole step, and comes to the same: which values and gradients there are,
of which shapes, and at which part of the order each leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.runs_again import Output, Run
from baechi.torch.ranks.messages import Message, message_of
from baechi.torch.run.communication import Arrival
from baechi.torch.run.micro_batches import Loss, Step
from baechi.torch.run.placed_runs import StepRuns
from baechi.torch.run.segment_program import function_of
from baechi.torch.run.step_order import Part
from baechi.torch.run.step_program import StepProgram
from baechi.torch.run.step_second_runs import SecondRunsInStep
from baechi.torch.trace.autocast import nothing_kept
from baechi.torch.trace.segments import Segment


@dataclass
class Foreseen:
    """What a step does between ranks."""

    messages: dict[Part, list[Message]] = field(default_factory=dict)  # in their order
    numbers: dict[int, Any] = field(default_factory=dict)  # of the host, by node
    trains: set[tuple[int, int]] = field(default_factory=set)  # micro-batch, node
    loss: tuple[tuple[int, ...], torch.dtype] = ((), torch.float32)
    gradients: set[str] = field(default_factory=set)  # the weights that get one
    of_loss: set[str] = field(default_factory=set)  # those that the loss itself reads
    outputs: dict[int, Message] = field(default_factory=dict)  # of a call, to all, by node
    of_inputs: set[int] = field(default_factory=set)  # the arguments that get one, by node
    # Values that are sent once more, when they were made again: micro-batch, node, target.
    again: set[tuple[int, int, int]] = field(default_factory=set)

    def text(self) -> str:
        """Return all that ranks must agree on."""
        lines = [f"{part}: {message}" for part, sent in self.messages.items() for message in sent]
        lines += [f"output: {message}" for message in self.outputs.values()]
        weights = sorted(self.gradients), sorted(self.of_loss), sorted(self.of_inputs)
        return "\n".join(
            [
                *lines,
                repr(sorted(self.numbers.items())),
                repr(self.loss),
                repr(weights),
                repr(sorted(self.again)),
            ]
        )


@dataclass(frozen=True)
class WeightShape:
    """How a weight was before it went to its rank."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_parameter: bool

    @staticmethod
    def of(weight: torch.Tensor) -> WeightShape:
        """Return that of a weight."""
        is_parameter = isinstance(weight, nn.Parameter)
        return WeightShape(weight.size(), weight.stride(), weight.dtype, is_parameter)

    def stand_in(self, requires_grad: bool, where: torch.device) -> torch.Tensor:
        """Return a tensor like the weight; inside a mode that computes shapes only."""
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=where)
        return nn.Parameter(made, requires_grad) if self.is_parameter else made


class _OneHost:
    """Stands for the devices of a step that computes nothing: they are one.

    That is the host, or a device of their kind where shapes alone do not decide: what autocast
    casts depends on the kind.
    """

    def __init__(self, devices: Sequence[LogicalDevice], program: StepProgram) -> None:
        here = next(d.torch_device for d in devices if not d.is_elsewhere)
        casts = program.exported.autocast or any(n.contexts for n in program.graph.nodes)
        self.where = here if casts else torch.device("cpu")
        self.devices = [LogicalDevice(d.index, d.name, self.where, False) for d in devices]

    def fetched(self, tensor: torch.Tensor, target: LogicalDevice) -> torch.Tensor:
        return tensor.to(target.torch_device)

    def mark(self, value: Any, device: LogicalDevice | None) -> None:
        pass


def _arrived(tensor: torch.Tensor) -> Arrival:
    return Arrival(tensor.detach(), None, None, None)


class _DryRuns(StepRuns):
    """Second runs of a step that computes nothing: whatever is made is everywhere."""

    def sent(self, tensor: torch.Tensor, device: Any) -> Callable[[], torch.Tensor]:  # noqa: ARG002
        """Return what returns it."""
        return lambda: tensor


class _DrySecondRuns(SecondRunsInStep):
    """Tells of what is made again and read elsewhere."""

    def __init__(self, *given: Any, note: Callable[[int, int, int, torch.Tensor], None]) -> None:
        super().__init__(*given)
        self._note = note

    def sent_again(self) -> set[tuple[int, int, int]]:
        """Return the values that are made again and wanted elsewhere: with who wants them."""
        return {
            (m, index, target)
            for (number, m), run in self._waiting.items()
            for index, _, target in self._wanted(self._program.segments[number], run)
        }

    def _wanted(self, segment: Segment, run: Run) -> list[tuple[int, Output, int]]:
        outputs = enumerate(self._tensors[segment.index])
        return [
            (index, output, target)
            for position, index in outputs
            if (output := run.outputs.get(position)) is not None
            for target in sorted(device.index for device in output.copies)
        ]

    def _send(self, segment: Segment, m: int, run: Run) -> None:
        for index, output, target in self._wanted(segment, run):
            assert output.value is not None
            self._note(m, index, target, output.value)
        super()._send(segment, m, run)


@dataclass
class Dry:
    """A step that can be run with shapes only, inside a mode that computes no more than these."""

    program: StepProgram
    host: Any  # stands for the devices
    owned: list[tuple[torch.Tensor, int]]  # what stands for each weight, and the device of that
    names: dict[int, str]  # of these, by id
    batches: list[list[torch.Tensor]]

    @staticmethod
    def shape_of(tensor: torch.Tensor, device: LogicalDevice | None = None) -> torch.Tensor:
        """Return what stands for a tensor, on the host or on a device that stands for one."""
        where = "cpu" if device is None else device.torch_device
        how: Any = {"dtype": tensor.dtype, "device": where}
        made = torch.empty_strided(tensor.size(), tensor.stride(), **how)
        return made.requires_grad_(tensor.requires_grad)


class Rehearsal(Step):
    """A step with shapes only, which notes what is sent."""

    def __init__(self, dry: Dry, loss: Loss) -> None:
        super().__init__(dry.program, dry.host, dry.batches, loss)
        self.found = Foreseen()
        self._dry = dry
        self._owned = [(w, owner) for w, owner in dry.owned if w.requires_grad]  # and its device
        self._with_gradient: set[int] = set()  # weights, by id
        self._of_loss: set[int] = set()
        self._part: Part | None = None
        runs = _DryRuns(dry.host)
        self._second: _DrySecondRuns = _DrySecondRuns(
            dry.program, self._weights, runs, note=self._note_again
        )

    def run(self) -> torch.Tensor:
        """Run it; take note of the loss, and of what wants gradients."""
        mean = super().run()
        self.found.loss = tuple(mean.shape), mean.dtype
        self.found.trains = self._trains
        return mean

    def _run_part(self, part: Part) -> None:
        self._part = part
        super()._run_part(part)

    def _made(self, m: int, index: int, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            name = self._program.graph.nodes[index].key
            if not isinstance(value, (int, float, bool)) or (
                self.found.numbers.setdefault(index, value) != value
            ):
                raise InputError(f"{name} makes a number that ranks do not know before a step runs")
        super()._made(m, index, value)

    def _note(
        self,
        is_gradient: bool,
        m: int,
        index: int,
        tensor: Any,
        way: tuple[int, int],
        *,
        again: bool = False,
    ) -> None:
        assert self._part is not None
        key = self._program.graph.nodes[index].key
        message = message_of(tensor, is_gradient, (m, index, *way), key)._replace(again=again)
        self.found.messages.setdefault(self._part, []).append(message)

    def _note_again(self, m: int, index: int, target: int, tensor: torch.Tensor) -> None:
        home = self._program.homes[index]
        assert home is not None
        self._note(False, m, index, tensor, (home, target), again=True)
        self.found.again.add((m, index, target))

    def _send(self, m: int, index: int, value: Any, home: int, target: int) -> Any:
        self._note(False, m, index, value, (home, target))
        return _arrived(value)

    def _send_back(self, m: int, index: int, total: torch.Tensor, where: int, home: int) -> None:
        self._note(True, m, index, total, (where, home))
        if index in self._weights:
            self._with_gradient.add(id(self._weights[index]))
        else:
            self._back.setdefault((m, index), []).append(_arrived(total))

    def _is_being_sent(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        return False  # there is no memory that could be read

    def _own_gradients(self, weights: Sequence[torch.Tensor]) -> None:
        """Leave them: shapes have no memory that they could share."""

    def take_weights(self) -> None:
        """Take note of which weights have got a gradient."""
        names = self._dry.names
        for weight, _ in self._owned:
            if weight.grad is not None or id(weight) in self._with_gradient:
                self.found.gradients.add(names[id(weight)])
            if id(weight) in self._of_loss:
                self.found.of_loss.add(names[id(weight)])

    def _differentiate(
        self, loss: torch.Tensor, outputs: list[torch.Tensor], share: torch.Tensor
    ) -> None:
        """Find gradients without leaving any with tensors of the user's."""
        wanted = [output for output in outputs if output.requires_grad]
        asked = [*wanted, *(weight for weight, _ in self._owned)]
        found = torch.autograd.grad(loss, asked, share, allow_unused=True)
        for output, gradient in zip(wanted, found, strict=False):
            output.grad = gradient
        for (weight, owner), gradient in zip(self._owned, found[len(wanted) :], strict=True):
            if gradient is not None:
                self._of_loss.add(id(weight))
                self._with_gradient.add(id(weight))
            if gradient is not None and owner != self._program.loss_on:
                raise InputError(
                    f"the loss reads a weight that rank {owner} has, and is "
                    f"computed on rank {self._program.loss_on}: only what the model returns and "
                    "the targets come there; have the model return what the loss needs"
                )


def check_program(program: StepProgram) -> None:
    """Raise InputError for what would need more than what ranks send each other."""
    nodes = program.graph.nodes
    for segment in program.segments:
        if segment.device is not None or segment.only_looks:
            continue
        names = ", ".join(nodes[n].key for n in segment.nodes[:3])
        if segment.in_turn:
            raise InputError(f"{names} draws random numbers on no device of the plan")
        for read in segment.reads:
            if program.homes[read] is not None and not nodes[read].is_host:
                raise InputError(f"{names} reads what a rank has, and is on no device of the plan")


def rehearsed(
    program: StepProgram,
    model: nn.Module,
    weights: Mapping[str, WeightShape],
    owners: Mapping[str, int],
    devices: Sequence[LogicalDevice],
    batches: Sequence[list[torch.Tensor]],
    run: Callable[[Dry], Foreseen],
) -> Foreseen:
    """Run a step, or a part of one, with shapes only; return what was found.

    Args:
        program: The step.
        model: Whose weights may be elsewhere.
        weights: The shape of each, by name.
        owners: The device of each.
        devices: Of the cluster.
        batches: The tensors of each micro-batch.
        run: Runs it, while shapes stand for the weights of the model.

    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    check_program(program)
    host = _OneHost(devices, program)
    dry = copy.copy(program)
    dry.functions = [function_of(dry.graph, s, model, host.devices) for s in dry.segments]
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    before = [(t, n, w) for t in tables for n, w in t.items() if w is not None]
    named = {id(w): n for n, w in (*model.named_parameters(), *model.named_buffers())}
    with FakeTensorMode(allow_non_fake_inputs=True), nothing_kept():
        made = {
            id(w): weights[named[id(w)]].stand_in(w.requires_grad, host.where) for _, _, w in before
        }
        owned = [(twin, owners[named[i]]) for i, twin in made.items()]
        names = {id(twin): named[i] for i, twin in made.items()}
        try:
            for table, name, weight in before:
                table[name] = made[id(weight)]
            parts = [[Dry.shape_of(t) for t in batch] for batch in batches]
            return run(Dry(dry, host, owned, names, parts))
        except InputError:
            raise
        except Exception as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                f"what ranks send each other in a step of {type(model).__name__} cannot be "
                f"foreseen from shapes alone: {said}"
            ) from error
        finally:
            for table, name, weight in before:
                table[name] = weight


def step_foreseen(loss: Loss) -> Callable[[Dry], Foreseen]:
    """Return what `rehearsed` runs of a whole step."""

    def run(dry: Dry) -> Foreseen:
        step = Rehearsal(dry, loss)
        step.run()
        step.take_weights()
        return step.found

    return run
