# SPDX-License-Identifier: Apache-2.0
"""Weights made for a model on the meta device: read by name, each on the device that it is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.weights.sources import matched, source_of
from baechi.torch.where.homes import named_tensors


def make_weights(
    model: nn.Module,
    given: Any,
    device_of: Mapping[str, torch.device],
    *,
    own: Collection[str] | None = None,
) -> None:
    """Give the weights of a model their values, or leave those that it has.

    Args:
        model: Some of whose tensors may be on the meta device.
        given: Where values come from; None: there are no such tensors.
        device_of: The device of each weight and buffer, by name.
        own: The names of those to give values, by default all.

    Raises:
        InputError: Values are missing, or of another shape; the model is as before.

    """
    empty = {name: tensor for name, tensor in named_tensors(model) if tensor.is_meta}
    if given is None:
        if empty:
            raise InputError(
                f"model: {next(iter(empty))!r} is on the meta device: give weights=, a state_dict, "
                "a safetensors file or a checkpoint's folder"
            )
        return
    source = source_of(given)
    wanted = model.state_dict(keep_vars=True)
    names = matched(source, wanted)
    if lost := sorted(set(empty) - set(wanted)):
        raise InputError(
            f"model: the buffer {lost[0]!r} is on the meta device and in no state_dict: build it "
            "outside of torch.device('meta')"
        )
    by_tensor: dict[int, str] = {}
    for name, tensor in wanted.items():
        if id(tensor) not in by_tensor and (own is None or name in own):
            by_tensor[id(tensor)] = name
            value = source.read([names[name]])[names[name]]
            _fill(tensor, value, device_of.get(name, tensor.device))


def _fill(tensor: torch.Tensor, value: torch.Tensor, device: torch.device) -> None:
    """Give a tensor a value; it stays the same object."""
    if not tensor.is_meta:
        with torch.no_grad():
            tensor.copy_(value)
        return
    made: torch.Tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    with torch.no_grad():
        made.copy_(value)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, made)
