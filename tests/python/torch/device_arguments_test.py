# SPDX-License-Identifier: Apache-2.0
"""Modules that are handed the device to make tensors on, or other modules to call."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from places import trains_the_same
from torch import nn


class Sine(nn.Module):
    """A position embedding without weights, as DETR's is."""

    def forward(self, mask: torch.Tensor, device: Any, dtype: torch.dtype) -> torch.Tensor:
        steps = torch.arange(8, dtype=dtype, device=device)
        return mask.cumsum(1).to(dtype)[..., None] / (10 ** (steps / 8))


class Block(nn.Module):
    """Makes a mask on the device that it is told, and runs as one unit if it is on one device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, device: torch.device) -> torch.Tensor:
        keep = torch.arange(x.shape[1], device=device) < 4
        return self.second(self.first(x).relu() * keep[None, :, None])


class Model(nn.Module):
    """Tells its parts where its argument is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions, self.block = nn.Linear(8, 8), Sine(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if mask.sum() < 0:
            return x
        h = self.embed(x) + self.positions(mask, x.device, x.dtype)
        return self.block(h, device=x.device) + self.positions(mask, device=h.device, dtype=h.dtype)


def test_modules_that_are_told_a_device() -> None:
    torch.manual_seed(3)
    trains_the_same(Model().double(), torch.randn(2, 5, 8).double())


class Magnitude(nn.Module):
    """Scales by the norm of what two modules that it is given make, as DoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor, *, down: nn.Module, up: nn.Module) -> torch.Tensor:
        """Call the modules, on the argument and on one of its own."""
        norm = up(down(torch.eye(8, dtype=x.dtype, device=x.device))).norm(dim=0)
        return up(down(x)) * (self.weight / norm)


class Adapted(nn.Module):
    """Hands modules to a module that has none inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.down = nn.Sequential(nn.Linear(8, 2), nn.Tanh())
        self.up, self.magnitude = nn.Linear(2, 8), Magnitude()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(x + self.magnitude(x, down=self.down, up=self.up))


def test_a_module_that_is_given_modules() -> None:
    torch.manual_seed(3)
    trains_the_same(Adapted().double(), torch.randn(4, 8).double())


class NearOthers(nn.Module):
    """Takes tensors to where others are, which is where they are: they are the same tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, other = self.first(x), self.second(x)
        first.to(other).add_(1)
        first.to(device=other.device).mul_(2)
        first.to(other.device, non_blocking=True)[:, :8].tanh_()
        first.to(other.device, None, False, True).zero_()  # of a copy
        bits = (other > 0).to(first)
        y: torch.Tensor = self.last(first * bits + other.to(first.device, torch.float64))
        return y


def test_a_tensor_that_is_taken_to_where_it_is_stays_the_same() -> None:
    trains_the_same(NearOthers().double(), torch.randn(4, 16, dtype=torch.float64))


class NearTheArgument(nn.Module):
    """Takes tensors to where the model was called, which is where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, other = self.first(x), self.second(x)
        first.to(x).add_(1)
        first.to(x.device).mul_(2)
        other.to(device=x.device, dtype=x.dtype)[:, :8].tanh_()
        y: torch.Tensor = self.last(first + other)
        return y


def test_a_tensor_that_is_taken_to_where_the_model_was_called_stays_the_same() -> None:
    trains_the_same(NearTheArgument().double(), torch.randn(4, 16, dtype=torch.float64))
