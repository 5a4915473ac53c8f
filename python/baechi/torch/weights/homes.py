# SPDX-License-Identifier: Apache-2.0
"""Where each weight of a model lives under a placement (Paper 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.record.recorded_step import Capture


def homes_of_weights(
    model: nn.Module, captured: Capture, device_of: Mapping[str, LogicalDevice]
) -> list[tuple[torch.Tensor, LogicalDevice]]:
    """Return where every parameter and buffer goes: to its user, or beside its neighbour."""
    user: dict[str, LogicalDevice] = {}
    for op in captured.ops:
        for name in op.weights:
            if op.key in device_of:
                user.setdefault(name, device_of[op.key])
    result: list[tuple[torch.Tensor, LogicalDevice]] = []
    last = next(iter(user.values()), None) or next(iter(device_of.values()))
    for name, tensor in named_weights(model):
        last = user.get(captured.aliases.get(name, name), last)
        result.append((tensor, last))
    return result


def named_weights(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return parameters and buffers, tied ones once."""
    return [*model.named_parameters(), *model.named_buffers()]


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
