# SPDX-License-Identifier: Apache-2.0
"""Operators that return views of several tensors, which may be on several devices."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from places import trains_the_same
from torch import nn
from torch.nn import functional


class Forecaster(nn.Module):
    """Computes its loss itself: of an argument and of what other devices made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        y = self.second(self.first(x - mean)) + mean
        return functional.smooth_l1_loss(y, target) + functional.mse_loss(y * 2, target[:, :1])


class Grid(nn.Module):
    """Spreads two weights over a grid, and uses a view of one of them besides."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Linear(4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.rows(x).mean(0), self.columns(x).mean(0)
        one, other = torch.meshgrid(rows, columns, indexing="ij")
        high, wide = torch.broadcast_tensors(rows[:, None], columns)
        both = torch.atleast_2d(rows, columns)
        return one * other.sin() + high * wide[:2].sum() + both[0].sum() * both[1] + rows[:1]


class Spoiled(Grid):
    """Changes what it has a view of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.rows(x).mean(0), self.columns(x).mean(0)
        high, wide = torch.broadcast_tensors(rows[:, None], columns)
        result = (high + wide).detach()
        with torch.no_grad():
            columns.mul_(0.5)
        return result + high.cos() * wide


class Turned(nn.Module):
    """Hands views by attribute to operators that may be elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        z = torch.view_as_complex(y.reshape(4, 4, 2, 2))
        found: torch.Tensor = self.second((z * z).real.sum(2)) + self.second((y * y).T[:4])
        return found + (z * 2j).imag.exp().sum(2) + (y * 3).data[:, :4].sin()


def test_views_by_attribute() -> None:
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 16, dtype=torch.double).reshape(4, 4)
    trains_the_same(Turned().double(), x, seeds=(1, 2))


@pytest.mark.parametrize("kind", [Forecaster, Grid])
def test_views_of_several_tensors(kind: type) -> None:
    torch.manual_seed(3)
    inputs = (torch.randn(6, 4).double(), torch.randn(6, 1).double())
    trains_the_same(kind().double(), inputs if kind is Forecaster else inputs[:1])


def test_views_of_several_tensors_that_are_changed() -> None:
    torch.manual_seed(3)
    x = torch.randn(6, 4).double()
    trains_the_same(Spoiled().double(), x)
