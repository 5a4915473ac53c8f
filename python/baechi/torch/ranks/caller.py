# SPDX-License-Identifier: Apache-2.0
"""Calls of a model over ranks, as its user writes them on every rank: forward, then backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from baechi._core import InputError
from baechi.torch.base import _private_autograd
from baechi.torch.ranks.averaging import Averaging, Bucket, buckets_of
from baechi.torch.ranks.call import (
    RankCall,
    backward_foreseen,
    call_foreseen,
    outputs_for_all,
    outputs_of,
)
from baechi.torch.ranks.errors import digest
from baechi.torch.ranks.foreseen import Foreseen
from baechi.torch.ranks.processes import Facts, Processes
from baechi.torch.ranks.stepper import RankStepper, shapes_in, text_of, values_of
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.graphs import PlacedGraph
from baechi.torch.run.step_program import StepProgram
from baechi.torch.run.stepping import StepPlan
from baechi.torch.trace.graph import NotExportedError

OUTPUTS = ("auto", "everywhere")
_KEPT = 8  # kinds of calls that are foreseen already
_APART = 1e-2  # norms of a gradient, which devices of several kinds compute by several kernels
_TURNED = 5e-2  # of its norm: what it is along a direction
_PROJECTED = 1 << 20  # elements of each dimension that are looked at for that


@dataclass
class _Backward:
    """What a backward does that begins at some outputs."""

    foreseen: Foreseen
    buckets: list[Bucket]


@dataclass
class _Known:
    """What a call with tensors of certain shapes does."""

    program: StepProgram
    shapes: Any
    foreseen: Foreseen
    facts: Facts
    for_all: set[int]
    backwards: dict[tuple[int, ...], _Backward] = field(default_factory=dict)


class RankCaller:
    """Runs this rank's part of calls of the model."""

    def __init__(
        self,
        assigner: Assigner,
        planned: StepPlan,
        processes: Processes,
        stepper: RankStepper,
        behind: Callable[[], None],
        outputs: str,
    ) -> None:
        self._assigner = assigner
        self._planned = planned
        self._processes = processes
        self._stepper = stepper
        self._behind = behind  # done where gradients are complete
        self._outputs = outputs
        self._programs: list[tuple[PlacedGraph, StepProgram]] = []
        self._known: list[_Known] = []
        self._calls = 0

    def call(self, args: Any, kwargs: Any) -> Any:
        """Run this rank's part of a call; return what the model returns."""
        mine, with_gradients = self._assigner, torch.is_grad_enabled()
        self._processes.check()
        try:
            known, tensors = self._prepared(args, kwargs, with_gradients)
            facts: Facts | Exception = known.facts
            own = values_of((args, kwargs))
        except Exception as error:
            facts, own = error, {}
        self._processes.agree("call the model", facts, own)

        program = known.program
        call = RankCall(
            program,
            mine.sent,
            tensors,
            known.foreseen,
            self._stepper.transport,
            self._calls,
            with_gradients=with_gradients,
        )
        self._calls += 1
        home = next((t.device for t in tensors), self._stepper.device.torch_device)

        def run() -> dict[int, Any]:
            call.forward()
            self._processes.ended(0, torch.zeros(()), call.failure, call.left_to)
            return call.exchanged(self._processes, known.for_all, home)

        with self._processes.running(call.said), self._stepper.own_random(program):
            found = mine.run_step(run, (args, kwargs))
        if with_gradients and call.trained & known.for_all:
            found = self._with_backward(known, call, found)
        return program.exported.rebuild([found[o] for o in program.graph.outputs])

    def facts(self, args: Any, kwargs: Any) -> Facts:
        """Return what all ranks must know alike of a call."""
        return self._prepared(args, kwargs, True)[0].facts

    def _prepared(self, args: Any, kwargs: Any, with_gradients: bool) -> tuple[_Known, Any]:
        tensors: list[torch.Tensor] = []
        trained = self._stepper.trained()
        program = self._program(args, kwargs, tensors)
        asking = [i for i, t in enumerate(tensors) if with_gradients and t.requires_grad]
        shapes = shapes_in((args, kwargs)), trained, with_gradients, asking
        for known in self._known:
            if known.program is program and known.shapes == shapes:
                return known, tensors
        foreseen = self._stepper.rehearsed(program, [tensors], call_foreseen(with_gradients))
        facts = {
            "shapes of the batch": str(shapes[0]),
            "autocast": str(program.exported.autocast),
            "weights that are trained": trained,
            "wish for gradients": str(with_gradients),
            "arguments that require a gradient": str(asking),
            "graph, which follows from modes, attributes and arguments of the model": digest(
                text_of(program.graph)
            )[:16],
            "messages": digest(f"{program.order}\n{foreseen.text()}")[:16],
        }
        for_all = set(outputs_of(program))
        if self._outputs == "auto" and self._processes.count > 1:
            for_all = outputs_for_all(program)
        found = _Known(program, shapes, foreseen, facts, for_all)
        self._known = [*self._known[1 - _KEPT :], found]
        return found, tensors

    def _program(self, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> StepProgram:
        mine, graphs = self._assigner, self._assigner.graphs
        assert graphs is not None  # it was placed with one
        try:
            placed = graphs.find(args, kwargs, tensors, in_steps=True)
            known = next((program for graph, program in self._programs if graph is placed), None)
            if known is None:
                start_of = self._planned.start_of
                again = [name for name, _ in self._planned.plan.recomputed]
                known = StepProgram(placed, mine, 1, start_of, None, again, outputs_stay=True)
                kept = [each for each in self._programs if graphs.has(each[0])]
                self._programs = [*kept, (placed, known)]
        except NotExportedError as reason:
            raise InputError(
                f"{type(mine.model).__name__} cannot be called so over ranks, which needs a graph "
                f"of it: {reason}"
            ) from reason
        mine.tier, mine.note = 2, ""
        return known

    # The backward

    def _with_backward(
        self, known: _Known, call: RankCall, found: dict[int, Any]
    ) -> dict[int, Any]:
        """Return what the caller may begin a backward from."""
        numbers = [o for o in found if o in known.for_all]

        asking = [i for i, t in enumerate(call.arguments) if t.requires_grad]
        weights = [w for w in self._assigner.model.parameters() if w.requires_grad]

        def run(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
            wanted = dict(zip(numbers, gradients, strict=True))
            back = self._run_backward(known, call, wanted, weights)
            return [back.get(i) for i in asking]

        trained = [o in call.trained for o in numbers]
        anchor = torch.zeros((), requires_grad=True)
        # Weights get theirs in the backward itself. Autograd only knows of them, so that it tells
        # whether they are wanted; hooks would see that it has none.
        leaves = [w for w in weights if not w._backward_hooks]
        ends = [*(call.arguments[i] for i in asking), *leaves]
        made = _Called.apply(anchor, run, [found[o] for o in numbers], trained, *ends)
        return {**found, **dict(zip(numbers, made, strict=True))}

    def _run_backward(
        self,
        known: _Known,
        call: RankCall,
        gradients: dict[int, torch.Tensor | None],
        weights: Sequence[torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        """Run this rank's part of a backward; return the gradients of arguments, by number."""
        mine, processes = self._assigner, self._processes
        with_weights = True
        processes.check()
        gradients = {o: g for o, g in gradients.items() if o in call.trained}
        wanted = tuple(o for o, g in gradients.items() if g is not None)
        try:
            if call.is_over:
                raise InputError(
                    "the backward of this call of the model ran already, and over ranks it runs "
                    "once: call the model again"
                )
            call.check_weights()
            with_weights = _wants(weights)
            begun = self._backward_of(known, call, wanted)
            facts: Facts | Exception = {
                "number of the call, counted from the first": str(call.number),
                "outputs that get gradients": self._names(known, wanted),
                "wish for gradients of weights": str(with_weights),
                "messages of the backward": digest(begun.foreseen.text())[:16],
            }
        except Exception as error:
            facts = error
        processes.agree("run the backward of a call of the model", facts)
        self._check_alike(known, [gradients[o] for o in wanted], wanted)
        call.is_over = True
        averaging = None
        if processes.replicas > 1 and with_weights:
            device, averaged = self._stepper.device, self._stepper.averaged(begun.foreseen)
            averaging = Averaging(processes, device, averaged, begun.buckets)

        def run() -> dict[int, torch.Tensor]:
            call.backward(begun.foreseen, gradients, averaging, with_weights=with_weights)
            processes.ended(0, torch.zeros(()), call.failure, call.left_to)
            return call.gradients_of_inputs(processes)

        with processes.running(call.said):
            back = mine.run_step(run, list(gradients.values()))
        if with_weights:
            self._behind()
        return back

    def _backward_of(self, known: _Known, call: RankCall, wanted: tuple[int, ...]) -> _Backward:
        begun = known.backwards.get(wanted)
        if begun is None:
            program = known.program
            foreseen = self._stepper.rehearsed(program, [call.arguments], backward_foreseen(wanted))
            buckets: list[Bucket] = []
            if self._processes.replicas > 1:
                buckets = buckets_of(program, self._stepper.averaged(foreseen), ())
            begun = known.backwards[wanted] = _Backward(foreseen, buckets)
        return begun

    @staticmethod
    def _names(known: _Known, outputs: Sequence[int]) -> str:
        return ", ".join(known.program.graph.nodes[output].key for output in outputs) or "none"

    def _check_alike(self, known: _Known, gradients: Sequence[Any], wanted: Sequence[int]) -> None:
        """Raise InputError on all ranks where one of a replica has other gradients than another."""
        mine = [trait for gradient in gradients for trait in _traits(gradient.detach())]
        found = self._processes.from_each(mine)
        count = self._processes.count
        for number, theirs in enumerate(found):
            first = found[number // count * count]
            for i, output in enumerate(wanted):
                pair = slice(2 * i, 2 * i + 2)
                if said := _differ(first[pair], theirs[pair]):
                    raise InputError(
                        f"rank {number // count * count} and rank {number} begin the backward with "
                        f"other gradients of {self._names(known, [output])}, {said}: every rank "
                        "computes the same loss from what the model returns"
                    )


def _wants(weights: Sequence[torch.Tensor]) -> bool:
    """Whether the backward that runs is to give weights their gradients."""
    wanted = {_private_autograd.comes_to(weight) for weight in weights}
    if None in wanted:
        raise InputError(
            "torch.autograd.grad of weights: over ranks each has a part of them: call "
            "loss.backward() and read weight.grad of those that are here"
        )
    if len(wanted) > 1:
        raise InputError(
            "a backward over ranks gives all weights their gradients, or none: leave inputs= away, "
            "or name no weights in it"
        )
    return wanted != {False}


def _traits(gradient: torch.Tensor) -> tuple[float, float]:
    """Return the norm of a gradient, and what it is along a direction."""
    norm = torch.linalg.vector_norm(gradient, dtype=_wide(gradient)).item()
    for size in reversed(gradient.shape):
        size = min(size, _PROJECTED)
        signs = 1 - 2 * ((torch.arange(size) * 2654435761 >> 16) & 1)  # as if by chance
        gradient = gradient.narrow(-1, 0, size) @ signs.to(gradient.device, gradient.dtype)
    return norm, (gradient.real if gradient.is_complex() else gradient).item()


def _differ(mine: Sequence[float], other: Sequence[float]) -> str:
    """Return how two gradients differ by their traits; empty where they do not."""
    if math.isnan(mine[0]) and math.isnan(other[0]):
        return ""
    if not math.isclose(mine[0], other[0], rel_tol=_APART, abs_tol=1e-12):
        return f"of norm {mine[0]:.6g} and {other[0]:.6g}"
    # where it overflows there is nothing to compare
    turned = abs(mine[1] - other[1]) > _TURNED * mine[0] + 1e-12
    return f"both of norm {mine[0]:.6g}, in other directions" if turned else ""


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


class _Called(torch.autograd.Function):
    """Stands for a call: its backward is this rank's part of the call's."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,  # noqa: ARG004
        run: Callable[[Sequence[torch.Tensor | None]], None],
        made: list[torch.Tensor],
        trained: list[bool],
        *ends: torch.Tensor,  # what may get a gradient by it
    ) -> Any:
        """Return what was made as what has edges."""
        ctx.ends = len(ends)
        ctx.run = run
        ctx.set_materialize_grads(False)
        apart = [t for t, is_trained in zip(made, trained, strict=True) if not is_trained]
        ctx.mark_non_differentiable(*apart)
        return tuple(made)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Run the backward of the call."""
        found = ctx.run(gradients)
        return None, None, None, None, *found, *[None] * (ctx.ends - len(found))
