# SPDX-License-Identifier: Apache-2.0
"""Counts of an optimizer beside the state of weights: a step by pieces changes them once."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer

from baechi._core import InputError

_CONTAINERS = dict, list, set, deque
_KNOWN = int, float, complex, str, type(None), torch.Tensor, tuple, *_CONTAINERS


class Counts:
    """What an optimizer has beside the state of weights, in which it may count its steps.

    Each piece finds it as the step did, and has to leave it as the others do: numbers, texts and
    tensors, in the groups, in the optimizer itself, and in containers there.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._weights = {id(p) for group in optimizer.param_groups for p in group["params"]}
        found = [*self._found()]
        self._containers: list[tuple[Any, Any]] = [
            (v, v.copy()) for _, v in found if isinstance(v, _CONTAINERS)
        ]
        tensors = [value for _, value in found if isinstance(value, torch.Tensor)]
        self._tensors = {id(one): (one, one._version, one.clone()) for one in tensors}
        self._others = {path: self._pickled(v) for path, v in found if not isinstance(v, _KNOWN)}
        self._after: dict[Any, str] = {}

    def put_back(self) -> None:
        """Have it as it was when the step began."""
        for container, before in self._containers:
            if isinstance(container, dict):  # by weights it is their state
                for key in [key for key in container if id(key) not in self._weights]:
                    del container[key]
                for key in [key for key in before if id(key) not in self._weights]:
                    container[key] = before[key]  # by `update` a Counter would add
            else:
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(before)
        for one, version, before in self._tensors.values():
            if one._version != version:
                one.copy_(before)

    def check(self) -> None:
        """Raise InputError if a piece has left something else than another one."""
        after = {}
        for path, value in self._found():
            if isinstance(value, torch.Tensor):
                if id(value) not in self._tensors or value._version != self._tensors[id(value)][1]:
                    after[path] = str(value.tolist())
            elif isinstance(value, _KNOWN):
                after[path] = "" if isinstance(value, _CONTAINERS) else repr(value)
            elif self._pickled(value) != self._others.get(path, b""):
                self._refuse(path, "changes its {!r}, which each piece would")
        self._after = self._after or after
        for path in self._after.keys() | after.keys():
            if self._after.get(path) != after.get(path):
                self._refuse(path, "makes {!r} of all weights of a group, and no piece has all")

    def _found(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield what there is, and by which names."""
        todo: list[tuple[tuple[Any, ...], Any]] = [((), vars(self._optimizer))]
        seen = {*self._weights}
        while todo:
            path, value = todo.pop()
            if isinstance(value, (torch.Tensor, tuple, *_CONTAINERS)):
                if id(value) in seen:
                    continue
                seen.add(id(value))
            if isinstance(value, Optimizer):
                self._refuse(path, "has {!r}, another optimizer, which does not know of pieces")
            yield path, value
            if isinstance(value, dict):
                pairs = [(key, v) for key, v in value.items() if id(key) not in self._weights]
            elif isinstance(value, (tuple, *_CONTAINERS)):
                pairs = [*enumerate(value)]
            else:
                continue
            todo += [((*path, key), part) for key, part in pairs if key != "params"]

    def _pickled(self, value: Any) -> bytes:
        """Return what tells an object from what it was; nothing where that cannot be."""
        pickled = io.BytesIO()
        try:
            _Pickler(pickled, self._weights).dump(value)
        except Exception:
            return b""
        return pickled.getvalue()

    def _refuse(self, path: tuple[Any, ...], why: str) -> NoReturn:
        name = [part for part in path if isinstance(part, str)][-1]
        raise InputError(
            f"{type(self._optimizer).__name__} {why.format(name)}: have it update them on the "
            "host, without placed.optimizer"
        )


class _Pickler(pickle.Pickler):
    """Pickles what is around tensors."""

    def __init__(self, file: Any, weights: Collection[int]) -> None:
        super().__init__(file)
        self._weights = weights

    def persistent_id(self, value: Any) -> Any:
        """Return what stands for a tensor: of weights nothing tells that they were updated."""
        if isinstance(value, torch.Tensor):
            return id(value), -1 if id(value) in self._weights else value._version
        return None
