# SPDX-License-Identifier: Apache-2.0
"""Steps of a model over ranks, as its user asks for them on every rank."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from baechi.torch.base import _private
from baechi.torch.base.mini_batch import cut
from baechi.torch.base.nested import tensors_in
from baechi.torch.ranks.averaging import Averaging, Bucket, buckets_of
from baechi.torch.ranks.errors import digest
from baechi.torch.ranks.foreseen import Dry, Foreseen, WeightShape, rehearsed, step_foreseen
from baechi.torch.ranks.processes import Facts, Processes
from baechi.torch.ranks.scaling import agree_on
from baechi.torch.ranks.step import RankStep
from baechi.torch.ranks.transport import Transport
from baechi.torch.ranks.weights import sample_of, sum_of
from baechi.torch.run.assigner import Assigner
from baechi.torch.run.step_program import StepProgram
from baechi.torch.run.stepping import Stepper, StepPlan
from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.weights.homes import named_weights

_SAMPLED = 1024  # values of each tensor of a batch that ranks compare
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_RANK_SEED = 0x9E3779B97F4A7C15  # far apart


@dataclass
class _Known:
    """What a step with tensors of certain shapes does."""

    program: StepProgram
    shapes: Any
    foreseen: Foreseen
    digest: str
    trained: str
    graph: str
    buckets: list[Bucket] = field(default_factory=list)  # of this rank's gradients, with replicas


class RankStepper(Stepper):
    """Runs this rank's part of steps."""

    sends_later = False  # a message takes memory of the device when it is read

    def __init__(self, assigner: Assigner, planned: StepPlan, processes: Processes) -> None:
        super().__init__(assigner, planned)
        self._processes = processes
        # Means of the first gradients are taken while the rest of the backward runs.
        self.joins_parts = processes.replicas == 1
        weights = named_weights(assigner.model)
        self._weights = {name: WeightShape.of(weight) for name, weight in weights}
        self.device = assigner.devices[processes.rank]
        self.transport = Transport(processes, self.device, assigner.sent.fetched)
        self._known: list[_Known] = []

    def step(self, inputs: Any, targets: Any = None, scaler: Any = None) -> torch.Tensor:
        """Run this rank's part of a step; return the mean loss of all micro-batches."""
        mine = self._assigner
        self._processes.check()
        try:
            self._check_scaler(scaler)
            known, tensors = self._prepared(inputs, targets)
            facts: Facts | Exception = {
                **self._facts(known, inputs, targets),
                "state of the GradScaler": self._state_of(scaler),
            }
            own = values_of((inputs, targets))
        except Exception as error:
            facts, own = error, {}
        self._processes.agree("step", facts, own)

        loss, averaging = self._loss_with(targets, self._brought), self._averaging(known)
        step = RankStep(
            known.program,
            mine.sent,
            tensors,
            loss,
            known.foreseen,
            self.transport,
            averaging,
            scaler,
        )
        with self._processes.running(step.said), self.own_random(known.program):
            found = mine.run_step(step.run, (inputs, targets))
        assert known.program.loss_on is not None
        loss_on = known.program.loss_on
        found = self._processes.ended(loss_on, found, step.failure, step.left_to)
        return found.to(self.device.torch_device)

    def _state_of(self, scaler: Any) -> str:
        """Return what ranks must have alike of a GradScaler; it agrees with others from now on."""
        if scaler is None:
            return "none"
        agree_on(scaler, self._processes)
        if scaler.is_enabled() and _private.scale_of(scaler) is None:
            scaler.scale(torch.zeros((), device=self.device.torch_device))  # where no loss is, too
        return str(scaler.state_dict())

    def facts(self, inputs: Any, targets: Any) -> Facts:
        """Return what all ranks must know alike of a step."""
        return self._facts(self._prepared(inputs, targets)[0], inputs, targets)

    def _prepared(self, inputs: Any, targets: Any) -> tuple[_Known, Any]:
        self._check(inputs, targets)
        program, tensors = self.program(cut(inputs, self.micro_batches))
        trained = self.trained()
        shapes = shapes_in((inputs, targets)), trained
        for known in self._known:
            if known.program is program and known.shapes == shapes:
                return known, tensors
        loss = self._loss_with(targets, Dry.shape_of)
        foreseen = self.rehearsed(program, tensors, step_foreseen(loss))
        text = f"{program.order}\n{foreseen.text()}"
        graph = digest(text_of(program.graph))[:16]
        found = _Known(program, shapes, foreseen, digest(text), trained, graph)
        if self._processes.replicas > 1:
            found.buckets = buckets_of(program, self.averaged(foreseen), foreseen.of_loss)
        self._known = [*self._known[-7:], found]
        return found, tensors

    def trained(self) -> str:
        """Return what tells apart which weights are trained."""
        weights = named_weights(self._assigner.model)
        return digest(repr([name for name, w in weights if w.requires_grad]))[:16]

    def rehearsed(
        self, program: StepProgram, tensors: Any, run: Callable[[Dry], Foreseen]
    ) -> Foreseen:
        """Run a step, or a part of one, with shapes only; return what was found."""
        mine = self._assigner
        names = {device.name: device.index for device in mine.devices}
        owners = {name: names[device] for name, device in mine.weight_devices.items()}
        return rehearsed(program, mine.model, self._weights, owners, mine.devices, tensors, run)

    def averaged(self, foreseen: Foreseen) -> dict[str, torch.Tensor]:
        """Return the weights of this rank that get a gradient, by name."""
        here = self.device.name
        where = self._assigner.weight_devices
        weights = named_weights(self._assigner.model)
        return {n: w for n, w in weights if where[n] == here and n in foreseen.gradients}

    def _averaging(self, known: _Known) -> Averaging | None:
        if self._processes.replicas == 1:
            return None
        weights = self.averaged(known.foreseen)
        return Averaging(self._processes, self.device, weights, known.buckets)

    def _facts(self, known: _Known, inputs: Any, targets: Any) -> Facts:
        return {
            "shapes of the batch": str(shapes_in((inputs, targets))),
            "autocast": str(known.program.exported.autocast),
            "weights that are trained": known.trained,
            "graph, which follows from modes, attributes and arguments of the model": known.graph,
            "messages": known.digest[:16],
        }

    @contextlib.contextmanager
    def own_random(self, program: StepProgram) -> Iterator[None]:
        """Draw random numbers of this rank's own, lest it repeats what another rank drew.

        They follow from a number of the caller's generator on the host, which every rank draws: so
        a seed that is set again, or a state that was saved, brings them back.
        """
        nodes = program.graph.nodes
        drawing = [s for s in program.segments if any(nodes[n].random for n in s.nodes)]
        if not drawing:
            yield
            return
        drawn = int(torch.empty((), dtype=torch.int64).random_())
        if not any(s.device == self.device.index for s in drawing):
            yield
            return
        where = self.device.torch_device
        if where.type == "cpu":
            read, write = torch.get_rng_state, torch.set_rng_state
        else:
            module = torch.get_device_module(where)

            def read() -> torch.Tensor:
                return module.get_rng_state(where)

            def write(state: torch.Tensor) -> None:
                module.set_rng_state(state, where)

        before = read()
        seed = (drawn + self._processes.number * _RANK_SEED) % (1 << 63)
        write(torch.Generator(where).manual_seed(seed).get_state())
        try:
            yield
        finally:
            write(before)


def values_of(batch: Any) -> Facts:
    """Return what the ranks of each replica must have alike."""
    given = list(tensors_in(batch))
    samples = [f"{sum_of(t)} {sample_of(t, _SAMPLED).hex()}" for t in given]
    return {"values of the batch, which each is given whole": digest("".join(samples))[:16]}


def shapes_in(value: Any) -> list[tuple[Any, ...]]:
    """Return the shapes and types of the tensors in a batch."""
    return [(tuple(t.shape), str(t.dtype)) for t in tensors_in(value)]


def text_of(graph: ExportedGraph) -> str:
    """Return what a graph computes, alike in all processes that traced the same."""
    lines = []
    for node in graph.nodes:
        target = node.target
        if isinstance(target, torch.Tensor):
            about = tuple(target.shape), target.dtype, sum_of(target)
            target = f"{about} {sample_of(target, _SAMPLED).hex()}"
        lines.append(f"{node.kind} {target} {node.args} {node.kwargs}")
    return _ADDRESS.sub("", "\n".join([*lines, str(graph.outputs)]))
