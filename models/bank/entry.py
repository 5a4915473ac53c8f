# SPDX-License-Identifier: Apache-2.0
"""One model of the bank: how it is built, fed and trained, and inputs that many of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

# The losses of some steps; `before` is called when a step begins, its gradients gone.
Training: TypeAlias = Callable[[Any, list[Any], Callable[[], None]], list[float]]
Loss: TypeAlias = Callable[[Any], torch.Tensor]


def loss_of_output(out: Any) -> torch.Tensor:
    """Return the output's own loss, else the mean squares of its floating tensors."""
    own = out if isinstance(out, torch.Tensor) and out.dim() == 0 else getattr(out, "loss", None)
    if own is not None:
        return own
    return sum((t.square().mean() for t in floating(out)), start=torch.zeros(()))


def floating(value: Any) -> list[torch.Tensor]:
    """Return the floating tensors inside tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (Mapping, tuple, list)):
        return [tensor for item in items for tensor in floating(item)]
    return floating(list(vars(value).values())) if hasattr(value, "__dataclass_fields__") else []


@dataclass(frozen=True)
class Entry:
    """A model that every placement has to train as one device does."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Any]  # by batch size and seed
    loss: Loss = loss_of_output
    train: Training | None = None  # None: AdamW on the loss of each batch
    sizes: tuple[int, int, int] = (4, 3, 4)  # of the batches; the last is the first again
    varies: str = ""  # why other steps' memory is not that of the example
    needs: str = ""  # the package that it is from
    chance: bool = False  # whether its forward draws random numbers
    single: bool = False  # whether its library knows no double precision


def seeded(seed: int) -> torch.Generator:
    """Return random numbers of their own."""
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    """Return normal numbers."""
    return torch.randn(*shape, generator=seeded(seed))


def tokens(*shape: int, below: int = 40, seed: int = 1) -> torch.Tensor:
    """Return identifiers; 0 is left for padding."""
    return torch.randint(1, below, shape, generator=seeded(seed))
