# SPDX-License-Identifier: Apache-2.0
"""Arrivals: the tensors of a batch come to where the plan has them, and changes go back."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.torch.where.moving import MAPPINGS, items_in, listed, map_tensors, names_in, sent

_CPU = torch.device("cpu")


class Arrivals:
    """Where the tensors of a batch come to.

    The first of them says where outputs come back: it stays on its device, and of a batch that is
    all on the host it comes to the first device, as do targets. The others come to their own.
    """

    def __init__(
        self, devices: Sequence[torch.device], homes: Mapping[str, torch.device] | None = None
    ) -> None:
        """Note the devices of a plan, and where it has tensors by their names in a batch."""
        self.first, self.among = devices[0], frozenset(devices)
        self._homes: dict[str, Any] = {}
        for name, device in (homes or {}).items():
            if device != self.first:
                *outer, last = name.split(".")
                inside = self._homes
                for key in outer:
                    inside = inside.setdefault(key, {})
                inside[last] = device

    def has_come(self, batch: Any) -> bool:
        """Tell whether a tensor of a batch is on a device of the plan."""
        return any(tensor.device in self.among for tensor in listed(batch))

    def of(self, args: Any, kwargs: Any, targets: Any = None) -> tuple[Any, Any, Any]:
        """Return a batch where it comes to."""
        if self.has_come((args, kwargs, targets)):
            return *self.between(args, kwargs), targets
        return self.from_host(args, kwargs, targets)

    def from_host(self, args: Any, kwargs: Any, targets: Any = None) -> tuple[Any, Any, Any]:
        """Return a batch of which nothing has come where it comes to; what is in it twice, once."""
        moved: list[tuple[torch.Tensor, torch.Tensor]] = []

        def to(home: torch.device) -> Any:
            def move(tensor: torch.Tensor) -> torch.Tensor:
                if tensor.device != _CPU:
                    return tensor
                for before, there in moved:
                    if before is tensor:
                        return there
                there = sent(tensor, home if moved else self.first)
                moved.append((tensor, there))
                return there

            return move

        named = _each(self._homes, to)
        first = to(self.first)
        return (
            map_tensors(first, args, named),
            map_tensors(first, kwargs, named),
            map_tensors(first, targets),
        )

    def between(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return a batch that has come, with what is on another device than its own moved there.

        What wants a gradient, or shares its memory, stays.
        """
        if not self._homes:
            return args, kwargs
        here = [tensor for tensor in listed((args, kwargs)) if tensor.device in self.among]
        count = Counter(map(_memory, here))

        def to(home: torch.device) -> Any:
            def move(tensor: torch.Tensor) -> torch.Tensor:
                stays = tensor.device not in self.among - {home} or tensor is here[0]
                if stays or tensor.requires_grad or count[_memory(tensor)] > 1:
                    return tensor
                return sent(tensor, home)

            return move

        named = _each(self._homes, to)
        return map_tensors(_itself, args, named), map_tensors(_itself, kwargs, named)


def _each(homes: dict[str, Any], to: Any) -> dict[str, Any]:
    return {k: _each(v, to) if isinstance(v, dict) else to(v) for k, v in homes.items()}


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _memory(tensor: torch.Tensor) -> Any:
    """Return what tells memories apart; a tensor that wraps others has none of its own."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    return tensor.untyped_storage()._cdata if is_plain else id(tensor)


class Brought:
    """What a batch has become on other devices; `give_back` shows the caller what became of it.

    What is called with a batch may take from its dictionaries, append to its lists and change its
    tensors in place: those that it is given are copies.
    """

    def __init__(self, before: Any, now: Any) -> None:
        self._containers: list[tuple[Any, Any]] = []  # and their copies
        self._tensors: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # with the copies' version
        self._was: dict[int, tuple[Any, Any]] = {}  # by id: what is in a copy, and what it was
        self._note(before, now)

    def _note(self, before: Any, now: Any) -> None:
        if now is before:
            return
        self._was[id(now)] = now, before
        if isinstance(before, torch.Tensor):
            if not before.requires_grad and not now.is_inference():
                self._tensors.append((before, now, now._version))
            return
        self._containers.append((before, now))
        for a, b in zip(items_in(before), items_in(now), strict=True):
            self._note(a, b)

    def give_back(self) -> None:
        """Change the caller's containers and tensors as their copies were changed."""
        for tensor, there, version in self._tensors:
            if there._version != version:
                with torch.no_grad():
                    tensor.copy_(there)
        for before, now in self._containers:
            items = [self._was.get(id(item), (None, item))[1] for item in items_in(now)]
            same = [*map(id, items)] == [*map(id, items_in(before))]
            if same and names_in(before) == names_in(now):
                continue
            if isinstance(before, list):
                before[:] = items
            elif dataclasses.is_dataclass(before):
                for name, item in zip(names_in(now), items, strict=True):
                    object.__setattr__(before, name, item)
            elif isinstance(before, MAPPINGS):
                before.clear()
                before.update(zip(names_in(now), items, strict=True))
