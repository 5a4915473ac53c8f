# SPDX-License-Identifier: Apache-2.0
"""The memory that decides whether a plan of a step of micro-batches fits (beyond the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import torch

from baechi._core import Plan
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.memory.beside import gradient_memory, permanent_memory, update_memory
from baechi.torch.memory.eager import UPDATE, Peak, StepContext
from baechi.torch.memory.fit import Memory, Peaks
from baechi.torch.memory.step_tapes import NotForeseenError
from baechi.torch.memory.steps import StepReplay
from baechi.torch.memory.unforeseen import Unforeseen
from baechi.torch.record.recorded_step import Capture, rounded
from baechi.torch.run.step_order import Part, Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.run.stepping import StepPlan
from baechi.torch.trace.placement import GraphPlacement, ids_by_name, weights_in
from baechi.torch.weights.homes import homes_by_name


@dataclass
class StepMemory(Memory):
    """What decides the memory of a step of micro-batches beside its plan."""

    step_plan: Callable[[Plan], StepPlan] | None = None
    over_ranks: bool = False  # what is sent takes memory when it is read

    @staticmethod
    def of(memory: Memory, step_plan: Callable[[Plan], StepPlan], over_ranks: bool) -> StepMemory:
        """Return that of steps, from what is known of a call."""
        known = {f.name: getattr(memory, f.name) for f in fields(Memory) if f.init}
        known["around"] = replace(memory.around, held_gradients=True)
        return StepMemory(**known, step_plan=step_plan, over_ranks=over_ranks)

    @property
    def order(self) -> str:
        """Whose order runs."""
        return "plan"

    @property
    def unforeseen(self) -> Unforeseen:
        """What a plan leaves beside its peaks: nothing."""
        return Unforeseen()

    def of_plan(self, plan: Plan) -> dict[int, Peaks]:
        """Return the peaks under a plan; without a graph, or where it does not tell, the plan's."""
        try:
            found = None if self.graph is None else self._of_step(plan)
        except NotForeseenError:
            found = None
        return {2: found or {name: Peak(size, "") for name, size in plan.peaks.items()}}

    def _of_step(self, plan: Plan) -> Peaks:
        assert self.graph is not None
        assert self.step_plan is not None
        graph, step = self.graph, self.step_plan(plan)
        if step.is_of_calls:  # the caller has the loss
            raise NotForeseenError
        if graph.captured is None:
            graph.captured = graph.record(graph.exported)
        weights = homes_by_name(self.captured, step.device_of)
        program = self._program(step, weights)
        captured, names = graph.captured, self.devices
        return step_peaks(
            captured, program, names, weights, self.around, over_ranks=self.over_ranks
        )

    def _program(self, step: StepPlan, weights: dict[str, str]) -> StepProgram:
        """Return what will run; what stands for its devices computes nothing."""
        assert self.graph is not None
        exported = self.graph.exported
        index = {name: i for i, name in enumerate(self.devices)}
        keys = {op.key for op in self.captured.ops}
        placement = {k: index[device] for k, device in step.device_of.items() if k in keys}
        ids = ids_by_name(self.model)
        where = {ids[name]: index[device] for name, device in weights.items()}
        placed = GraphPlacement(placement, physical=self.graph.physical)
        schedule = placed.scheduled(exported.graph, weights_in(self.model, exported.graph, where))
        nowhere = torch.device("meta")
        devices = [LogicalDevice(i, n, nowhere, False) for n, i in index.items()]
        assigner: Any = SimpleNamespace(model=self.model, placement=placement, devices=devices)
        graph: Any = SimpleNamespace(exported=exported, devices=schedule.devices)
        loss_on = None if step.loss_device is None else index[step.loss_device]

        def sent_at(phase: Phase, operator: str, micro_batch: int, target: int) -> list[int]:
            return step.sent_at(phase, operator, micro_batch, self.devices[target])

        return StepProgram(
            graph,
            assigner,
            step.micro_batches,
            step.start_of,
            loss_on,
            [name for name, _ in step.plan.recomputed],
            sent_at=None if self.over_ranks else sent_at,
            own_loss=step.own_loss,
            joined=step.joins_parts,
        )


def step_peaks(
    captured: Capture,
    program: StepProgram,
    names: Sequence[str],
    weights: Mapping[str, str],
    around: StepContext,
    *,
    over_ranks: bool = False,
) -> dict[str, Peak]:
    """Return the most bytes that each device holds in a step of micro-batches.

    Args:
        captured: The recorded step of the graph, of one micro-batch.
        program: What runs.
        names: Of the devices that the program numbers.
        weights: The device of every parameter and buffer.
        around: What else decides.
        over_ranks: What is sent takes memory when it is read.

    """
    home = names.index(around.home) if around.home in names else None
    most = StepReplay(captured, program, home, over_ranks=over_ranks).run()
    update = update_memory(captured, weights, around.optimizer, around.host)
    always = [permanent_memory(captured, weights, around.optimizer), _constants(program, names)]
    always += [gradient_memory(captured, weights)]
    if around.home is not None:
        always.append({around.home: around.given})
    result: dict[str, Peak] = {}
    for index, name in enumerate(names):
        size, part = most.get(index, (0, None))
        said = "" if part is None else _said(program, part)
        if update.get(name, 0) > size:
            size, said = update[name], UPDATE
        result[name] = Peak(size + sum(each.get(name, 0) for each in always), said)
    return result


def _said(program: StepProgram, part: Part) -> str:
    if part.phase is Phase.LOSS:
        return "the loss"
    segment = program.segments[part.segment]
    return next(iter(segment.operators), program.graph.nodes[segment.nodes[0]].key)


def _constants(program: StepProgram, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of constants: each segment that reads one has it."""
    held_there: dict[str, int] = {}
    nodes = program.graph.nodes
    for segment in program.segments:
        read = {r for n in segment.nodes for r in nodes[n].reads if nodes[r].kind == "constant"}
        if segment.device is not None:
            size = sum(rounded(nodes[r].target.untyped_storage().nbytes()) for r in read)
            name = names[segment.device]
            held_there[name] = held_there.get(name, 0) + size
    return held_there
