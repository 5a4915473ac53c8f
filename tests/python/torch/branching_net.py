# SPDX-License-Identifier: Apache-2.0
"""A small model that branches, placed on simulated devices and trained beside an unplaced one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_placement import placed_at_random
from torch import nn

X = torch.linspace(-1, 1, 3 * 16).reshape(3, 16)
DEVICES = ["sim:0", "sim:1", "sim:2"]


class Net(nn.Module):
    """Two branches that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branches."""
        x = torch.relu(self.stem(x))
        return self.head(self.left(x) + self.right(x))


def net() -> Net:
    torch.manual_seed(5)
    return Net()


def placed_on(
    model: nn.Module, devices: list[str] | None = None, tier: int | str = 1, **options: Any
) -> Any:
    return placed_at_random(model, X, devices or DEVICES, seed=1, tier=tier, **options)


def step(model: nn.Module, optimizer: Any) -> float:
    optimizer.zero_grad()
    loss = model(X).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


PLACED: list[Any] = []  # by `placed`; the fixture `restored` restores them


def placed(model: nn.Module, tier: int | str, devices: list[str] | None = None) -> Any:
    place = placed_on(model, devices, tier)
    PLACED.append(place)
    return place


def both(tier: int | str) -> tuple[Any, Any, Any]:
    """Return a model, the same placed, and the placement."""
    plain, model = net(), net()
    return plain, model, placed(model, tier)


def same_steps(plain: nn.Module, model: nn.Module, count: int = 2) -> None:
    expected = torch.optim.Adam(plain.parameters(), 0.01)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(count):
        assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)


def same_gradients(plain: nn.Module, model: nn.Module) -> None:
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-6)
