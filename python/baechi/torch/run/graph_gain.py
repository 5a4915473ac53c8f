# SPDX-License-Identifier: Apache-2.0
"""Whether a graph of a model is worth its tracing, before it is traced (Paper 4.3, the Assigner).

Tier 2 saves the host the interception of calls, which shortens a step where the devices wait for
the host; and it alone can run operators in the order of the plan, which shortens one where they
wait for each other. Both are paid for with the time of torch.export, which grows with the calls of
the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from baechi._core import Plan
from baechi.torch.record.recorded_step import LOSS, Capture
from baechi.torch.run.planned_pieces import intercepted_calls

# Seconds of a processor, as `bench/torch_overhead.py gain` measures them.
TRACING = 0.3  # of any graph
TRACING_PER_CALL = 0.010  # and of a module call or torch function in it
INTERCEPTED = 40e-6  # that a call takes more in tier 1 where it is intercepted
OWN = 50e-6  # that the host takes for a call and its backward by itself

WORTH_STEPS = 1000  # in which a graph must have saved what its tracing took
PATIENCE = 1.0  # seconds that nobody is kept waiting without having asked
PATIENCE_FOR_ORDER = 5.0  # for the order of the plan: what it saves is no guess about the host
CLEARLY = 0.03  # of a step, that the order of the plan must save: predictions are no better


@dataclass(frozen=True)
class GraphGain:
    """What a graph in the order of the program is predicted to save and to take, in seconds."""

    step: float  # in tier 1
    saved: float  # of a step
    tracing: float

    @property
    def is_quick(self) -> bool:
        """Whether nobody need be told before it is traced."""
        return self.tracing <= PATIENCE

    @property
    def is_worth_it(self) -> bool:
        """Whether to trace without being asked."""
        return self.is_quick and self.saved * WORTH_STEPS >= self.tracing

    def __str__(self) -> str:
        share = 100 * self.saved / self.step if self.step else 0.0
        return (
            f"a graph would save about {1e3 * self.saved:.3g} ms of a step's "
            f"{1e3 * self.step:.3g} ms ({share:.0f}%) and take {self.tracing:.1f} s to trace: "
            "tier=2 asks for it"
        )


@dataclass(frozen=True)
class OrderGain:
    """What the order of a plan is predicted to save over that of the program, in seconds."""

    step: float  # in the order of the program
    ordered: float  # in the order of the plan
    tracing: float  # that is not spent yet

    @property
    def is_clear(self) -> bool:
        """Whether the step is shorter by more than predictions are off."""
        return self.ordered < (1 - CLEARLY) * self.step

    @property
    def is_worth_it(self) -> bool:
        """Whether to run in that order without being asked."""
        saved = self.step - self.ordered
        return self.is_clear and self.is_quick and saved * WORTH_STEPS >= self.tracing

    @property
    def is_quick(self) -> bool:
        """Whether its tracing may be waited for."""
        return self.tracing <= PATIENCE_FOR_ORDER


@dataclass(frozen=True)
class Host:
    """What the host takes for a step under a placement, in seconds, and what a trace would."""

    graph: float  # for a graph's
    intercepted: float  # more in tier 1
    tracing: float

    def step(self, makespan_ns: int, tier: int) -> float:
        """Return what a step takes: the devices and the host work side by side."""
        return max(makespan_ns / 1e9, self.graph + (self.intercepted if tier == 1 else 0.0))


def host_of(captured: Capture, device_of: Mapping[str, Any]) -> Host:
    """Return what the host takes; `device_of`: the device, or its name, of every operator."""
    calls = [op for op in captured.ops if not op.key.startswith(LOSS)]
    return Host(
        OWN * len(calls),
        INTERCEPTED * intercepted_calls(captured, device_of),
        TRACING + TRACING_PER_CALL * len(captured.ops),
    )


def gain_of(captured: Capture, device_of: Mapping[str, Any], plan: Plan | None) -> GraphGain:
    """Return what a graph would gain under a placement.

    Args:
        captured: The recorded step.
        device_of: The device, or its name, of every operator.
        plan: How long the devices take for a step; None if that is unknown, and taken for nothing.

    """
    host = host_of(captured, device_of)
    makespan = 0 if plan is None else plan.makespan_ns
    step = host.step(makespan, 1)
    return GraphGain(step, step - host.step(makespan, 2), host.tracing)
