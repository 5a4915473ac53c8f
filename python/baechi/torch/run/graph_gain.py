# SPDX-License-Identifier: Apache-2.0
"""Whether a graph of a model is worth its tracing, before it is traced (Paper 4.3, the Assigner).

Tier 2 saves the host the interception of calls. That shortens a step where the devices wait for the
host, and is paid for with the time of torch.export, which grows with the calls of the model.
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


@dataclass(frozen=True)
class GraphGain:
    """What a graph is predicted to save and to take, in seconds."""

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


def gain_of(captured: Capture, device_of: Mapping[str, Any], plan: Plan | None) -> GraphGain:
    """Return what a graph would gain under a placement.

    Args:
        captured: The recorded step.
        device_of: The device, or its name, of every operator.
        plan: How long the devices take for a step; None if that is unknown, and taken for nothing.

    """
    calls = [op for op in captured.ops if not op.key.startswith(LOSS)]
    intercepted = INTERCEPTED * intercepted_calls(captured, device_of)
    host = OWN * len(calls) + intercepted
    makespan = 0.0 if plan is None else plan.makespan_ns / 1e9
    step = max(makespan, host)
    saved = step - max(makespan, host - intercepted)
    return GraphGain(step, saved, TRACING + TRACING_PER_CALL * len(captured.ops))
