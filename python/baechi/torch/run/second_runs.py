# SPDX-License-Identifier: Apache-2.0
"""Second runs: forward calls that stand twice, so that nothing of theirs is kept for the backward.

Beyond the paper.

Random calls keep their generator's state for it, and leave the generator as it was.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.checkpoints import AGAIN, twins_of
from baechi.torch.capture.keys import is_random
from baechi.torch.run.away import KEY

_HERE = torch.device("cpu")  # stands for the device of a call
_STATE = "a generator's state"  # the value of a node that is one


def run_again(
    graph: fx.Graph, again: Collection[fx.Node], backward: Collection[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Have the nodes of the backward read second runs of some calls; return these by the first."""
    twins = twins_of(graph, again, backward)
    for node, twin in twins.items():
        if KEY in node.meta:
            twin.meta[KEY] = f"{node.meta[KEY]}@{AGAIN}"
        if is_random(node):
            _draw_alike(graph, node, twin)
    return twins


def _draw_alike(graph: fx.Graph, node: fx.Node, twin: fx.Node) -> None:
    """Have a random call give its generator's state, too, and its second run begin with that."""
    with graph.inserting_after(node):
        state = graph.call_function(operator.getitem, (node, 1))
        result = graph.call_function(operator.getitem, (node, 0))
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in (state, result))
    result.meta = {name: value for name, value in node.meta.items() if name != KEY}
    state.meta["val"] = _STATE
    node.meta["val"] = node.meta["val"], _STATE
    node.target, node.args = SaveAndRun(node.target), (_HERE, *node.args)
    twin.target, twin.args = RunFrom(twin.target), (_HERE, state, *twin.args)


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
