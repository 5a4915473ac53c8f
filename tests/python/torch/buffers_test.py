# SPDX-License-Identifier: Apache-2.0
"""Buffers that a forward reads and changes, and weights that hooks compute of others."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from places import machine, of_the_bank_trains_the_same, placed_at_random, trains_the_same
from torch import nn
from torch.nn.utils import prune


class Several(nn.Module):
    """Changes buffers by operators that return nothing, or a copy from another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        for name in ("one", "two", "three"):
            self.register_buffer(name, torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.one
        with torch.no_grad():
            torch._foreach_mul_([self.one, self.two], 0.5)
            self.three.copy_(self.two)
            with torch.enable_grad():
                y = x.sin() + self.two
            self.two.add_(x.sum(0))
        self.one.copy_(self.three)
        return self.second(y + self.one) + self.two


class Precise(nn.Module):
    """Computes in full precision whatever is around it, and changes a buffer there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = (x * x).softmax(-1)
            self.seen.add_(y.detach().sum(0))
            with torch.no_grad():
                self.mean.copy_(self.seen / 2)
        return self.second(y) + self.seen


class Observed(nn.Module):
    """Scales by limits that have a size once data were seen, as observers of a quantiser do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.high: torch.Tensor
        self.register_buffer("high", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        with torch.no_grad():
            highest = found.abs().amax(0)
            if self.high.numel() == 0:
                self.high.resize_(highest.shape)
                self.high.copy_(highest / 2)
            else:
                self.high.copy_(torch.maximum(self.high, highest))
        return self.second(found / self.high)


@pytest.mark.repeats
@pytest.mark.parametrize("kind", [Several, Precise])
def test_buffers_that_are_changed_where_no_gradients_are_kept(kind: type) -> None:
    torch.manual_seed(3)
    trains_the_same(kind().double(), torch.randn(6, 4).double())


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["vq-vae", "old-spectral-norm"])
def test_buffers_of_models_of_the_bank(name: str) -> None:
    of_the_bank_trains_the_same(name)


def test_buffers_that_get_their_size_in_the_first_call() -> None:
    torch.manual_seed(3)
    trains_the_same(Observed().double(), torch.randn(6, 4).double())


class Counted(nn.Module):
    """Counts its calls in one buffer, and keeps in another what it returns, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        total = self.total + x.detach().sum()
        self.total.copy_(total)
        return self.layer(x) * self.calls, total


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_buffer_that_is_added_to_stays_the_same_tensor(context: Any) -> None:
    model = Counted().double()
    plain = copy.deepcopy(model)
    with machine():
        placed = placed_at_random(model, torch.ones(3, 4).double())
        calls = model.calls
        for count in (1, 2, 3):
            with context():
                x = torch.full((3, 4), float(count), dtype=torch.double)
                (expected, _), (found, total) = plain(x), model(x.to("sim:0"))
                torch.testing.assert_close(found.cpu(), expected)
                total.zero_()  # no buffer
            assert model.calls is calls
            assert float(calls) == count
        assert placed.left_out == []
        placed.restore()
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, msg=name)


def _pruned(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():  # what it computes at once could not be copied otherwise
        return prune.random_unstructured(layer, "weight", amount=0.5)


def test_weights_that_hooks_compute() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(_pruned(nn.Linear(4, 6)), nn.Tanh(), _pruned(nn.Linear(6, 4)))
    trains_the_same(model.double(), torch.randn(5, 4).double())
