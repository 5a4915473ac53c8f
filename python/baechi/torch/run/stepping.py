# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches of a placed model, as its user asks for them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from baechi._core import InputError, Plan
from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.mini_batch import check_can_be_cut, check_no_values, cut, samples_in
from baechi.torch.base.nested import map_tensors, tensors_in
from baechi.torch.record.capture import call_arguments
from baechi.torch.record.recorded_step import BACKWARD, BY_WEIGHTS, LOSS
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.graphs import PlacedGraph
from baechi.torch.run.micro_batches import Loss, Step
from baechi.torch.run.step_order import Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.call_structure import structure_of
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.trace.surroundings import has_hooks

_BEHIND = {Phase.BACKWARD: BACKWARD, Phase.BY_WEIGHTS: BY_WEIGHTS}  # an operator's name
_MARKS = ["@" * count for count in range(1, 5)]  # before what a plan adds to a name


class Hosts(enum.Enum):
    """Who asks devices for the parts of a step."""

    ONE = "one for all devices"
    EACH = "one for each device"
    DEVICES = "the devices themselves, which ask and compute in turn"


@dataclass(frozen=True)
class StepPlan:
    """The plan of a step of micro-batches, by the operators of one of them."""

    plan: Plan
    micro_batches: int
    samples: int  # of the mini-batch
    loss: Callable[..., torch.Tensor]  # of an output, and of targets where there are some
    has_targets: bool
    own_loss: bool = False  # the loss is the one that the model returns
    is_of_calls: bool = False  # of the model, whose caller has the loss and begins the backward
    hosts: Hosts = Hosts.ONE
    compared: bool = False  # with stages, by what a step takes

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """When each operator of the plan's graph begins."""
        return dict(zip(self.plan.graph.names, self.plan.starts, strict=True))

    @functools.cached_property
    def ends(self) -> dict[str, int]:
        """When each operator of the plan's graph has ended."""
        return dict(zip(self.plan.graph.names, self.plan.ends, strict=True))

    @property
    def joins_parts(self) -> bool:
        """Whether parts become one, which takes a little memory: not where time is paid for it."""
        return not self.plan.recomputed

    def copy_of(self, operator: str, micro_batch: int) -> str | None:
        """Return the name of an operator of a micro-batch in the plan's graph."""
        if self.micro_batches == 1:
            return operator if operator in self.starts else None
        return self._copy_of(operator, self._numbers[micro_batch])

    def _copy_of(self, operator: str, number: int) -> str | None:
        names = (f"{operator}{mark}{number}" for mark in _MARKS)
        return next((name for name in names if name in self.starts), None)

    @functools.cached_property
    def _numbers(self) -> list[int]:
        """The plan's number of each micro-batch.

        A step computes losses in the order of the samples. To the plan all micro-batches are alike,
        and another one than the first may have its loss first.
        """
        behind = [name for name in self.plan.micro_batch_graph.names if name.endswith(BACKWARD)]

        def begins(number: int) -> int:
            copies = (self._copy_of(name, number) for name in behind)
            return min((self.starts[copy] for copy in copies if copy is not None), default=0)

        return sorted(range(self.micro_batches), key=begins)

    @property
    def device_of(self) -> dict[str, str]:
        """The device of every operator of a micro-batch."""
        where = self.plan.device_of
        copies = {name: self.copy_of(name, 0) for name in self.plan.micro_batch_graph.names}
        return {name: where[copy or name] for name, copy in copies.items()}

    def start_of(self, phase: Phase, operator: str, micro_batch: int) -> int | None:
        """Return when an operator begins; None where the plan does not know it."""
        if phase is Phase.AGAIN:
            names = (self.copy_of(f"{operator}{mark}again", micro_batch) for mark in _MARKS)
            copy = next((name for name in names if name is not None), None)
        else:
            copy = self.copy_of(operator + _BEHIND.get(phase, ""), micro_batch)
        return None if copy is None else self.starts[copy]

    def end_of(self, phase: Phase, operator: str, micro_batch: int) -> int:
        """Return when an operator ends; 0 where the plan does not know it."""
        copy = self.copy_of(operator + _BEHIND.get(phase, ""), micro_batch)
        return 0 if copy is None else self.ends[copy]

    @functools.cached_property
    def _sent(self) -> dict[tuple[str, str], list[int]]:
        """When what an operator of the plan's graph makes leaves for a device."""
        found: dict[tuple[str, str], list[int]] = {}
        for producer, _, target, _, _, start, _ in self.plan.transfers:
            found.setdefault((producer, target), []).append(start)
        return {way: sorted(starts) for way, starts in found.items()}

    def sent_at(self, phase: Phase, operator: str, micro_batch: int, target: str) -> list[int]:
        """Return when what an operator makes leaves for a device, one tensor after the other."""
        copy = self.copy_of(operator + _BEHIND.get(phase, ""), micro_batch)
        return [] if copy is None else self._sent.get((copy, target), [])

    def loss_of(
        self, output: Any, targets: Any, bring: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return the user's loss of a micro-batch; `bring`: targets to where its output is."""
        if not self.has_targets:
            return self.loss(output)
        return self.loss(output, map_tensors(bring, targets))

    @property
    def loss_device(self) -> str | None:
        """Where the plan computes the loss."""
        where = self.device_of
        return next((device for name, device in where.items() if name.startswith(LOSS)), None)


def check_scaler(scaler: Any) -> None:
    """Raise InputError for what is no GradScaler."""
    if not isinstance(scaler, torch.amp.GradScaler):
        raise InputError(f"scaler is a torch.amp.GradScaler, not a {type(scaler).__name__}")


class Stepper:
    """Runs steps of a model that was placed for them."""

    sends_later = True  # when the plan says: what is sent takes memory at its target at once
    joins_parts = True  # that a device runs one behind the other, so that the host asks once

    def __init__(self, assigner: Assigner, planned: StepPlan) -> None:
        self._assigner = assigner
        self._planned = planned
        self._programs: list[tuple[PlacedGraph, StepProgram]] = []  # of the graphs that there are
        self.micro_batches = planned.micro_batches
        self.is_of_calls = planned.is_of_calls

    def _sent_at(self, phase: Phase, operator: str, micro_batch: int, target: int) -> list[int]:
        name = self._assigner.devices[target].name
        return self._planned.sent_at(phase, operator, micro_batch, name)

    def step(self, inputs: Any, targets: Any = None, scaler: Any = None) -> torch.Tensor:
        """Run forward and backward of all micro-batches; return the mean of their losses."""
        planned, mine = self._planned, self._assigner
        self._check(inputs, targets)
        self._check_scaler(scaler)
        batches = cut(inputs, planned.micro_batches)
        program, tensors = self.program(batches)
        loss = self._loss_with(targets, self._brought)
        step = Step(program, mine.sent, tensors, loss, scaler)
        return mine.run_step(step.run, (inputs, targets))

    @property
    def planned(self) -> StepPlan:
        """What runs when."""
        return self._planned

    def _loss_with(self, targets: Any, bring: Callable[[torch.Tensor, Any], torch.Tensor]) -> Loss:
        """Return the loss of a micro-batch's output; `bring`: targets to the device of that."""
        parts = cut(targets, self.micro_batches)

        def loss(output: Any, m: int, where: LogicalDevice | None) -> torch.Tensor:
            return self._planned.loss_of(output, parts[m], lambda target: bring(target, where))

        return loss

    def _brought(self, target: torch.Tensor, where: LogicalDevice | None) -> torch.Tensor:
        return target if where is None else self._assigner.sent.fetched(target, where)

    def program(self, batches: list[Any]) -> tuple[StepProgram, list[list[torch.Tensor]]]:
        """Return what runs micro-batches, and the tensors in each of them."""
        planned, mine = self._planned, self._assigner
        tensors: list[list[torch.Tensor]] = [[] for _ in batches]
        name = type(mine.model).__name__
        assert mine.graphs is not None  # it was placed with one
        try:
            placed = mine.graphs.find(*call_arguments(batches[0]), tensors[0], in_steps=True)
            for batch, found in zip(batches[1:], tensors[1:], strict=True):
                structure_of(call_arguments(batch), found)
            known = next((program for graph, program in self._programs if graph is placed), None)
            if known is None:
                names = {d.name: d.index for d in mine.devices}
                loss_on = None if planned.loss_device is None else names[planned.loss_device]
                known = StepProgram(
                    placed,
                    mine,
                    planned.micro_batches,
                    planned.start_of,
                    loss_on,
                    [name for name, _ in planned.plan.recomputed],
                    sent_at=self._sent_at if self.sends_later else None,
                    own_loss=planned.own_loss,
                    joined=self.joins_parts and planned.joins_parts,
                )
                kept = [each for each in self._programs if mine.graphs.has(each[0])]
                self._programs = [*kept, (placed, known)]
        except NotExportedError as reason:
            raise InputError(
                f"{name} cannot take a step of micro-batches, which needs a graph of it: {reason}"
            ) from reason
        return known, tensors

    def _check_scaler(self, scaler: Any) -> None:
        if scaler is None:
            return
        check_scaler(scaler)
        kinds = {d.torch_device.type for d in self._assigner.devices if not d.is_elsewhere}
        # PyTorch's copies of its flags would be read on the host before they have arrived there.
        if len(kinds) > 1:
            raise InputError(
                f"a GradScaler works on devices of one kind, and the placement has "
                f"{' and '.join(sorted(kinds))}: train in bfloat16, which needs none"
            )
        scale = _private.scale_of(scaler)
        if scale is not None and scale.device.type not in kinds:
            raise InputError(
                f"the GradScaler was used on {scale.device.type!r}, and the placement is on "
                f"{next(iter(kinds))!r}: make a new one, and load the state of this one"
            )

    def _check(self, inputs: Any, targets: Any) -> None:
        planned = self._planned
        if planned.is_of_calls:
            raise InputError(
                "step runs micro-batches: place(..., micro_batches=4), or another number"
            )
        if planned.has_targets != (targets is not None):
            how = "step(inputs, targets)" if planned.has_targets else "step(inputs)"
            given = "with" if planned.has_targets else "without"
            raise InputError(f"call {how}: the model was placed {given} targets=")
        if has_hooks(self._assigner.model):
            raise InputError(
                f"{type(self._assigner.model).__name__} has hooks of its own, which a step of "
                "micro-batches does not call: take them off, or put the model into another module"
            )
        if targets is not None:
            check_can_be_cut(targets, planned.samples, "targets")
        if not torch.is_grad_enabled():
            raise InputError("step computes gradients: call it outside of torch.no_grad()")
        if any(t.requires_grad for t in tensors_in(inputs)):
            raise InputError(
                "an argument requires a gradient, which a step of micro-batches does not compute: "
                "detach() it, or call the model and backward(), which compute it"
            )
        samples = samples_in(inputs if targets is None else (inputs, targets), "inputs")
        if planned.micro_batches > 1:
            check_no_values(inputs, samples, "inputs")
        if samples != planned.samples:
            raise InputError(
                f"step is called with {samples} samples and was planned for {planned.samples}: "
                "place the model again for another mini-batch, drop the last, smaller one, or call "
                "the model and backward() for it"
            )
