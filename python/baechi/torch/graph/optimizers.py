# SPDX-License-Identifier: Apache-2.0
"""Optimizers: what they keep beside a weight, what an update reads and writes, and how long.

A host that may keep weights, and updates them, is beyond the paper.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import optim

from baechi._core import Cluster, InputError
from baechi.presets import STORE
from baechi.torch.costs.costs import Costs
from baechi.torch.costs.roofline import moving_of

_CPU = "cpu"  # the preset of a host that was not measured
Kept = Callable[[torch.Tensor], tuple[int, ...]]  # the bytes of each tensor beside a weight


def _factored(weight: torch.Tensor) -> tuple[int, ...]:
    """Return the bytes of a row's and a column's averages, which are kept in 32 bits."""
    count = 4 * int(weight.numel())
    if weight.dim() < 2:
        return (count,)
    return tuple(count // max(int(size), 1) for size in weight.shape[-2:])


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {  # by name: a class, and its settings
    "none": (None, {}),
    "sgd": (optim.SGD, {}),
    "momentum": (optim.SGD, {"momentum": 0.9}),
    "rmsprop": (optim.RMSprop, {}),
    "adagrad": (optim.Adagrad, {}),
    "adam": (optim.Adam, {}),
    "adamw": (optim.AdamW, {}),
    "adafactor": (optim.Adafactor, {}),
}
Made = Callable[[torch.Tensor], optim.Optimizer]  # an optimizer of one weight
# PyTorch's own whose update of a weight reads that weight, its gradient and its state alone; what
# is derived of them may read others.
BY_PIECES: frozenset[Any] = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop}
    | {optim.Adagrad, optim.Adadelta, optim.ASGD, optim.Rprop, optim.Adafactor}
)
SEPARATE = BY_PIECES | {optim.SparseAdam, optim.Muon}  # of sparse gradients; takes much on its way


@dataclass(frozen=True)
class Updates:
    """What one optimizer does with each weight."""

    name: str
    kept: Kept
    made: Made | None = None  # to see what an update takes

    def state(self, weight: torch.Tensor) -> int:
        """Return the bytes that are kept beside a weight from step to step."""
        return sum(self.kept(weight))

    def temporary(self, weight: torch.Tensor) -> int:
        """Return the bytes that an update holds while it runs: the step that it takes."""
        return weight.nbytes if self.state(weight) else 0

    def beside(self, weight: torch.Tensor) -> int:
        """Return the bytes of a weight that is updated elsewhere: gradient, state, what is made."""
        return 4 * weight.nbytes + self.state(weight)

    def moved(self, weight: torch.Tensor) -> int:
        """Return the bytes that an update reads and writes: weight, gradient and state."""
        return 2 * (2 * weight.nbytes + self.state(weight)) if self.name != "none" else 0


def updates_of(optimizer: Any) -> Updates:
    """Return what an optimizer does: given by name, as a class or as an instance."""
    if isinstance(optimizer, Updates):
        return optimizer
    if isinstance(optimizer, str):
        name = optimizer.lower()
        if name not in OPTIMIZERS:
            raise InputError(
                f"optimizer: {optimizer!r} is unknown: one of {', '.join(OPTIMIZERS)}, a class, or "
                "the optimizer itself"
            )
        cls, settings = OPTIMIZERS[name]
    else:
        given = optimizer is None or isinstance(optimizer, type)
        cls, settings = (optimizer, {}) if given else (type(optimizer), _settings(optimizer))
        name = "none" if cls is None else cls.__name__
    if cls is None:
        return Updates(name, lambda _: ())
    made = partial(_of, cls, settings)
    if cls.__name__ == "Adafactor":
        return Updates("adafactor", _factored, made)
    kept = cache(partial(_kept, cls, made))
    kept(torch.float32)  # or it is refused

    def of(weight: torch.Tensor) -> tuple[int, ...]:
        return tuple(round(part * int(weight.numel())) for part in kept(weight.dtype))

    return Updates(name, of, made)


def _of(cls: type, settings: dict[str, Any], weight: torch.Tensor) -> optim.Optimizer:
    made: optim.Optimizer = cls([weight], lr=1e-3)
    made.param_groups[0].update(copy.deepcopy(settings))  # steps may count in its tensors
    return made


def _settings(optimizer: optim.Optimizer) -> dict[str, Any]:
    return {k: v for group in optimizer.param_groups[:1] for k, v in group.items() if k != "params"}


def _kept(cls: type, of_one: Made, dtype: torch.dtype) -> list[float]:
    """Return the bytes per element of each tensor of state: of a step of one without memory."""
    weight = torch.nn.Parameter(torch.empty(64, 64, device="meta", dtype=dtype))
    weight.grad = torch.empty_like(weight)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = of_one(weight)
            group = made.param_groups[0]  # by what an update runs is nothing to what it keeps
            group.update(dict.fromkeys(group.keys() & {"fused", "capturable"}, False))
            made.step()
    except Exception as error:
        raise InputError(
            f"optimizer: {cls.__name__} says of itself what it keeps only by a step, which fails "
            f"without values ({error}): name the one of {', '.join(OPTIMIZERS)} that keeps as much "
            "beside each weight"
        ) from None
    state = made.state[weight].values()
    tensors = [value for value in state if isinstance(value, torch.Tensor) and value.dim()]
    return [t.numel() * t.element_size() / weight.numel() for t in tensors]


def with_host(costs: Costs) -> Costs:
    """Return costs that know a host: as they were measured, else by the roofline of a CPU."""
    if costs.knows(STORE):
        return costs
    found = Costs(costs.source)
    found.add(costs)
    found.set_of_bytes(STORE, *moving_of(_CPU))
    return found


def update_times(
    costs: Costs, updates: Updates, weight: torch.Tensor, kinds: Iterable[str]
) -> dict[str, int]:
    """Return what the update of a weight takes on devices of some kinds, and on the host."""
    moved = updates.moved(weight)
    return {kind: costs.updating(updates.name, weight, moved, kind) for kind in (*kinds, STORE)}


def host_share(
    costs: Costs, updates: Updates, weights: Sequence[torch.Tensor], cluster: Cluster
) -> float:
    """Return the part of updates by pieces that lets host and link end together."""
    on_host = sum(update_times(costs, updates, weight, ())[STORE] for weight in weights)
    copying = sum(_copying_time(updates, weight, cluster) for weight in weights)
    return copying / max(on_host + copying, 1)


def _copying_time(updates: Updates, weight: torch.Tensor, cluster: Cluster) -> int:
    """Return what copies take of a weight that a host keeps and a device updates.

    They take the slowest link: weight, gradient and state come, and all but the gradient go.
    """
    own, kept = weight.nbytes, updates.kept(weight)
    (host,) = (device.name for device in cluster.devices if device.kind == STORE)
    longest = 0
    for name in (device.name for device in cluster.devices if device.kind != STORE):
        come = sum(cluster.transfer_time(size, host, name) for size in (own, own, *kept))
        go = sum(cluster.transfer_time(size, name, host) for size in (own, *kept))
        both = come + go if cluster.communication == "sequential" else max(come, go)
        longest = max(longest, both)
    return longest
