# SPDX-License-Identifier: Apache-2.0
"""Second runs: forward calls that stand twice, so that nothing of theirs is kept for the backward.

Beyond the paper.

A second run reads what is alive, or second runs of its own. Random calls keep their generator's
state for it, and leave the generator as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from baechi.torch.capture.keys import is_random
from baechi.torch.program.calls import Call, Calls, Order
from baechi.torch.program.instructions import HERE, Run, Slot, mapped, reads_of

AGAIN = "again"


def run_again(calls: Calls, again: Collection[Hashable], backward: Collection[Hashable]) -> Calls:
    """Have the ``backward`` nodes read second runs of the nodes ``again`` in place of the first.

    A second run's node is ``(node, AGAIN)``. Without an order it comes before its first reader.
    """
    return _Again(calls, set(again), set(backward)).result()


class _Again:
    def __init__(self, calls: Calls, again: set[Hashable], backward: set[Hashable]) -> None:
        self.calls, self.again, self.backward = calls, again, backward
        self.maker = {slot.name: call for call in calls.calls for slot in call.run.outs}
        self.twins: dict[str, Slot] = {}
        self.made: list[Call] = []
        self.table = list(calls.table)
        for node in again:
            call = next((call for call in calls.calls if call.node == node), None)
            if call is None or call.view or call.changes or node in backward:
                raise ValueError(f"{node}: only a forward call that makes memory can run again")

    def result(self) -> Calls:
        for call in self.calls.calls:
            if call.node in self.backward and not call.lazy:
                self.made.append(self.reading(call, call.run))
            elif call.node in self.again and is_random(call.run):
                self.made.append(self.saving(call))
            else:
                self.made.append(call)
        order = Order()
        for i, call in enumerate(self.made):
            again = isinstance(call.node, tuple) and call.node[-1] == AGAIN
            for slot in reads_of(call.run):
                if again and slot.storage in order.changer:
                    raise ValueError(
                        f"{call.run.name}: what it reads was changed before it runs again"
                    )
            if not call.view:
                after = order.after(call.node, call.run, call.changes)
                self.made[i] = replace(call, after=tuple(after))
        return replace(self.calls, calls=self.made, table=self.table)

    def reading(self, call: Call, run: Run) -> Call:
        """Return a call that reads second runs where there are some."""

        def told(part: Any) -> Any:
            return self.twin(part) if isinstance(part, Slot) else part

        run = replace(run, args=mapped(run.args, told), kwargs=mapped(run.kwargs, told))
        return replace(call, run=run)

    def twin(self, slot: Slot) -> Slot:
        """Return the slot of a second run, or the slot itself."""
        if slot.name in self.twins:
            return self.twins[slot.name]
        call = self.maker.get(slot.name)
        if call is None or not self.second(call):
            return slot
        twin = self.reading(call, self.drawing(call))

        def renamed(part: Any) -> Any:
            if not isinstance(part, Slot):
                return part
            of = part.of and (self.twins[part.of].name if part.of in self.twins else part.of)
            self.twins[part.name] = replace(part, name=f"{part.name}.{AGAIN}", of=of)
            return self.twins[part.name]

        out = mapped(twin.run.out, renamed)
        again = replace(twin.run, out=out, name=f"{twin.run.name}@{AGAIN}")
        self.made.append(replace(twin, node=(call.node, AGAIN), run=again, after=()))
        return self.twins[slot.name]

    def second(self, call: Call) -> bool:
        """Tell whether a call stands twice: one that is asked to, and what costs nothing of it."""
        if call.node in self.again:
            return True
        reads = reads_of(call.run)
        return call.lazy and any(self.twin(slot) is not slot for slot in reads)

    def saving(self, call: Call) -> Call:
        """Return a random call that gives its generator's state, too."""
        state = self.state(call)
        run = call.run
        target = self.function(SaveAndRun(run.target))
        return replace(
            call, run=replace(run, target=target, args=(HERE, *run.args), out=(run.out, state))
        )

    def drawing(self, call: Call) -> Run:
        """Return the second run of a call, from the state of the first if it is random."""
        run = call.run
        if not is_random(run):
            return run
        target = self.function(RunFrom(run.target))
        return replace(run, target=target, args=(HERE, self.state(call), *run.args))

    def state(self, call: Call) -> Slot:
        return Slot(f"{call.run.outs[0].name}.state")

    def function(self, made: Any) -> Any:
        self.table.append(made)
        return made


@dataclass(frozen=True, eq=False)
class SaveAndRun:
    """A random call that returns its result and its generator's state before."""

    target: Any
    draws = True
    __name__ = "save_and_run"  # what graphs call it

    def __call__(self, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        state = _state_of(device)
        return self.target(*args, **kwargs), state


@dataclass(frozen=True, eq=False)
class RunFrom:
    """A random call that is given its generator's state, and puts back the generator's own."""

    target: Any
    __name__ = "run_from"

    def __call__(self, device: torch.device, state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        now = _state_of(device)
        _set_state(device, state)
        try:
            return self.target(*args, **kwargs)
        finally:
            _set_state(device, now)


def _state_of(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
