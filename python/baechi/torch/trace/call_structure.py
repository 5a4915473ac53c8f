# SPDX-License-Identifier: Apache-2.0
"""What a graph of a model is for: the structure of a call's arguments, and modes around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from baechi.torch.base.nested import PLAIN
from baechi.torch.trace.graph import NotExportedError


@dataclass(frozen=True)
class Call:
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def structure_of(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return what nested arguments look like beside the tensors in them, which are collected."""
    if isinstance(value, torch.Tensor):
        for number, known in enumerate(tensors):
            if known is value:  # code may ask whether two arguments are one
                return number
        tensors.append(value)
        return value.dtype, value.dim(), layout_of(value)
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, (tuple, list)) and not isinstance(value, PackedSequence):
        return type(value), *[structure_of(item, tensors) for item in value]
    if isinstance(value, Mapping):
        items = [structure_of(item, tensors) for item in value.values()]
        return type(value), tuple(value), *items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return type(value), *[structure_of(getattr(value, n, None), tensors) for n in names]
    raise NotExportedError(f"it is called with a {type(value).__name__}")


def layout_of(tensor: torch.Tensor) -> Any:
    """Return what strides say beside sizes: True where they are as usual."""
    if tensor.is_contiguous() or tensor.layout is not torch.strided:
        return True
    return ("gaps", tensor.stride()) if has_gaps(tensor) else _by_stride(tensor)


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether elements lie apart in memory, or several in one place; a copy of it may not."""
    if tensor.layout is not torch.strided:
        return False
    following = 1
    for dimension in _by_stride(tensor):
        size = tensor.shape[dimension]
        if size != 1 and tensor.stride(dimension) != following:
            return True
        following *= size
    return False


def _by_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    sizes, strides = tensor.shape, tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda d: (strides[d], sizes[d])))


def modes_of(modules: list[nn.Module], autocast: torch.dtype | None) -> tuple[Any, ...]:
    """Return what a trace depends on beside arguments.

    Whether gradients are wanted, what autocast around the model casts to, the type of what is made
    without one, each module's mode.
    """
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.get_default_dtype(),
        *[module.training for module in modules],
    )
