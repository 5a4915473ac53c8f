# SPDX-License-Identifier: Apache-2.0
"""What a part of a model reads beside its arguments may be on another device, or be one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import doubles, trains_the_same
from step_models import module
from torch import nn


@module()
def Sine(_: Any, mask: torch.Tensor, device: Any, dtype: torch.dtype) -> torch.Tensor:
    """A position embedding without weights, as DETR's is."""
    steps = torch.arange(8, dtype=dtype, device=device)
    return mask.cumsum(1).to(dtype)[..., None] / (10 ** (steps / 8))


@module(lambda: {"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
def Block(self: Any, x: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """Makes a mask on the device that it is told, and runs as one unit if it is on one device."""
    keep = torch.arange(x.shape[1], device=device) < 4
    return self.second(self.first(x).relu() * keep[None, :, None])


@module(lambda: {"embed": nn.Linear(8, 8), "positions": Sine(), "block": Block()})
def Model(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Tells its parts where its argument is."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if mask.sum() < 0:
        return x
    h = self.embed(x) + self.positions(mask, x.device, x.dtype)
    return self.block(h, device=x.device) + self.positions(mask, device=h.device, dtype=h.dtype)


@module(lambda: {"weight": nn.Parameter(torch.rand(8))})
def Magnitude(self: Any, x: torch.Tensor, *, down: nn.Module, up: nn.Module) -> torch.Tensor:
    """Scales by the norm of what two modules that it is given make, as DoRA does."""
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


@module(
    lambda: {"first": nn.Linear(16, 16), "second": nn.Linear(16, 16), "last": nn.Linear(16, 16)}
)
def NearOthers(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Takes tensors to where others are, which is where they are: they are the same tensors."""
    first, other = self.first(x), self.second(x)
    first.to(other).add_(1)
    first.to(device=other.device).mul_(2)
    first.to(other.device, non_blocking=True)[:, :8].tanh_()
    first.to(other.device, None, False, True).zero_()  # of a copy
    bits = (other > 0).to(first)
    return self.last(first * bits + other.to(first.device, torch.float64))


@module(
    lambda: {"first": nn.Linear(16, 16), "second": nn.Linear(16, 16), "last": nn.Linear(16, 16)}
)
def NearTheArgument(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Takes tensors to where the model was called, which is where they are."""
    first, other = self.first(x), self.second(x)
    first.to(x).add_(1)
    first.to(x.device).mul_(2)
    other.to(device=x.device, dtype=x.dtype)[:, :8].tanh_()
    return self.last(first + other)


class Shared:
    """What modules tell each other, beside what they return."""

    def __init__(self) -> None:
        self.told: dict[str, torch.Tensor] = {}


class Tells(nn.Module):
    """A leaf that leaves its output in an object, and reads what others left there."""

    def __init__(self, name: str, shared: Shared) -> None:
        super().__init__()
        self.name, self.shared = name, shared
        self.weight = nn.Parameter(torch.randn(8, 8) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ self.weight).tanh()
        for name in sorted(self.shared.told):
            y = y + 0.5 * self.shared.told[name]
        self.shared.told[self.name] = y
        return y


class Telling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = Shared()
        self.shared = [shared]
        self.parts = nn.Sequential(*(Tells(name, shared) for name in "abcd"))

    def forward(self, x: torch.Tensor) -> Any:
        self.shared[0].told.clear()
        y = x
        for part in self.parts:
            y = x + part(y).sin()
        return y


@module(lambda: {"first": nn.Linear(8, 8), "second": nn.Linear(8, 8), "third": nn.Linear(8, 8)})
def Weighted(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A derivative in a direction that another part computes."""
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        y = self.first(place).tanh()
        by = self.second(x)
        (turned,) = torch.autograd.grad(y, place, grad_outputs=by, create_graph=True)
    return self.third(turned)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Model, (2, 5, 8)),
        (Adapted, (4, 8)),
        (NearOthers, (4, 16)),
        (NearTheArgument, (4, 16)),
        *(pytest.param(build, (5, 8), marks=pytest.mark.repeats) for build in (Telling, Weighted)),
    ],
)
def test_trains_the_same(build: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    trains_the_same(build().double(), doubles(shape))
