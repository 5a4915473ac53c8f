# SPDX-License-Identifier: Apache-2.0
"""A plan whose peaks fit also in the order in which PyTorch allocates (beyond the paper)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster, Graph, Plan
from baechi.pipeline import DoesNotFit, place_graph
from baechi.progress import stage, warn
from baechi.torch.cost.graph_generator import repeatable_ops
from baechi.torch.memory.eager import Peak, StepContext, peaks_of
from baechi.torch.memory.graph import graph_peaks
from baechi.torch.memory.unforeseen import Unforeseen, unforeseen
from baechi.torch.record.recorded_step import Capture, repeated_ops
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.operators import InOrder
from baechi.torch.trace.placement import (
    GraphPlacement,
    Operators,
    ids_by_name,
    operators_of,
    weights_in,
)
from baechi.torch.trace.schedule import ORDER, Schedule
from baechi.torch.weights.homes import homes_by_name

_ATTEMPTS = 8


Peaks = dict[str, Peak]  # by device


@dataclass
class Memory:
    """What decides the memory beside the placement."""

    model: nn.Module
    captured: Capture  # of modules and functions
    devices: Sequence[str]
    tiers: tuple[int, ...]  # that may run it
    around: StepContext
    graph: GraphStep | None = None  # what tier 2 runs
    record_again: Callable[[Collection[str]], Capture] | None = None  # these operators run twice
    _again: dict[frozenset[str], Capture] = field(default_factory=dict)

    def of_plan(self, plan: Plan) -> dict[int, Peaks]:
        """Return the peaks by tier under a plan."""
        starts = dict(zip(plan.graph.names, plan.starts, strict=True))
        return self.peaks(first_runs(plan), starts, again_in(plan))

    def _captured_again(self, again: Collection[str]) -> Capture:
        if not again:
            return self.captured
        assert self.record_again is not None
        ops = self.captured.ops
        keys = frozenset(ops[index].key for index in repeated_ops(self.captured, again))
        if keys not in self._again:
            self._again = {keys: self.record_again(keys)}  # of the last plan
        return self._again[keys]

    @property
    def order(self) -> str:
        """Whose order runs: that of the plan or of the program."""
        return "plan" if self.graph is not None and self.graph.mode == ORDER else "program"

    @functools.cached_property
    def unforeseen(self) -> Unforeseen:
        """What a plan leaves beside its peaks."""
        return unforeseen(self.captured)

    def peaks(
        self,
        device_of: Mapping[str, str],
        starts: Mapping[str, int] | None = None,
        again: Collection[str] = (),
    ) -> dict[int, Peaks]:
        """Return the peaks by tier; those of tier 1 stand for a graph that there is not.

        Args:
            device_of: The device of every operator.
            starts: When the plan has each begin.
            again: Those that run again in the backward.

        Raises:
            NotExportedError: One of those cannot in the graph.

        """
        index = {name: i for i, name in enumerate(self.devices)}
        graphs = [] if self.graph is None else [self.graph.exported]
        operators, device_of = operators_of(self.captured, device_of, graphs, index)
        found: dict[int, Peaks] = {}
        if 1 in self.tiers or self.graph is None:
            own = own_again(self.captured, operators, again)
            found[1] = self._of_tier_1(self._captured_again(own), device_of)
        if 2 in self.tiers and self.graph is not None:
            found[2] = self._of_graph(self.graph, operators, device_of, starts or {}, again)
        return found

    def _of_tier_1(self, captured: Capture, device_of: Mapping[str, str]) -> Peaks:
        peaks = peaks_of(captured, device_of, self.around)
        names = [self.around.memory_of.get(d, d) for d in self.devices]
        return {name: peaks.get(name, Peak(0, "")) for name in names}

    def _of_graph(
        self,
        graph: GraphStep,
        operators: Operators | None,
        device_of: Mapping[str, str],
        starts: Mapping[str, int],
        again: Collection[str],
    ) -> Peaks:
        index = {name: i for i, name in enumerate(self.devices)}
        keys = {op.key for op in self.captured.ops}
        placement = GraphPlacement(
            {key: index[device] for key, device in device_of.items() if key in keys},
            operators,
            push=graph.mode != "plain",
            starts=starts if graph.mode == ORDER else None,
            physical=graph.physical,
            again=again,
        )
        weights = homes_by_name(self.captured, device_of)
        ids = ids_by_name(self.model)
        where = {ids[name]: index[device] for name, device in weights.items()}
        nodes = graph.exported.graph
        schedule = placement.scheduled(nodes, weights_in(self.model, nodes, where))
        recorded = graph.recorded(schedule)
        return graph_peaks(recorded, nodes, schedule, self.devices, weights, self.around)


@dataclass
class GraphStep:
    """How tier 2 runs the example inputs, and the step that was recorded of it."""

    exported: Exported
    mode: str
    physical: Sequence[torch.device]
    record: Callable[[Any], Capture]  # of the calls of a graph
    captured: Capture | None = None  # in the order of the program

    def recorded(self, schedule: Schedule) -> Capture:
        """Return the recorded step in the order of a schedule."""
        if self.mode == ORDER or schedule.blocks.segments:
            return self.record(InOrder(self.exported, schedule.order, schedule.blocks))
        if self.captured is None:
            self.captured = self.record(self.exported)
        return self.captured


GRADIENTS = {"auto": (True, False), "held": (True,), "freed": (False,)}  # held or not, in turn


@stage("planning")
def planned_for_gradients(
    graph: Callable[[bool], Graph], cluster: Cluster, memory: Memory, gradients: str, options: Any
) -> tuple[Plan, dict[int, dict[str, int]], str]:
    """Return a plan within memory, the peaks, and whether gradients are "held" or "freed".

    Args:
        graph: What to place, with the gradients of the step before or without.
        cluster: The devices.
        memory: What else decides the memory.
        gradients: One of GRADIENTS; "auto" has them held if any plan fits so.
        options: For `place_graph`.

    """
    ways = _ways(memory, cluster, gradients)
    for held, outputs in ways:
        memory.around = replace(memory.around, held_gradients=held, held_outputs=outputs)
        try:
            plan, peaks = planned_within(graph(held), cluster, memory, options)
        except DoesNotFit:
            if (held, outputs) == ways[-1]:
                raise
            continue
        _warn_of_freed("no plan is found that leaves room", ways[0], (held, outputs))
        return plan, peaks, "held" if held else "freed"
    raise AssertionError  # the last way returned or raised


def _ways(memory: Memory, cluster: Cluster, gradients: str) -> list[tuple[bool, bool]]:
    """Return whether gradients and outputs of the step before are held, in the order to try.

    Outputs of less than a hundredth of the device where the model is called always are.
    """
    turns = GRADIENTS[gradients] if memory.captured.training else (False,)
    returned = sum(tensor.bytes for tensor in memory.captured.tensors if tensor.returned)
    room = {device.name: device.capacity for device in cluster.devices}
    large = memory.around.home in room and returned * 100 > room[memory.around.home]
    return [(held, True) for held in turns] + ([(turns[-1], False)] if large else [])


def given_for_gradients(
    plan: Plan, memory: Memory, gradients: str
) -> tuple[dict[int, dict[str, int]], str]:
    """Return the peaks of a plan that was made before, and whether gradients are "held" or "freed".

    Args:
        plan: What is to run.
        memory: What else decides the memory.
        gradients: One of GRADIENTS; "auto" has them held if the plan has room for them.

    """
    ways = _ways(memory, plan.cluster, gradients)
    for held, outputs in ways:
        memory.around = replace(memory.around, held_gradients=held, held_outputs=outputs)
        try:
            peaks = given_within(plan, memory)
        except DoesNotFit:
            if (held, outputs) == ways[-1]:
                raise
        else:
            _warn_of_freed("the plan leaves no room", ways[0], (held, outputs))
            return peaks, "held" if held else "freed"
    raise AssertionError  # the last way returned or raised


def given_within(plan: Plan, memory: Memory) -> dict[int, dict[str, int]]:
    """Return the peaks of a plan that was made before, if it fits as it will run."""
    by_tier = _peaks_of(memory, plan)
    over = _over(memory, by_tier, plan.cluster)
    if over:
        raise DoesNotFit(_run_order(memory, by_tier, over, "the plan that was given"))
    return _in_bytes(by_tier)


def _warn_of_freed(why: str, safe: tuple[bool, bool], way: tuple[bool, bool]) -> None:
    """Say what a script has to let go of before each forward, where that is not planned for."""
    if safe[0] and not way[0]:
        warn(
            f"{why} for gradients while a forward runs: with this one, call zero_grad() before "
            "each forward and do not accumulate gradients (gradients='freed' says that you do so)"
        )
    if not way[1]:
        warn(
            f"{why} for what the step before returned while a forward runs: with this one, let go "
            "of it before each forward (`del out, loss`)"
        )


def planned_within(
    graph: Graph, cluster: Cluster, memory: Memory, options: Any
) -> tuple[Plan, dict[int, dict[str, int]]]:
    """Return a plan within memory also in the order in which PyTorch will run it, and the peaks.

    The planner assumes that a device takes up what is ready first. Where the order that runs needs
    more memory than a device has, the planner is asked again with less.
    """
    capacity = {device.name: device.capacity for device in cluster.devices}
    allowed = dict(capacity)
    nearest: _RunOrder | None = None
    for _ in range(_ATTEMPTS):
        try:
            plan = place_graph(graph, cluster.with_capacities(allowed), **options)
        except DoesNotFit:
            if nearest is None:
                raise
            break
        by_tier = _peaks_of(memory, plan)
        over = _over(memory, by_tier, cluster)
        if not over:
            if nearest is not None and nearest.by_room:
                warn(f"devices are planned to hold less than they could: {memory.unforeseen}")
            return plan if allowed == capacity else plan.with_cluster(cluster), _in_bytes(by_tier)
        found = _run_order(memory, by_tier, over, "the best plan found")
        if nearest is None or found.short_by < nearest.short_by:
            nearest = found
        for device, excess in over.items():
            allowed[device] = min(allowed[device], plan.peaks[device]) - excess
        if min(allowed.values()) <= 0:
            break
    assert nearest is not None  # the last plan was over
    raise DoesNotFit(nearest)


def _highest(by_tier: Mapping[int, Peaks], device: str) -> Peak:
    return max((each[device] for each in by_tier.values()), key=_size)


def _over(memory: Memory, by_tier: Mapping[int, Peaks], cluster: Cluster) -> dict[str, int]:
    """Return by how many bytes the devices are over their capacities, those that are."""
    most = {d.name: _highest(by_tier, d.name).bytes for d in cluster.devices}
    left = memory.unforeseen
    excess = {d.name: most[d.name] + left.of(most[d.name]) - d.capacity for d in cluster.devices}
    return {device: size for device, size in excess.items() if size > 0}


def _run_order(
    memory: Memory, by_tier: Mapping[int, Peaks], over: Mapping[str, int], which: str
) -> _RunOrder:
    """Say why a plan does not fit, at the device that is over by most."""
    worst = max(over, key=lambda device: over[device])
    most = max(_highest(by_tier, device).bytes for device in memory.devices)
    left = memory.unforeseen
    return _RunOrder(
        worst,
        _highest(by_tier, worst),
        over[worst],
        most + left.of(most),
        order=memory.order,
        plan=which,
        left=f", with {left}" if left.share else "",
        room=left.of(_highest(by_tier, worst).bytes),
    )


def peaks_by_tier(memory: Memory, plan: Plan) -> dict[int, dict[str, int]]:
    """Return the bytes that each device holds at most under a plan."""
    return _in_bytes(_peaks_of(memory, plan))


def _peaks_of(memory: Memory, plan: Plan) -> dict[int, Peaks]:
    return memory.of_plan(plan)


def again_in(plan: Plan) -> list[str]:
    """Return the operators that run again in a plan."""
    return [name for name, _ in plan.recomputed]


def first_runs(plan: Plan) -> dict[str, str]:
    """Return the devices of a plan's operators; second runs are where the first ones are."""
    if not plan.recomputed:
        return plan.device_of
    return {name: plan.device_of[name] for name in plan.micro_batch_graph.names}


