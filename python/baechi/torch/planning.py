# SPDX-License-Identifier: Apache-2.0
"""From a model, a cluster and what else is asked for to a plan; nothing is placed yet."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster, Graph, InputError, Plan
from baechi.pipeline import DoesNotFit
from baechi.progress import stage, warn
from baechi.torch.asked import Request, cluster_on, context_of
from baechi.torch.base.request import devices_too_small, unknown_costs
from baechi.torch.cost.graph_generator import check_again, graph_of
from baechi.torch.cost.profiler import Costs, estimate, measure_on
from baechi.torch.memory.fit import (
    GraphStep,
    Memory,
    again_in,
    given_for_gradients,
    peaks_by_tier,
    planned_for_gradients,
    planned_within,
)
from baechi.torch.record.capture import RecordingPlace
from baechi.torch.record.recorded_step import Capture, check_is_of, planned_ops
from baechi.torch.run.graph_gain import gain_of, host_of
from baechi.torch.run.ways import AUTO, Choice, Comparison, first_choice, waited_for
from baechi.torch.trace.graph import Node, NotExportedError
from baechi.torch.trace.operators import kept_together
from baechi.torch.trace.placement import operators_of
from baechi.torch.trace.schedule import ORDER
from baechi.torch.trace.segments import Segment, inseparable, repeatable, segments_of
from baechi.torch.trace.surroundings import ExampleGraph, graph_of_example

AGAIN = "nothing was compared, since operators run again in the backward"


def costs_of(
    model: nn.Module,
    example_inputs: Any,
    captured: Capture,
    cluster: Cluster,
    costs: Any,
    *,
    devices: Sequence[torch.device],
    loss: Callable[[Any], torch.Tensor] | None = None,
    units: Any = "leaf",
    adding: bool = False,
) -> Costs:
    """Return costs that were given, or find them as `costs` says: "estimate" or "measure"."""
    if isinstance(costs, Costs):
        return costs
    if costs == "estimate":
        return estimate(captured, cluster, adding=adding)
    if costs != "measure":
        raise unknown_costs(costs)
    first: dict[str, torch.device] = {}
    for described, device in zip(cluster.devices, devices, strict=True):
        first.setdefault(described.kind, device)
    return measure_on(first, model, example_inputs, captured, loss=loss, units=units, adding=adding)


class Planned:
    """A recorded step of what was asked for, its plan, and what the plan takes.

    Attributes:
        plan: What runs where and when.
        captured: The step by modules and functions, whatever was planned.
        physical_of: The physical device of each of the cluster's.
        choice: The mode that runs it, and why.
        peaks: The most bytes that each device will hold, by tier and device.
        gradients: Whether those of the step before are "held" while a forward runs, or "freed".
        early: The graph of the example inputs, where it was wanted, or why there is none.
        too_large: Why that graph has no room under the plan.
        again: The operators that run again in the backward, by key.

    """

    in_steps = False  # whoever runs it switches autocast as it is around the trace

    def __init__(self, asked: Request) -> None:
        self._asked = asked
        self.cluster, self.physical_of = cluster_on(asked)
        self._chosen = list(self.physical_of.values())
        place = RecordingPlace(self._chosen[0])
        self._record = functools.partial(
            place.capture, asked.model, asked.example_inputs, loss=asked.loss
        )
        self.captured = self._record(units=asked.units)
        self._memory = Memory(
            asked.model,
            self.captured,
            list(self.physical_of),
            tiers=(asked.tier,) if isinstance(asked.tier, int) else (1, 2),
            around=context_of(asked, self.cluster, self.physical_of),
            record_again=lambda keys: self._record(units=asked.units, again=keys),
        )
        self.again: frozenset[str] = frozenset()
        self.early: ExampleGraph | None = None
        self.exported = list(asked.exported)
        self.too_large = ""
        self.choice = first_choice(asked.mode, asked.tier, asked.plan)
        given = asked.tier != 1 and bool(asked.exported)
        may_wait = asked.plan is None or not asked.plan.recomputed  # else it is of that order only
        if asked.mode == AUTO and asked.tier != 2 and not given and may_wait:
            self.choice = waited_for(self.choice, host_of(self.captured, {}))
        if asked.tier == 2 or self.choice.mode == ORDER or asked.level == "operator" or given:
            self._trace()
        self.plan = self._find_plan() if asked.plan is None else self._given_plan(asked.plan)
        self._check_shared()

    def _check_shared(self) -> None:
        """Say where devices of the cluster need more than the one that they share has."""
        small = devices_too_small(self._most(), self.physical_of, together=True)
        for device, (need, there) in list(small.items())[:1]:
            names = [name for name, physical in self.physical_of.items() if physical == device]
            if len(names) > 1:
                warn(
                    f"{', '.join(names)} share {device}, which has {there:,} bytes: their peaks "
                    f"are {need:,} together, so that a step may run out of memory; name a cluster "
                    "whose devices on it have no more than it has"
                )

    def _trace(self) -> None:
        asked = self._asked
        types = {device.type for device in self._chosen}
        self.early = graph_of_example(
            asked.model,
            asked.example_inputs,
            asked.units,
            types,
            asked.exported,
            training=self.captured.training,
            in_steps=self.in_steps,
        )
        graph = self.early.exported
        if graph is not None:
            self.exported = [graph, *(e for e in asked.exported if e is not graph)]
            self._memory.graph = GraphStep(
                graph, self.choice.mode, self._chosen, lambda units: self._record(units=units)
            )

    @property
    def _order(self) -> str:
        """The order in which operators run; only a graph can follow a plan's own."""
        ordered = self.choice.mode == ORDER and self._memory.graph is not None
        return "planned" if ordered else "program"

    def _given_plan(self, plan: Plan) -> Plan:
        asked, memory = self._asked, self._memory
        step = self.captured
        if any(op.key not in plan.device_of for op in planned_ops(self.captured)):
            if self.early is None:
                self._trace()  # it may be a plan of the calls of a graph
            index = {name: i for i, name in enumerate(self.physical_of)}
            if operators_of(self.captured, plan.device_of, self.exported, index)[0] is None:
                check_is_of(self.captured, plan.device_of)
            elif plan.recomputed:
                step = self._record(units=self.exported[0])
        if plan.recomputed:
            check_again(step, again_in(plan))
            self.again = frozenset(again_in(plan))
        if self.choice.mode == ORDER and memory.graph is None and asked.mode == AUTO:
            if plan.recomputed:
                raise InputError(f"the plan is of an order that needs a graph: {self._no_graph()}")
            self.choice = Choice("streams", self._no_graph())
        replayed = self._order == "program" != plan.order
        if replayed:
            plan = plan.with_order("program")
        with self._in_a_graph():
            found = given_for_gradients(plan, memory, asked.gradients)
        self.peaks, self.gradients = found
        if self.early is None and asked.tier != 1:
            self._trace_if_worth_it(plan)
        return self._with_run_peaks(plan) if replayed else plan

    @contextlib.contextmanager
    def _in_a_graph(self) -> Iterator[None]:
        """Raise InputError where a graph cannot run operators again that are to."""
        try:
            yield
        except NotExportedError as reason:
            name = type(self._asked.model).__name__
            raise InputError(f"{name} cannot run in tier 2 as it is planned: {reason}") from reason

    def _with_run_peaks(self, plan: Plan) -> Plan:
        return plan.with_run_peaks(self._most())

    def _most(self) -> dict[str, int]:
        """Return the peak of each device in whatever tier runs."""
        return {n: max(each[n] for each in self.peaks.values()) for n in self.physical_of}

    def _find_plan(self) -> Plan:
        asked, memory = self._asked, self._memory
        together: list[list[str]] = []
        step, units = self.captured, asked.units
        if asked.level == "operator" and memory.graph is not None:
            units = memory.graph.exported
            step = memory.graph.captured = self._record(units=units)
            together = kept_together(units, step)
        elif asked.level == "operator":
            assert self.early is not None  # a graph was wanted
            name = type(asked.model).__name__
            said = f"{name} is planned by modules: {self.early.reason}"
            warn(said)
        costs = costs_of(
            asked.model,
            asked.example_inputs,
            step,
            self.cluster,
            asked.costs,
            devices=self._chosen,
            loss=asked.loss,
            units=units,
        )

        may = memory.captured.training and asked.recompute != "none"
        segments = self._segments(step) if may and memory.graph is not None else None

        def graph(held: bool, again: bool = False) -> Graph:
            options: Any = {"together": together, "held_gradients": held}
            if segments is not None:
                options["repeated"] = repeatable(segments)
                options["together"] = together + (inseparable(segments) if again else [])
            return graph_of(step, costs, optimizer=asked.optimizer, **options).graph

        search = {**asked.search, "order": self._order}
        if may and asked.recompute == "all":
            return self._find_plan_again(graph)
        first = {**search, "suggest": False} if may else search
        found = None
        try:
            found = planned_for_gradients(graph, self.cluster, memory, asked.gradients, first)
        except DoesNotFit:
            if not may:
                raise
        if found is None:  # outside: what it may raise in turn stands alone
            return self._find_plan_again(graph)
        plan, self.peaks, self.gradients = found
        if asked.mode == AUTO and asked.tier != 1:
            plan = self._shortest(plan, graph)
        if asked.to_run and self.early is None and asked.tier != 1:
            self._trace_if_worth_it(plan)
        return self._with_run_peaks(plan)

    def _segments(self, step: Capture) -> list[Segment]:
        """Return what the calls of the graph are by the operators that are planned."""
        assert self._memory.graph is not None
        graph = self._memory.graph.exported.graph
        known = {op.key for op in planned_ops(step)}
        single = step is not self.captured  # calls are planned

        def operator_of(node: Node) -> str | None:
            key = node.key if single else node.owner
            return key if key in known else None

        return segments_of(graph, [0] * len(graph.nodes), operator_of)

    def _find_plan_again(self, graph: Callable[[bool, bool], Graph]) -> Plan:
        """Return a plan in which operators run again in the backward."""
        asked, memory = self._asked, self._memory
        search = {**asked.search, "order": self._order, "recompute": asked.recompute}
        with self._in_a_graph():
            plan, self.peaks, self.gradients = planned_for_gradients(
                lambda held: graph(held, True), self.cluster, memory, asked.gradients, search
            )
        self.again = frozenset(again_in(plan))
        if asked.mode == AUTO:
            self.choice = Choice(self.choice.mode, AGAIN)
        if asked.to_run and self.early is None and asked.tier != 1:
            self._trace_if_worth_it(plan)
        return self._with_run_peaks(plan)

    def _shortest(self, plan: Plan, graph: Callable[[bool], Graph]) -> Plan:
        """Return the plan of the mode with the shortest step: `plan`, or one in its own order."""
        if self.early is not None and self._memory.graph is None:
            self.choice = Choice("streams", self._no_graph())
            return plan
        index = {name: i for i, name in enumerate(self.physical_of)}
        operators, device_of = operators_of(self.captured, plan.device_of, self.exported, index)
        traced = self.early is not None
        worth = traced or gain_of(self.captured, device_of, plan).is_worth_it
        tiers = tuple(t for t in self._memory.tiers if (worth if t == 2 else operators is None))
        compared = Comparison(plan, host_of(self.captured, device_of), tiers, traced)
        ordered, peaks = self._planned_order(graph) if compared.may_gain() else (None, {})
        if not compared.why and compared.gains(ordered) and ordered is not None:
            if not traced:
                compared.why, peaks = self._traced_in_order(ordered)
            if not compared.why:
                self.choice, self.peaks = compared.choice(), peaks
                return ordered
        self.choice = compared.choice()
        if self._memory.graph is not None:
            self._memory.graph.mode = self.choice.mode
            if not traced:
                self._check_graph(plan)
        return plan

    @stage("planning")
    def _planned_order(
        self, graph: Callable[[bool], Graph]
    ) -> tuple[Plan | None, dict[int, dict[str, int]]]:
        """Return a plan in its own order and its peaks; those of a graph only if there is one."""
        memory = self._memory
        if memory.graph is not None:
            memory.graph.mode = ORDER
        search = {**self._asked.search, "order": "planned"}
        try:
            return planned_within(graph(self.gradients == "held"), self.cluster, memory, search)
        except DoesNotFit:
            return None, {}

    def _traced_in_order(self, plan: Plan) -> tuple[str, dict[int, dict[str, int]]]:
        """Trace the model for a plan in its own order; return why it cannot run so, and peaks."""
        self._trace()
        if self._memory.graph is None:
            return self._no_graph(), {}
        self._memory.graph.mode = ORDER
        peaks = peaks_by_tier(self._memory, plan)
        large = _too_large(peaks[2], self.cluster)
        return large and f"in the order of the plan {large}", peaks

    def _no_graph(self) -> str:
        assert self.early is not None
        return f"{type(self._asked.model).__name__} has no graph: {self.early.reason}"

    def _trace_if_worth_it(self, plan: Plan) -> None:
        if gain_of(self.captured, plan.device_of, plan).is_worth_it:
            self._trace()
            self._check_graph(plan)

    def _check_graph(self, plan: Plan) -> None:
        """Let a graph that nobody asked for run only if it has room."""
        if self._memory.graph is None:
            return
        try:
            both = peaks_by_tier(self._memory, plan)
        except NotExportedError as reason:
            self.too_large = f"in its graph {reason}"
        else:
            self.too_large = _too_large(both[2], self.cluster)
        if self.too_large:
            self.exported = []
        else:
            self.peaks = both


def _too_large(peaks: Mapping[str, int], cluster: Cluster) -> str:
    """Say where a graph has no room; empty where it has."""
    for device in cluster.devices:
        over = peaks[device.name] - device.capacity
        if over > 0:
            return f"its graph needs {over:,} bytes more than {device.name!r} has in this plan"
    return ""
