# SPDX-License-Identifier: Apache-2.0
"""A rank holds its own weights only: what stands for those of the others has no memory."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.weights.homes import named_weights


def sample_of(tensor: torch.Tensor, most: int) -> bytes:
    """Return some of a tensor's values, the same ones of each tensor of its shape."""
    count = tensor.numel()
    if count == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return b""
    numbers = torch.arange(0, count, max(1, count // most), device=tensor.device)
    places = torch.unravel_index(numbers, tensor.shape) if tensor.dim() else ()
    taken = tensor.detach()[places].resolve_conj().cpu().contiguous()
    return ctypes.string_at(taken.data_ptr(), taken.numel() * taken.element_size())


def release(weight: torch.Tensor) -> None:
    """Give a weight's memory back: it keeps its shape, and each of its values is the same NaN.

    Whoever reads it by mistake has NaN, and whoever writes to it an error.
    """
    if weight.layout is not torch.strided:
        return
    kind = weight.dtype
    nothing: Any = float("nan")
    if not (kind.is_floating_point or kind.is_complex):
        nothing = True if kind is torch.bool else torch.iinfo(kind).min
    one = torch.empty((), dtype=kind, device=weight.device).fill_(nothing)
    weight.grad = None
    weight.data = one.expand(weight.shape)


_PARTS: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models of which only a part is here


def check_whole(model: nn.Module) -> None:
    """Raise InputError for a model of which other ranks have the rest."""
    if model in _PARTS:
        raise InputError(
            f"{type(model).__name__} is placed over ranks already, and this one has a part of its "
            "weights: build the model again"
        )


def guard(model: nn.Module) -> None:
    """Refuse to read or load the weights of a model of which this rank has a part."""
    _PARTS.add(model)
    name = type(model).__name__

    def read(*_: Any) -> None:
        raise InputError(
            f"{name} is placed over ranks, and this one has a part of its weights: "
            "to gather them is not there yet"
        )

    def load(*_: Any) -> None:
        raise InputError(
            f"{name} is placed over ranks, and this one has a part of its weights: load them "
            "before the model is placed"
        )

    for module in model.modules():
        module.register_state_dict_pre_hook(read)
        module.register_load_state_dict_pre_hook(load)


def owned(model: nn.Module, devices: dict[str, str], here: str) -> dict[str, torch.Tensor]:
    """Return the weights that are on a device, by name."""
    return {name: w for name, w in named_weights(model) if devices[name] == here}