def own_again(
    captured: Capture, operators: Operators | None, again: Collection[str]
) -> Collection[str]:
    """Return the module calls and functions that run again where the operators of a plan do.

    Where single calls were planned, it is those all of whose calls run again.
    """
    if operators is None or not again:
        return again
    known = [n for n in operators.graph.graph.nodes if n.key in operators.device_of]
    once = {node.owner for node in known if node.key not in again}
    may = {captured.ops[index].key for index in repeatable_ops(captured)}
    twice = {node.owner for node in known if node.key in again}
    return {key for key in may if key in twice - once}


def _in_bytes(by_tier: Mapping[int, Peaks]) -> dict[int, dict[str, int]]:
    return {tier: {d: peak.bytes for d, peak in each.items()} for tier, each in by_tier.items()}


def _size(peak: Peak) -> int:
    return peak.bytes


@dataclass(frozen=True)
class _RunOrder:
    """A plan that does not fit in the order that runs: the nearest one found, or the given one."""

    device: str
    peak: Peak
    short_by: int
    smallest_capacity: int  # at which it would have fitted
    smallest_device_count: None = None
    step_with_recomputation_ns: None = None
    proved: bool = False
    order: str = "program"
    plan: str = "the best plan found"
    left: str = ""  # why there has to be room beside the peak
    room: int = 0  # how much that is

    @property
    def by_room(self) -> bool:
        """Whether the peak itself would have fitted."""
        return self.short_by <= self.room

    @property
    def operator(self) -> str:
        return self.peak.operator

    @property
    def reason(self) -> str:
        return (
            f"in the order of the {self.order} {self.device!r} holds {self.peak.bytes:,} bytes at "
            f"{self.operator!r}{self.left}: {self.short_by:,} bytes short in {self.plan}, which "
            f"fits when every device has {self.smallest_capacity:,} bytes"
        )

    def __str__(self) -> str:
        return self.reason
