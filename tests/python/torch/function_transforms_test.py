# SPDX-License-Identifier: Apache-2.0
"""Derivatives and functions of torch.func in a forward."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from places import trains_the_same
from torch import nn


def rows(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(m.inner)(h) + other


def pairs(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda row, scale: (m.inner(row) * scale).cos())(h, other)


def closed(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    first = other[0] * 2
    return torch.func.vmap(lambda row: (m.inner(row) * first).cos())(h)


def changed(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = m.inner(row) * scale
        found[:2].add_(row[:2])
        return found.mul_(1.5).cos()

    return torch.func.vmap(one)(h, other)


def gradient(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda rows: (m.inner(rows).sin() * other).sum())(h)


def pulled_back(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    values, pull = torch.func.vjp(lambda rows: m.inner(rows).sin(), h)
    found: torch.Tensor = pull(other)[0]
    return found + values


def jacobians(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(torch.func.jacrev(lambda row: m.inner(row).sin()))(h).sum(1) + other


class Mapping(nn.Module):
    """Maps a part over the rows of what another part made."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.first, self.inner, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.last(self.how(self, h, self.last(h).sin()))


@pytest.mark.parametrize("how", [rows, pairs, closed, changed, pulled_back])
def test_functions_of_torch_func(how: Any) -> None:
    torch.manual_seed(3)
    trains_the_same(Mapping(how).double(), torch.randn(4, 8).double())


@pytest.mark.parametrize("how", [gradient, jacobians])
def test_derivatives_by_torch_func_over_several_devices_end_in_an_error(how: Any) -> None:
    """It is PyTorch's: its backward cannot say to an allocator who reads what stands for others."""
    torch.manual_seed(3)
    with pytest.raises(NotImplementedError, match="Cannot access storage of"):
        trains_the_same(Mapping(how).double(), torch.randn(4, 8).double())


class Hypernetwork(nn.Module):
    """A network whose weights are changed by what another makes, and read abroad for that first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        self.sizes = [weight.numel() for weight in self.inner.parameters()]
        self.code = nn.Embedding(5, 3)
        self.maker = nn.Sequential(nn.Linear(3, 12), nn.SiLU(), nn.Linear(12, sum(self.sizes)))

    def forward(self, task: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        changes = self.maker(self.code(task)).split(self.sizes)
        weights = {
            name: weight + 0.1 * change.view_as(weight)
            for (name, weight), change in zip(self.inner.named_parameters(), changes, strict=True)
        }
        return torch.func.functional_call(self.inner, weights, (x,))


def test_weights_that_another_network_makes() -> None:
    torch.manual_seed(0)
    inputs = (torch.tensor(2), torch.randn(3, 4).double())
    trains_the_same(Hypernetwork().double(), inputs)
