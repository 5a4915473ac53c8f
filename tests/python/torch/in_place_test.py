# SPDX-License-Identifier: Apache-2.0
"""Changes in place of what the plan has nowhere: the caller's tensors, and those made beside it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from places import trains_the_same
from torch import nn


def masked(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, value: torch.Tensor) -> None:
    pos[:, i, mask[i].bool()] = value.to(pos.device) + 1


def sliced(_: Any, pos: torch.Tensor, i: int, __: torch.Tensor, value: torch.Tensor) -> None:
    pos[:, i, : value.shape[-1]] = value


def filled(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    pos[:, i].masked_fill_(mask[i].bool() & (mask[i] * 2 > 0), 3)


def added(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    pos[:, i] += mask[i] * 2


def into(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    torch.add(pos[:, i], mask[i] * 2, out=pos[:, i])


def listed(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    torch._foreach_add_([pos[:, i]], [(mask[i] * 2).expand(3, -1)])


class Positions(nn.Module):
    """Fills a tensor that it makes where its arguments are, as Qwen2-VL does."""

    def __init__(self, fill: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(64, 8), nn.Embedding(64, 8)
        self.out, self.fill = nn.Linear(8, 8), fill

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        pos = torch.zeros(3, *ids.shape, dtype=torch.long, device=ids.device)
        for i in range(ids.shape[0]):
            n = int(mask[i].sum().item())
            self.fill(self, pos, i, mask, torch.arange(n, device=ids.device).expand(3, -1))
        return self.out(self.words(ids) + self.places(pos).sum(0))


@pytest.mark.repeats
@pytest.mark.parametrize("fill", [masked, sliced, filled, added, into, listed])
def test_a_tensor_made_where_the_arguments_are(fill: Any) -> None:
    torch.manual_seed(3)
    inputs = (torch.randint(0, 60, (2, 5)), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    trains_the_same(Positions(fill).double(), inputs)


class Residual(nn.Module):
    """Begins with a module that changes the argument, and reads the argument again."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(self.relu(x)))
        return y * y + x


class Argument(nn.Module):
    """Gives a copy of what it is called with to a model that changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Residual()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.clone() if x.sum() > 1e9 else x)


@pytest.mark.parametrize("kind", [Residual, Argument])
def test_a_module_that_changes_an_argument_of_the_model(kind: Any) -> None:
    torch.manual_seed(3)
    trains_the_same(kind().double(), torch.randn(6, 4).double())
