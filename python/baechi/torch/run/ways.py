# SPDX-License-Identifier: Apache-2.0
"""Which mode runs a placed model: the one whose step is predicted to be shortest (Paper 4.3).

`plain` is not among them: a copy in it occupies both its devices, so that in the same order no step
is shorter than with streams, which leave them free.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baechi._core import Plan
from baechi.summary import in_time
from baechi.torch.run.graph_gain import CLEARLY, WORTH_STEPS, Host, OrderGain
from baechi.torch.trace.schedule import ORDER

AUTO = "auto"


@dataclass(frozen=True)
class Way:
    """A way to run a model, and what is predicted for it."""

    mode: str
    tier: int
    step: float  # seconds, of the devices or of the host, whichever takes longer

    def __str__(self) -> str:
        return f"{in_time(1e9 * self.step)} with {self.mode!r} in tier {self.tier}"


@dataclass(frozen=True)
class Choice:
    """Which mode runs a model, and why."""

    mode: str
    why: str
    ways: tuple[Way, ...] = ()  # that were compared

    def __str__(self) -> str:
        steps = ", ".join(map(str, self.ways))
        return f"{self.mode!r} is taken: {self.why}" + (f" ({steps})" if steps else "")


def first_choice(mode: str, tier: str | int, plan: Plan | None) -> Choice:
    """Return what is known before anything is planned; what is automatic begins with streams."""
    if mode != AUTO:
        return Choice(mode, "it was asked for")
    if tier == 1:
        return Choice("streams", "tier 1 runs operators in the order of the program")
    if plan is None:
        return Choice("streams", "nothing was compared")
    chosen = ORDER if plan.order == "planned" else "streams"
    return Choice(chosen, f"the plan was made for the order {plan.order!r}")


def waited_for(choice: Choice, host: Host) -> Choice:
    """Return the choice, or the order of the program where it would have to wait for a graph."""
    gain = OrderGain(0.0, 0.0, host.tracing)
    if choice.mode != ORDER or gain.is_quick:
        return choice
    return Choice("streams", f"the graph that the order of the plan needs {_is_long(gain)}")


def _is_long(gain: OrderGain) -> str:
    return f"takes {gain.tracing:.1f} s to trace: mode={ORDER!r} asks for it"


@dataclass
class Comparison:
    """A plan in the order of the program beside one in its own order."""

    plan: Plan  # in the order of the program
    host: Host
    program_tiers: tuple[int, ...]  # that may run it
    traced: bool  # there is a graph already
    why: str = ""  # the order of the plan is not taken
    ordered: Plan | None = field(default=None)

    @property
    def _program(self) -> list[Way]:
        return [
            Way("streams", tier, self.host.step(self.plan.makespan_ns, tier))
            for tier in self.program_tiers
        ]

    def _gain(self, makespan_ns: int) -> OrderGain:
        """Return what the order saves, beside what a graph saves in either order."""
        tracing = 0.0 if self.traced else self.host.tracing
        step = self.host.step(self.plan.makespan_ns, 2)
        return OrderGain(step, self.host.step(makespan_ns, 2), tracing)

    def may_gain(self) -> bool:
        """Whether to search for a plan in its own order; none is shorter than the bounds."""
        gain = self._gain(max(self.plan.bounds.values(), default=0))
        if not gain.is_clear and gain.step > self.plan.makespan_ns / 1e9:
            self.why = "a step waits for the host, whatever the order"
        elif not gain.is_clear:
            self.why = f"no plan in its own order can be {CLEARLY:.0%} shorter"
        elif not gain.is_quick:
            self.ordered = self.plan.with_order("planned")
            self.why = self._too_long(self._gain(self.ordered.makespan_ns))
        elif not gain.is_worth_it:
            self.why = self._not_earned(gain)
        return not self.why

    def gains(self, ordered: Plan | None) -> bool:
        """Whether a plan in its own order is to run; None: none was found."""
        self.ordered = ordered
        if ordered is None:
            self.why = "no plan that was found in its own order fits"
            return False
        gain = self._gain(ordered.makespan_ns)
        if not gain.is_clear:
            self.why = f"a plan in its own order is not {CLEARLY:.0%} shorter"
        elif not gain.is_worth_it:
            self.why = self._not_earned(gain)
        return not self.why

    def choice(self) -> Choice:
        """Return the mode to run, and why."""
        ways = self._program
        if self.ordered is not None:
            ways.append(Way(ORDER, 2, self.host.step(self.ordered.makespan_ns, 2)))
        if self.why:
            return Choice("streams", self.why, tuple(ways))
        return Choice(ORDER, "its step is the shortest", tuple(ways))

    def _too_long(self, gain: OrderGain) -> str:
        if not gain.is_clear:
            return f"a graph, which the order of the plan needs, {_is_long(gain)}"
        return (
            f"a graph in the order of the plan, which saves about "
            f"{1e3 * (gain.step - gain.ordered):.3g} ms of {1e3 * gain.step:.3g} ms, "
            f"{_is_long(gain)}"
        )

    def _not_earned(self, gain: OrderGain) -> str:
        return (
            f"the order of the plan does not save in {WORTH_STEPS} steps the {gain.tracing:.1f} s "
            "that its graph takes to trace"
        )
