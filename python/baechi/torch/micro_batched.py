# SPDX-License-Identifier: Apache-2.0
"""From a model and a mini-batch to a plan of a step of micro-batches, and a model that takes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from baechi._core import Graph, InputError, Plan
from baechi.pipeline import DoesNotFit
from baechi.progress import stage
from baechi.torch.asked import Request
from baechi.torch.base.mini_batch import (
    check_can_be_cut,
    check_division,
    check_loss_is_of_parts,
    check_no_values,
    cut,
    samples_in,
)
from baechi.torch.base.nested import map_tensors, tensors_in
from baechi.torch.base.request import check_loss
from baechi.torch.cost.graph_generator import check_again, graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.memory.fit import again_in, given_within, planned_within
from baechi.torch.memory.step_fit import StepMemory
from baechi.torch.planning import Planned, costs_of
from baechi.torch.record.capture import sum_of
from baechi.torch.record.recorded_step import LOSS, check_is_of, planned_ops
from baechi.torch.run.host_time import HostTime, host_time
from baechi.torch.run.stepping import Hosts, StepPlan
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.segments import divisible, inseparable, repeatable

_TOLD_APART = 1e-3  # of a step: less is not looked for another plan
_SURELY = 0.8  # of a step, for which the host's time may be wrong
_MOST = 32  # micro-batches that are tried where their number is to be found


def _own_loss(output: Any) -> torch.Tensor:
    """Return the loss that a model returns itself."""
    loss = getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise InputError(
            "a step of micro-batches needs a loss: give loss=, from what the model returns to a "
            "number (and from targets=, where there are some)"
        )
    return loss


def check_no_targets(targets: Any) -> None:
    """Raise InputError for targets where the script calls the loss itself."""
    if targets is not None:
        raise InputError("targets is for steps of micro-batches: give micro_batches, too")


class StepRequest:
    """What `place` is asked for with `micro_batches`."""

    def __init__(
        self,
        asked: Request,
        micro_batches: Any,
        loss: Any,
        targets: Any,
        *,
        over_ranks: bool = False,
    ) -> None:
        self.asked = asked
        self.targets = targets
        check_loss(loss, *(() if targets is None else ("targets",)))
        self.over_ranks = over_ranks
        self.is_of_calls = micro_batches is None  # over ranks, where the caller has the loss
        if self.is_of_calls:
            check_no_targets(targets)
            micro_batches, loss = 1, loss or sum_of
        if targets is not None and loss is None:
            raise InputError(
                "targets is for loss=: give the function of what the model returns and the targets"
            )
        self.loss: Callable[..., torch.Tensor] = loss or _own_loss
        if asked.level != "module":
            raise InputError("micro_batches are planned by modules: level='module'")
        if asked.tier == 1:
            raise InputError("micro_batches need a graph of the model: not tier=1")
        if not (self.is_of_calls or asked.model.training):
            raise InputError("micro_batches are steps of training: call model.train() first")
        example = asked.example_inputs
        self.samples = 1 if self.is_of_calls else samples_in(example, "example_inputs", targets)
        check_can_be_cut(targets, self.samples, "targets")
        if micro_batches != "auto":
            check_division(self.samples, micro_batches)
        if asked.plan is not None:
            micro_batches = self._as_planned(asked.plan, micro_batches)
        self.counts = [micro_batches] if micro_batches != "auto" else self._divisors()
        if self.counts != [1]:
            check_loss_is_of_parts(self.loss, self.samples)
            check_no_values(example, self.samples, "example_inputs")

    def _as_planned(self, plan: Plan, wanted: Any) -> int:
        if wanted not in ("auto", plan.micro_batches):
            raise InputError(
                f"the plan is of {plan.micro_batches} micro-batches, and {wanted} are asked for"
            )
        check_division(self.samples, plan.micro_batches)
        return plan.micro_batches

    def _divisors(self) -> list[int]:
        powers = (1 << k for k in range(_MOST.bit_length()))
        return [m for m in powers if m <= _MOST and self.samples % m == 0]

    def of_one(self, micro_batches: int, exported: Sequence[Exported] = ()) -> Request:
        """Return the request for one micro-batch of so many; `exported`: graphs that are there."""
        loss = self.loss
        if self.targets is not None:
            wanted = cut(self.targets, micro_batches)[0]

            def loss(output: Any) -> torch.Tensor:
                where = next(t.device for t in tensors_in(output))
                return self.loss(output, map_tensors(lambda t: t.to(where), wanted))

        example = cut(self.asked.example_inputs, micro_batches)[0]
        known = [*self.asked.exported, *exported]
        return replace(self.asked, example_inputs=example, loss=loss, exported=known)


class PlannedStep(Planned):
    """The plan of a step of micro-batches; the recorded step is of one of them."""

    in_steps = True

    def __init__(
        self, asked: StepRequest, micro_batches: int, exported: Sequence[Exported] = ()
    ) -> None:
        self.micro_batches = micro_batches
        self.step_request = asked
        super().__init__(asked.of_one(micro_batches, exported))

    @property
    def step_plan(self) -> StepPlan:
        """What runs when, by the operators of a micro-batch."""
        return self._step_plan_of(self.plan)

    def _step_plan_of(self, plan: Plan) -> StepPlan:
        asked = self.step_request
        return StepPlan(
            plan,
            self.micro_batches,
            asked.samples,
            asked.loss,
            asked.targets is not None,
            asked.loss is _own_loss,
            asked.is_of_calls,
            self._hosts,
            self._compares,
        )

    @property
    def takes_ns(self) -> int:
        """What a step takes, of the devices or of the host."""
        return host_time(self.step_plan).step

    def _find_plan(self) -> Plan:
        many = self.micro_batches
        name = f"planning {many} micro-batch{'es' if many > 1 else ''}"
        return stage(name)(self._search)()

    def _search(self) -> Plan:
        asked = self._asked
        costs = costs_of(
            asked.model,
            asked.example_inputs,
            self.captured,
            self.cluster,
            asked.costs,
            devices=self._chosen,
            loss=asked.loss,
            units=asked.units,
            adding=True,
        )
        # Gradients are added to in every micro-batch, so they are there while others run.
        self._trace()
        segments = [] if self._memory.graph is None else self._segments(self.captured)
        loss = [op.key for op in planned_ops(self.captured) if op.key.startswith(LOSS)]
        options: Any = {
            "together": [loss, *inseparable(segments)] if segments else [],
            "in_two": divisible(segments),
            "held_gradients": True,
            "repeated": repeatable(segments),
        }
        search = {**asked.search, "order": "planned", "micro_batches": self.micro_batches}

        def placed(method: dict[str, Any], **more: Any) -> Plan:
            how = {**options, **more}
            graph = graph_of(self.captured, costs, optimizer=asked.optimizer, **how).graph
            return self._placed(graph, {**search, **method})

        plan, peaks = placed({}), self.peaks
        if self._compares and self._has_many_parts(host := self._host_of(plan), plan):
            # A step of fewer parts may be shorter: stages, and the backward in one piece.
            stages = {"method": "pipeline"} if self.micro_batches > 1 else {}
            with contextlib.suppress(DoesNotFit):
                other = placed(stages, in_two=())
                if self._host_of(other).step < host.step * self._surely:
                    return other
            self.peaks = peaks
        return plan

    def _host_of(self, plan: Plan) -> HostTime:
        return host_time(self._step_plan_of(plan))

    @property
    def _surely(self) -> float:
        """What part of a step another one takes at most whose plan is longer.

        The host's time is a rough guess, and a host that is faster leaves the longer plan.
        """
        return 1.0 if self._hosts is Hosts.DEVICES else _SURELY

    def _has_many_parts(self, host: HostTime, plan: Plan) -> bool:
        """Whether a step of fewer parts may be shorter, although its plan is longer."""
        if not host.has_many_parts:
            return False
        if self._hosts is Hosts.DEVICES:
            return host.parts > _TOLD_APART * plan.makespan_ns
        return host.total > plan.makespan_ns

    @property
    def _hosts(self) -> Hosts:
        if not self.step_request.over_ranks:
            return Hosts.ONE
        return Hosts.DEVICES if all(d.type == "cpu" for d in self._chosen) else Hosts.EACH

    @property
    def _compares(self) -> bool:
        """Whether a plan of many parts is compared with one of fewer."""
        return self._asked.plan is None and self._asked.search.get("method", "auto") == "auto"

    def _placed(self, graph: Graph, search: dict[str, Any]) -> Plan:
        """Return a plan in which operators run again where that is asked for, or needed to fit."""
        recompute = self._asked.recompute
        again = {**search, "recompute": recompute}
        if recompute == "all":
            return self._within(graph, again)
        try:
            return self._within(
                graph, {**search, "suggest": False} if recompute == "auto" else search
            )
        except DoesNotFit:
            if recompute == "none":
                raise
        return self._within(graph, again)

    def _within(self, graph: Graph, search: dict[str, Any]) -> Plan:
        """Return a plan that fits as it will run."""
        plan, self.peaks = planned_within(graph, self.cluster, self._step_memory(), search)
        self.gradients = "held"
        return self._with_run_peaks(plan)

    def _step_memory(self) -> StepMemory:
        return StepMemory.of(self._memory, self._step_plan_of, self.step_request.over_ranks)

    def _given_plan(self, plan: Plan) -> Plan:
        made_with = "example inputs, the units and the micro_batches"
        check_is_of(self.captured, set(plan.micro_batch_graph.names), made_with)
        check_again(self.captured, again_in(plan))
        self._check_sizes(plan)
        if not plan.fits:
            raise InputError("the plan holds more on a device than its cluster has: see plan.peaks")
        if self.early is None:
            self._trace()
        self.peaks = given_within(plan, self._step_memory())
        self.gradients = "held"
        return plan

    def _check_sizes(self, plan: Plan) -> None:
        """Refuse a plan of micro-batches of another size, whose memory is another."""
        costs = estimate(self.captured, self.cluster)
        here = graph_of(self.captured, costs, optimizer=self._asked.optimizer).graph
        planned = plan.micro_batch_graph
        for name in here.names:
            found, made = here[name].outputs, planned[name].outputs
            if not here[name].backward and sum(found) != sum(made):
                raise InputError(
                    f"the plan is of another step: operator {name!r} makes {sum(made):,} bytes in "
                    f"it and {sum(found):,} here; give the mini-batch and the micro_batches that "
                    "it was made with"
                )

    def check_graph(self) -> None:
        """Raise InputError unless there is a graph, without which no step can run."""
        if self.early is None:
            self._trace()
        if self.early is not None and self.early.exported is None:
            name = type(self._asked.model).__name__
            raise InputError(
                f"micro_batches need a graph of {name}, and there is none: {self.early.reason}; "
                "without them, add up gradients yourself over several calls and backwards"
            )


def planned_step(asked: StepRequest) -> PlannedStep:
    """Return the shortest plan, of the numbers of micro-batches that come into question."""
    found: list[PlannedStep] = []
    for count in asked.counts:
        try:
            planned = PlannedStep(asked, count, found[-1].exported if found else ())
        except DoesNotFit:
            if count == asked.counts[-1] and not found:
                raise
            continue
        if asked.asked.to_run:
            planned.check_graph()
        found.append(planned)
    return min(found, key=lambda planned: planned.takes_ns)
