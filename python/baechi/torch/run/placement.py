# SPDX-License-Identifier: Apache-2.0
"""Placement: the device of every call and weight of a model, looked up by keys and modules."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from baechi.torch.capture.keys import SUM
from baechi.torch.program.instructions import HOST
from baechi.torch.run.away import Away
from baechi.torch.where.arrivals import Arrivals
from baechi.torch.where.homes import named_tensors


class Placement:
    """Where calls run and when they are asked for; weights are where `homes` has them.

    Args:
        model: Whose modules the paths are of.
        devices: The physical device of each device of the cluster.
        device_of_key: The device of each planned call, by its index in the cluster.
        starts: When the plan starts each call, in nanoseconds, in each micro-batch; without,
            programs keep the order in which the model asks.
        homes: The device of each weight and buffer, by name.
        again: The calls that run again in the backward; `starts` has their second runs as
            `key@again`.
        compile: Whether what runs on one device between two transfers is compiled as one.
        replay: Whether it is captured, and replayed.
        away: What is on a host while no device reads it.
        spare: The bytes of each device that the plan leaves free.
        batch: The device of each tensor of the batch, by name.

    """

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[torch.device],
        device_of_key: Mapping[str, int],
        homes: Mapping[str, int],
        starts: Mapping[str, Sequence[int]] | None = None,
        again: Collection[str] = (),
        away: Away | None = None,
        spare: Sequence[int] = (),
        batch: Mapping[str, int] | None = None,
        *,
        compile: bool = False,  # noqa: A002
        replay: bool = False,
    ) -> None:
        self._model = weakref.ref(model)  # dynamo keeps what its backends hold
        self.devices = list(devices)
        self.device_of_key = device_of_key
        self.homes = dict(homes)
        self.starts = dict(starts or {})
        self.again = frozenset(again)
        self.compile, self.replay = compile, replay
        self.replays: weakref.WeakSet[Any] = weakref.WeakSet()
        self.away = away or Away()
        self.spare = [*spare] or [0] * len(devices)
        self.accelerators = [d for i, d in enumerate(devices) if i != self.away.store]
        at = {name: devices[i] for name, i in (batch or {}).items() if i != self.away.store}
        self.arrivals = Arrivals(self.accelerators, at)
        self.names_by_id = {id(module): path for path, module in model.named_modules()}
        there = {name: home for name, home in self.homes.items() if home != self.away.store}
        self._of_path = _by_path(self.device_of_key, there)
        self._index: dict[torch.device, int] = {}
        for i, device in enumerate(self.devices):
            self._index.setdefault(device, i)

    @property
    def model(self) -> nn.Module:
        """Whose modules the paths are of."""
        model = self._model()
        assert model is not None, "it is being called"
        return model

    def index_of(self, device: torch.device) -> int:
        """Return the first of the cluster's devices that a tensor's device is; else the host."""
        return self._index.get(device, HOST)

    def homes_of(self, inputs: Sequence[Any]) -> dict[int, int]:  # noqa: ARG002
        """Return the device of inputs by their place, where it is not told by the tensor's."""
        return {}

    def weights_in(self, inputs: Sequence[Any]) -> dict[int, str]:
        """Return the names of inputs that are weights or buffers, by their place."""
        if self.away.store is None:
            return {}
        names: dict[int, str] = {}
        for name, tensor in named_tensors(self.model):
            names.setdefault(id(tensor), name)
        return {i: names[id(value)] for i, value in enumerate(inputs) if id(value) in names}

    def of_module(self, path: str) -> int | None:
        """Return where most of a module's calls are, else those of the one that it is in."""
        while True:
            if path in self._of_path:
                return self._of_path[path]
            if not path:
                return None
            path = path.rpartition(".")[0]

    def order(self, names: Mapping[fx.Node, str]) -> list[Hashable] | None:
        """Return calls in the order of the plan; None where it has none of them."""
        found = self.order_of_parts(names, 1)
        return None if found is None else [node for node, _ in found]

    def order_of_parts(
        self, names: Mapping[Any, str], parts: int
    ) -> list[tuple[Hashable, int]] | None:
        """Return the calls of several micro-batches in the order of the plan.

        What was not planned comes with what is asked for before it; more micro-batches than were
        planned take turns as those do.
        """
        if not any(key in self.starts for key in names.values()):
            return None
        when: dict[tuple[Hashable, int], tuple[int, int, int]] = {}
        for part in range(parts):
            last = 0
            for place, (node, key) in enumerate(names.items()):
                starts = self.starts.get(key, ())
                last = starts[part % len(starts)] if starts else last
                when[node, part] = last, part, place
        return sorted(when, key=when.__getitem__)

    def orders_of_steps(
        self, names: Mapping[Any, str], last: Mapping[Hashable, str], parts: int
    ) -> list[list[tuple[Hashable, int]] | None]:
        """Return calls as `order_of_parts` does, and the ``last`` ones of a step where planned.

        Where these do not fit as planned, a second order has sums right behind what they add.
        """
        when = {node: name for node, name in last.items() if name in self.starts}
        order = self.order_of_parts({**names, **when}, parts)
        if not order or not when:
            return [order]
        sums = {node for node, name in when.items() if name.endswith(f":{SUM}")}
        order = [one for one in order if one[0] not in when or one[1] == parts - 1]
        return [order, [one for one in order if one[0] not in sums]]


def _by_path(device_of_key: Mapping[str, int], homes: Mapping[str, int]) -> dict[str, int]:
    votes: dict[str, Counter[int]] = {}
    paths: Iterable[tuple[str, int]] = [
        *((key.rpartition(":")[0].rpartition(":")[0], d) for key, d in device_of_key.items()),
        *((name.rpartition(".")[0], d) for name, d in homes.items()),
    ]
    for path, device in paths:
        votes.setdefault(path, Counter())[device] += 1
    return {path: count.most_common(1)[0][0] for path, count in votes.items()}
