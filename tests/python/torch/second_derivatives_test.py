# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.grad` in a forward: what it runs is counted where it runs, and may be spread."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from places import trains_the_same
from torch import nn


class Forces(nn.Module):
    """Minus the slopes of an energy, which are trained."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, width), nn.Linear(width, width)])
        self.energy = nn.Linear(width, 1)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        places = places.detach().requires_grad_()
        hidden = places
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) * hidden.mean()
        (slope,) = torch.autograd.grad(self.energy(hidden).sum(), places, create_graph=True)
        return -slope


class Leapfrog(nn.Module):
    """Slopes of what was computed with slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        place, speed = places.requires_grad_(), (places * 0.5).detach().requires_grad_()
        for _ in range(2):
            energy = self.energy(torch.cat([place, speed], 1)).sum()
            down, up = torch.autograd.grad(energy, (place, speed), create_graph=True)
            place, speed = place + 0.1 * up, speed - 0.1 * down
        return torch.cat([place, speed], 1)


class Adapted(nn.Module):
    """MAML: two inner steps on weights of its own, through which the outer loss goes."""

    def __init__(self, create_graph: bool = True) -> None:
        super().__init__()
        self.create_graph = create_graph
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        weights = dict(self.net.named_parameters())
        for _ in range(2):
            out = torch.func.functional_call(self.net, weights, (places,))
            inner = (out - places).square().mean()
            slopes = torch.autograd.grad(
                inner, list(weights.values()), create_graph=self.create_graph
            )
            weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
        return torch.func.functional_call(self.net, weights, (places,))


MODELS: dict[str, Any] = {
    "forces": Forces,
    "leapfrog": Leapfrog,
    "maml": Adapted,
    "first-order maml": lambda: Adapted(create_graph=False),
}


def built(name: str) -> Any:
    torch.manual_seed(5)
    return MODELS[name](), torch.randn(48, 12)


@pytest.mark.repeats
@pytest.mark.parametrize("host", ["", "+1xhost:1GiB"])
@pytest.mark.parametrize("name", MODELS)
def test_slopes_train_as_on_one_device(name: str, host: str) -> None:
    model, inputs = built(name)
    trains_the_same(model.double(), inputs.double(), host=host)
