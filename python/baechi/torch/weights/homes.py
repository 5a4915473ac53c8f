# SPDX-License-Identifier: Apache-2.0
"""Where each weight of a model lives under a placement (Paper 4.3)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.record.recorded_step import Capture

Device = TypeVar("Device")  # or its name


def homes_by_name(
    captured: Capture, device_of: Mapping[str, Device], names: Iterable[str] | None = None
) -> dict[str, Device]:
    """Return where weights live: with the first operator that uses them, or beside a neighbour.

    Args:
        captured: The recorded step.
        device_of: The device of every operator.
        names: Of the weights, also second names of tied ones; all that were recorded by default.

    """
    user: dict[str, Device] = {}
    for op in captured.ops:
        for name in op.weights:
            if op.key in device_of:
                user.setdefault(name, device_of[op.key])
    last = next(iter([*user.values(), *device_of.values()]))
    result = {}
    for name in captured.weights if names is None else names:
        last = result[name] = user.get(captured.aliases.get(name, name), last)
    return result


def homes_of_weights(
    model: nn.Module, captured: Capture, device_of: Mapping[str, LogicalDevice]
) -> list[tuple[torch.Tensor, LogicalDevice]]:
    """Return where every parameter and buffer goes: to its user, or beside its neighbour."""
    weights = dict(named_weights(model))
    homes = homes_by_name(captured, device_of, weights)
    return [(tensor, homes[name]) for name, tensor in weights.items()]


def named_weights(model: nn.Module, *, tied: bool = False) -> list[tuple[str, torch.Tensor]]:
    """Return parameters and buffers; tied ones once, or by each name."""
    once = not tied
    parameters = model.named_parameters(remove_duplicate=once)
    return [*parameters, *model.named_buffers(remove_duplicate=once)]


def trained_leaves(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weights that get gradients, as the modules have them now."""
    waiting: list[nn.Module | None] = [model]
    seen = set()
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        for table in (module._parameters, module._buffers):
            yield from (
                w for w in table.values() if w is not None and w.requires_grad and w.is_leaf
            )
        waiting.extend(module._modules.values())


def table_of(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the table of a module that holds a weight, and the key there."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    return (module._parameters if attribute in module._parameters else module._buffers), attribute


def weight_of(model: nn.Module, name: str) -> torch.Tensor:
    """Return the parameter or buffer of a name; tied ones have several."""
    table, attribute = table_of(model, name)
    tensor: torch.Tensor = table[attribute]
    return tensor


def has_hooks_of_others(weight: torch.Tensor) -> bool:
    """Whether hooks that are not this package's see the gradient of a weight."""
    tables = weight._backward_hooks, getattr(weight, "_post_accumulate_grad_hooks", None)
    hooks = [hook for table in tables for hook in (table or {}).values()]
    hooks = [hook.func if isinstance(hook, functools.partial) else hook for hook in hooks]
    return any(not str(getattr(h, "__module__", "")).startswith("baechi.") for h in hooks)
