# SPDX-License-Identifier: Apache-2.0
"""What a part of a model reads beside its arguments may be on another device."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", exc_type=ImportError)

import torch
from places import of_the_bank_trains_the_same, trains_the_same
from torch import nn


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


class Hooked(nn.Module):
    """Gradients that hooks change by what the forward made, or by solving for it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def cell(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(0.3 * self.parts[1](z) + self.parts[2](x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.parts[0](x)
        z = self.cell(x, mask)
        again = z.detach().requires_grad_()
        found = self.cell(again, mask.detach())

        def solved(grad: torch.Tensor) -> torch.Tensor:
            y = grad
            for _ in range(3):
                (y,) = torch.autograd.grad(found, again, y, retain_graph=True)
                y = y + grad
            return y

        if z.requires_grad:
            z.register_hook(solved)
            z.register_hook(lambda grad: torch.where(mask > 0, grad, 0.5 * grad))
            mask.register_hook(lambda _: None)
        y: torch.Tensor = self.parts[3](z)
        return y


class Weighted(nn.Module):
    """A derivative in a direction that another part computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            y = self.first(place).tanh()
            by = self.second(x)
            (turned,) = torch.autograd.grad(y, place, grad_outputs=by, create_graph=True)
        z: torch.Tensor = self.third(turned)
        return z


class HalfPrecision(nn.Module):
    """Asks where its input is for the autocast that some of it runs under."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            weight = self.second.weight.float()
            z = nn.functional.linear(y.float(), weight)
            with torch.autocast(x.device.type, enabled=False):
                z = nn.functional.linear(z.float(), weight)
        assert z.dtype is torch.float32
        last: torch.Tensor = self.third(z.to(x.dtype))
        return last


@pytest.mark.repeats
@pytest.mark.parametrize("model", [Telling, Hooked, Weighted, HalfPrecision])
def test_trains_the_same(model: type[nn.Module]) -> None:
    torch.manual_seed(3)
    trains_the_same(model().double(), torch.randn(5, 8).double())


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["cached-weights", "ensemble"])
def test_a_model_of_the_bank_trains_the_same(name: str) -> None:
    of_the_bank_trains_the_same(name)
