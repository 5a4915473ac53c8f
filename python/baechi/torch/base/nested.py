# SPDX-License-Identifier: Apache-2.0
"""Tensors inside nested arguments and outputs: tuples, lists, mappings, dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside `value`, in the order of its fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def dense_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside `value`, of sparse ones their indices and values: with storages."""
    for tensor in tensors_in(value):
        if tensor.layout is torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())
        else:
            yield tensor


def held_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside `value`, also those that objects of other classes hold."""
    seen: dict[int, Any] = {}  # by id, which is another's once an object is gone
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            yield item
        elif id(item) not in seen and not isinstance(item, (type, torch.nn.Module, str)):
            seen[id(item)] = item
            if isinstance(item, (tuple, list)):
                waiting.extend(item)
            elif isinstance(item, Mapping):
                waiting.extend(item.values())
            elif not callable(item):
                waiting.extend(getattr(item, "__dict__", {}).values())


def held_by(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that a module names and that are no weights, as hooks leave them there."""
    return {name: v for name, v in vars(module).items() if isinstance(v, torch.Tensor)}


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return `value` with `change` applied to its tensors; itself when none changes.

    Containers keep their type. What is not a known container is returned as it is, and so are the
    sizes in a packed sequence, which PyTorch wants on the host.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        data, order, back = map_tensors(change, (value[0], value[2], value[3]))
        return PackedSequence(data, value.batch_sizes, order, back)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(change, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return _rebuilt_sequence(value, items)
    if isinstance(value, Mapping):
        changed = {}
        for key, item in value.items():
            new = map_tensors(change, item)
            if new is not item:
                changed[key] = new
        return _with_items(value, changed) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name, None)
            new = map_tensors(change, item)
            if new is not item:
                changed[field.name] = new
        return _with_fields(value, changed) if changed else value
    return value


def _rebuilt_sequence(value: Any, items: list[Any]) -> Any:
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(items)
    if hasattr(value, "_fields"):  # a named tuple
        return kind(*items)
    if isinstance(value, list):
        result = copy(value)
        result[:] = items
        return result
    return kind(items)  # torch.Size, torch.return_types and other tuples


def _with_items(value: Any, changed: dict[Any, Any]) -> Any:
    result = copy(value)
    for key, item in changed.items():
        result[key] = item
    return result


def _with_fields(value: Any, changed: dict[str, Any]) -> Any:
    result = copy(value)
    for name, item in changed.items():
        object.__setattr__(result, name, item)
    return result
