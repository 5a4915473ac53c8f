# SPDX-License-Identifier: Apache-2.0
"""Tensors inside nested arguments and outputs: tuples, lists, mappings, dataclasses."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
SEQUENCES = (tuple, list, deque)
_HOLD_NONE = (type, torch.nn.Module, ModuleType, CodeType, bytes, *PLAIN)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside `value`, in the order of its fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, SEQUENCES):
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
        elif id(item) not in seen and not isinstance(item, _HOLD_NONE):
            seen[id(item)] = item
            if isinstance(item, (*SEQUENCES, set, frozenset)):
                waiting.extend(item)
            elif isinstance(item, Mapping):
                waiting.extend(item.values())
            else:
                waiting.extend(_members_of(item))


def _members_of(item: Any) -> Iterator[Any]:
    """Yield what an object holds: its attributes, what a function has from around it."""
    yield from getattr(item, "__dict__", {}).values()
    for kind in type(item).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(item, name, None)
    if isinstance(item, partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, MethodType):
        yield item.__self__
    elif isinstance(item, FunctionType):
        yield from (item.__defaults__, item.__kwdefaults__, item.__closure__)
    elif isinstance(item, CellType):
        with contextlib.suppress(ValueError):  # nothing was assigned yet
            yield item.cell_contents


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
    return _with(_changed_items(lambda item: map_tensors(change, item), value), value)


def once(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `change` by which a tensor that is in several places stays one: code may ask."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        known = made.get(id(tensor))
        if known is None:
            known = made[id(tensor)] = tensor, change(tensor)
        return known[1]

    return changed


def renewed(value: Any) -> Any:
    """Return `value` in containers of its own, so that nobody else sees them change."""
    if _is_changeable(value):
        return _copied_with({key: renewed(item) for key, item in _items_of(value)}, value)
    return _with(_changed_items(renewed, value), value)


class Lent:
    """Nested arguments in which others stand for the tensors, until these are given back.

    Lists, dictionaries and dataclasses stay the objects that they are: what is put into them, or
    taken out, is seen by all who hold them.
    """

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._change = change
        self._held: list[tuple[Any, list[Any], dict[int, tuple[Any, Any]]]] = []

    def of(self, value: Any) -> Any:
        """Return `value` with what stands for its tensors."""
        if isinstance(value, torch.Tensor):
            return self._change(value)
        changed = _changed_items(self.of, value)
        if not _is_changeable(value):
            return _with(changed, value)
        before = dict(_items_of(value))
        for key, item in changed.items():
            _put(value, key, item)
        lent = {id(item): (item, before[key]) for key, item in changed.items()}
        self._held.append((value, list(before.values()), lent))
        return value

    def give_back(self) -> list[Any]:
        """Put the tensors back where what stands for them still is; return what was put in."""
        added = []
        for value, before, lent in self._held:
            known = {id(item) for item in before}
            for key, item in list(_items_of(value)):
                if id(item) in lent:
                    _put(value, key, lent[id(item)][1])
                elif id(item) not in known:
                    added.append(item)
        self._held.clear()
        return added


def _is_changeable(value: Any) -> bool:
    if isinstance(value, (list, deque, MutableMapping)):
        return True
    kind = type(value)
    return dataclasses.is_dataclass(kind) and not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _items_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return what a container holds, by index, key or field; nothing of what is none."""
    if isinstance(value, PackedSequence):
        return ((index, value[index]) for index in (0, 2, 3))  # 1: the sizes
    if isinstance(value, SEQUENCES):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))
    return ()


def _changed_items(change: Callable[[Any], Any], value: Any) -> dict[Any, Any]:
    """Return what `change` makes of the items of a container, where that is another thing."""
    made = [(key, item, change(item)) for key, item in _items_of(value)]
    return {key: new for key, item, new in made if new is not item}


def _with(changed: dict[Any, Any], value: Any) -> Any:
    return _copied_with(changed, value) if changed else value


def _copied_with(changed: dict[Any, Any], value: Any) -> Any:
    """Return a copy of a container with other items."""
    if isinstance(value, tuple):
        items = [changed.get(index, item) for index, item in enumerate(value)]
        whole = type(value) is not tuple and hasattr(value, "_fields")  # a named tuple
        return type(value)(*items) if whole else type(value)(items)
    result = copy(value)
    for key, item in changed.items():
        _put(result, key, item)
    return result


def _put(container: Any, key: Any, item: Any) -> None:
    if dataclasses.is_dataclass(container) and not isinstance(container, Mapping):
        object.__setattr__(container, key, item)
    else:
        container[key] = item


def is_one_value(weight: torch.Tensor) -> bool:
    """Whether all elements are one in memory, as where another rank has a weight."""
    return weight.layout is torch.strided and weight.dim() > 0 and not any(weight.stride())
