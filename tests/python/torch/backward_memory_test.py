# SPDX-License-Identifier: Apache-2.0
"""Predicted peaks of backwards that are not only the forward's in reverse."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from memory_test import OPTIMIZERS, accumulating_peaks, check, check_close, machine, placed_on
from torch import nn

__all__ = ["machine"]


class Reversed(torch.autograd.Function):
    """A block whose backward computes its inputs from its outputs, and its modules again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, f: Any, g: Any) -> Any:
        ctx.f, ctx.g = f, g
        with torch.no_grad():
            x = x + f(y)
            y = y + g(x)
        ctx.save_for_backward(x, y)
        return x, y

    @staticmethod
    def backward(ctx: Any, dx: torch.Tensor, dy: torch.Tensor) -> Any:
        x, y = (t.detach() for t in ctx.saved_tensors)
        with torch.enable_grad():
            x.requires_grad_()
            gx = ctx.g(x)
            torch.autograd.backward(gx, dy)
        dx, y = dx + x.grad, y - gx.detach()
        with torch.enable_grad():
            y.requires_grad_()
            torch.autograd.backward(ctx.f(y), dx)
        return dx, dy + y.grad, None, None


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6))
        self.first = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y = self.first(x).chunk(2, 1)
        for f, g in zip(self.parts[::2], self.parts[1::2], strict=True):
            x, y = Reversed.apply(x, y, f, g)
        return x + y


class ChangedViews(nn.Module):
    """Changes in place what a normalisation returns, which is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu_(self.norm(self.first(x))))
        return y


CASES = {"reversible": (Reversible, (8, 16)), "changed views": (ChangedViews, (4, 3, 16, 16))}


@pytest.mark.repeats
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_predicted_peaks(name: str, count: int) -> None:
    torch.manual_seed(3)
    build, size = CASES[name]
    inputs = torch.randn(size)
    how = {"method": "single"} if count == 1 else {"method": "random", "seed": 4}
    placed = placed_on(count, build(), inputs, optimizer="adam", **how)
    check(placed, inputs, "adam")
    placed.restore()


def test_gradients_that_a_backward_inside_adds_to() -> None:
    torch.manual_seed(3)
    model, inputs = Reversible(), torch.randn(8, 16)
    placed = placed_on(1, model, inputs, optimizer="adam", method="single", gradients="held")
    check_close(placed.peaks, accumulating_peaks(model, inputs, "adam", 1))
    placed.restore()


@pytest.mark.parametrize("gradients", ["freed", "held"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_are_small(
    optimizer: Any, gradients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    monkeypatch.setitem(OPTIMIZERS, "this", optimizer)
    layers: list[nn.Module] = [nn.Embedding(2000, 16, sparse=True), nn.Tanh()]
    model, words = nn.Sequential(*layers), torch.randint(2000, (8, 5))
    placed = placed_on(1, model, words, optimizer=optimizer, method="single", gradients=gradients)
    if gradients == "freed":
        check(placed, words, "this")
    else:
        check_close(placed.peaks, accumulating_peaks(model, words, "this", 1))
    placed.restore()
