# SPDX-License-Identifier: Apache-2.0
"""Moving the tensors inside nested values to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


def map_tensors(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return a value with its tensors changed; it is itself where none of them was.

    Tensors are looked for in tuples, lists, mappings and dataclasses, which keep their type.
    """
    return _mapped(change, value)[0]


def _mapped(change: Callable[[torch.Tensor], Any], value: Any) -> tuple[Any, bool]:
    """Return the changed value, and whether anything was changed."""
    if isinstance(value, torch.Tensor):
        changed = change(value)
        return changed, changed is not value
    if isinstance(value, PackedSequence):  # its batch sizes are the host's
        data = change(value.data)
        return (value, False) if data is value.data else (value.to(data.device), True)
    if isinstance(value, (tuple, list)):
        pairs = [_mapped(change, item) for item in value]
        if not any(changed for _, changed in pairs):
            return value, False
        items = [item for item, _ in pairs]
        return (type(value)(*items) if hasattr(value, "_fields") else type(value)(items)), True
    if isinstance(value, dict):
        found = {key: _mapped(change, item) for key, item in value.items()}
        if not any(changed for _, changed in found.values()):
            return value, False
        return _like(value, {key: item for key, (item, _) in found.items()}), True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        found = {name: _mapped(change, getattr(value, name)) for name in names}
        if not any(changed for _, changed in found.values()):
            return value, False
        given = {name: item for name, (item, _) in found.items()}
        return dataclasses.replace(value, **given), True
    return value, False


def _like(value: dict[Any, Any], found: dict[Any, Any]) -> dict[Any, Any]:
    """Return a mapping of the same type with other items."""
    if type(value) is dict:
        return found
    if dataclasses.is_dataclass(value):  # outputs of transformers are both
        return type(value)(**found)
    copy = value.copy()
    copy.update(found)
    return copy


def moved(value: Any, device: torch.device | None, among: Collection[torch.device]) -> Any:
    """Return a value whose tensors on one of some devices are on `device`."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == device or tensor.device not in among:
            return tensor
        return sent(tensor, device)

    return map_tensors(move, value)


def sent(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return a tensor on another device, with the attributes that somebody gave it."""
    copy = tensor.to(device)
    if not torch.compiler.is_compiling():
        for name, value in getattr(tensor, "__dict__", {}).items():
            setattr(copy, name, value)
    return copy
