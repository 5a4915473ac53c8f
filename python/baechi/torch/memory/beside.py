# SPDX-License-Identifier: Apache-2.0
"""What devices hold beside a step: weights, the optimizer's state, and gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from baechi.torch.cost.optimizers import OPTIMIZERS
from baechi.torch.record.recorded_step import Capture

# Bytes per byte of the parameters that an optimizer needs while it updates all of a device at once,
# as it does by default on accelerators (`foreach`).
UPDATES = {"rmsprop": 1, "adam": 1, "adamw": 1}
# And per byte of the largest parameter where it updates them one by one: with some on the CPU.
SINGLE_UPDATES = {"rmsprop": 1, "adam": 2, "adamw": 2}
# And per byte of the largest sparse gradient, whose rows it takes out of the state and puts back.
SPARSE_UPDATES = {"adam": 6}


def permanent_memory(
    captured: Capture, weights: Mapping[str, str], optimizer: str
) -> dict[str, int]:
    """Return the bytes of weights and optimizer state on each device that has any."""
    state = OPTIMIZERS[optimizer] if captured.training else 0
    result: dict[str, int] = {}
    for name, device in weights.items():
        weight = captured.weights[name]
        held = weight.bytes * (1 + (state if weight.trained else 0))
        result[device] = result.get(device, 0) + held
    return result


def _gradients(captured: Capture) -> dict[str, int]:
    """Return the bytes of the gradients of the weights that got one."""
    seen = {node.weight for node in captured.nodes if node.weight is not None}
    return {
        weight.name: weight.bytes if weight.gradient is None else weight.gradient
        for weight in captured.weights.values()
        if weight.gradient is not None or weight.name in seen
    }


def room_for_later(captured: Capture, weights: Mapping[str, str], optimizer: str) -> dict[str, int]:
    """Return the bytes of optimizer state, by device, for weights that got no gradient.

    Another batch may give them one, so `permanent_memory` counts it.
    """
    received = {node.weight for node in captured.nodes if node.received}
    result = dict.fromkeys(weights.values(), 0)
    for name, device in weights.items():
        weight = captured.weights[name]
        if weight.trained and weight.gradient is None and name not in received:
            result[device] += weight.bytes * OPTIMIZERS[optimizer]
    return result


def gradient_memory(captured: Capture, weights: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes of all weights' gradients on each device that has any."""
    result: dict[str, int] = {}
    for name, size in _gradients(captured).items():
        result[weights[name]] = result.get(weights[name], 0) + size
    return result


def update_memory(
    captured: Capture, weights: Mapping[str, str], optimizer: str, host: Collection[str] = ()
) -> dict[str, int]:
    """Return the bytes that the optimizer needs on each device while it updates the weights."""
    found = [(weights[name], name, size) for name, size in _gradients(captured).items()]
    together: dict[str, int] = {}
    largest: dict[str, int] = {}
    one_by_one = any(device in host for device, _, _ in found)
    for device, name, size in found:
        sparse = size < captured.weights[name].bytes
        if one_by_one or sparse:
            more = size * (SPARSE_UPDATES if sparse else SINGLE_UPDATES).get(optimizer, 0)
            largest[device] = max(largest.get(device, 0), more)
        else:
            together[device] = together.get(device, 0) + size * UPDATES.get(optimizer, 0)
    return {d: max(together.get(d, 0), largest.get(d, 0)) for d in {**together, **largest}}
