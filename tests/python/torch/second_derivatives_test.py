# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.grad` in a forward: what it runs is counted where it runs, and may be spread."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from places import of_the_bank_trains_the_same, trains_the_same
from torch import nn


class Adapted(nn.Module):
    """MAML of first order: two inner steps on weights of its own, whose slopes are constants."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        weights = dict(self.net.named_parameters())
        for _ in range(2):
            out = torch.func.functional_call(self.net, weights, (places,))
            inner = (out - places).square().mean()
            slopes = torch.autograd.grad(inner, list(weights.values()))
            weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
        return torch.func.functional_call(self.net, weights, (places,))


@pytest.mark.repeats
@pytest.mark.parametrize("host", ["", "+1xhost:1GiB"])
@pytest.mark.parametrize("name", ["energy-forces", "hamiltonian", "maml"])
def test_slopes_train_as_on_one_device(name: str, host: str) -> None:
    of_the_bank_trains_the_same(name, host=host)


@pytest.mark.parametrize("host", ["", "+1xhost:1GiB"])
def test_slopes_of_first_order_train_as_on_one_device(host: str) -> None:
    torch.manual_seed(5)
    trains_the_same(Adapted().double(), torch.randn(48, 12).double(), host=host)
