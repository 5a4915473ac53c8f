# SPDX-License-Identifier: Apache-2.0
"""Arguments that can be kept and given again: tensors and plain values in tuples, lists, dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from baechi.torch.base.nested import PLAIN

_VALUES = (*PLAIN, type(...), torch.memory_format, torch.Size)


def is_plain(value: Any) -> bool:
    """Whether a value is the same wherever it is kept, tensors in it aside."""
    if isinstance(value, torch.Tensor):
        dense = value.layout is torch.strided and not value.is_nested
        return dense and type(value) in (torch.Tensor, nn.Parameter, nn.Buffer)
    kind = type(value)
    if kind in (tuple, list):
        return all(map(is_plain, value))
    if kind is dict:
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if kind is slice:
        return is_plain((value.start, value.stop, value.step))
    return isinstance(value, _VALUES)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a plain value in containers of its own, with `change` applied to all that is none."""
    kind = type(value)
    if kind in (tuple, list):
        return kind(mapped(change, item) for item in value)
    if kind is dict:
        return {key: mapped(change, item) for key, item in value.items()}
    if kind is slice:
        return slice(*(mapped(change, item) for item in (value.start, value.stop, value.step)))
    return change(value)
