# SPDX-License-Identifier: Apache-2.0
"""Moving the tensors inside nested values to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

MAPPINGS = (dict, UserDict)  # tokenizers return the other
_CPU = torch.device("cpu")


def map_tensors(change: Callable[[torch.Tensor], Any], value: Any, named: Any = None) -> Any:
    """Return a value with its tensors changed; it is itself where none of them was.

    Args:
        change: Of a tensor.
        value: Tensors are looked for in tuples, lists, dictionaries and dataclasses, which keep
            their type.
        named: Nested dictionaries of other changes, by names and positions in the value.

    """
    return _mapped(change, value, named)[0]


def listed(value: Any) -> list[torch.Tensor]:
    """Return the tensors that `map_tensors` finds in a value."""
    found: list[torch.Tensor] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(look, value)
    return found


def _mapped(change: Callable[[torch.Tensor], Any], value: Any, named: Any) -> tuple[Any, bool]:
    """Return the changed value, and whether anything was changed."""
    if named is not None and not isinstance(named, dict):
        change, named = named, None
    if isinstance(value, torch.Tensor):
        changed = change(value)
        return changed, changed is not value
    if isinstance(value, PackedSequence):  # its batch sizes are the host's
        data = change(value.data)
        return (value, False) if data is value.data else (value.to(data.device), True)
    if isinstance(value, (tuple, list)):
        pairs = [_mapped(change, item, _of(named, i)) for i, item in enumerate(value)]
        if not any(changed for _, changed in pairs):
            return value, False
        items = [item for item, _ in pairs]
        return _sequence_like(value, items), True
    if isinstance(value, MAPPINGS):
        found = {key: _mapped(change, item, _of(named, key)) for key, item in value.items()}
        if not any(changed for _, changed in found.values()):
            return value, False
        return _like(value, {key: item for key, (item, _) in found.items()}), True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {n: _mapped(change, getattr(value, n), _of(named, n)) for n in names_in(value)}
        if not any(changed for _, changed in found.values()):
            return value, False
        twin = copy.copy(value)  # made anew, `__post_init__` would change it once more
        for name, (item, _) in found.items():
            object.__setattr__(twin, name, item)  # it may be frozen
        return twin, True
    return value, False


def _of(named: Any, key: Any) -> Any:
    return None if named is None else named.get(str(key))


def _sequence_like(value: Any, items: list[Any]) -> Any:
    """Return a list or tuple of the same type with other items."""
    kind: Any = type(value)
    if kind in (list, tuple):
        return kind(items)
    if isinstance(value, list):
        twin = copy.copy(value)  # with the attributes that a class of its own has
        twin[:] = items
        return twin
    twin = kind._make(items) if hasattr(value, "_fields") else kind(items)
    for name, item in getattr(value, "__dict__", {}).items():
        setattr(twin, name, item)
    return twin


def _like(value: Any, found: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other items."""
    kind: Any = type(value)
    if kind is dict:
        return found
    if dataclasses.is_dataclass(value):  # outputs of transformers are both
        return kind(**found)
    # What dynamo traces for those two; of a class of its own that may be a plain dictionary.
    twin = value.copy() if kind in (OrderedDict, defaultdict) else copy.copy(value)
    twin.update(found)
    return twin


def moved(value: Any, device: torch.device | None, among: Collection[torch.device]) -> Any:
    """Return a value whose tensors on one of some devices are on `device`."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == device or tensor.device not in among:
            return tensor
        return sent(tensor, device)

    return map_tensors(move, value)


def sent(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return a tensor on another device, with the attributes that somebody gave it."""
    copy_to = torch.ops.aten._to_copy.default  # `to` is the mode's to judge
    if torch.compiler.is_compiling():
        return copy_to(tensor, device=device)
    if torch.is_inference_mode_enabled():  # tensors made in it do not count their changes
        with torch.inference_mode(mode=False), torch.no_grad():
            there = copy_to(tensor, device=device)
    else:
        there = copy_to(tensor, device=device)
    for name, value in getattr(tensor, "__dict__", {}).items():
        setattr(there, name, value)
    return there


def names_in(container: Any) -> list[Any]:
    """Return the names of what is in a dataclass or a mapping, in their order."""
    if dataclasses.is_dataclass(container):
        return [f.name for f in dataclasses.fields(container) if hasattr(container, f.name)]
    return list(container) if isinstance(container, MAPPINGS) else []


def items_in(container: Any) -> list[Any]:
    """Return what is in a container, in the order of its names."""
    if dataclasses.is_dataclass(container):
        return [getattr(container, name) for name in names_in(container)]
    if isinstance(container, MAPPINGS):
        return list(container.values())
    return list(container) if isinstance(container, (list, tuple)) else []
