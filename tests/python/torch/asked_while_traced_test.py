# SPDX-License-Identifier: Apache-2.0
"""What a model's code may ask of its arguments and weights is not frozen into a graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from random_placement import placed_at_random
from torch import nn


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.third = (nn.Linear(8, 8).double() for _ in range(3))
        self.scale = torch.ones(8).double()  # no buffer
        self.table = np.ones(8)


class OfOne(Layers):
    """Asks whether two arguments are one."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(q) * 2 if q is k else self.second(q) + self.third(k)
        return found


class OfGradients(Layers):
    """Asks whether gradients are wanted, of an argument or of a weight."""

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        asked = x if what == "argument" else self.second.weight
        found: torch.Tensor = self.second(x) if asked.requires_grad else self.third(x).tanh()
        return found + self.first(x)


class OfLeaves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.grad_fn is None else x * 3


class InUnit(Layers):
    """Has a module without others inside that asks."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = OfLeaves()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.asking(x)) + self.first(x)
        return found


class OfStrides(Layers):
    """Reads an argument by strides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        there = x.as_strided((4, 4), (x.stride(0), x.stride(1)))
        found: torch.Tensor = self.first(x)[:4].sum() * there.sum(1) + self.second(x).sum()
        return found


class OfType(Layers):
    """Makes numbers of no given type."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        third = torch.tensor(1.0, device=x.device) / 3
        found: torch.Tensor = self.first(x) * third.to(x.dtype) + self.second(x)
        return found


class OfContent(Layers):
    """Reads a tensor and an array that are attributes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.from_numpy(self.table).to(x.device)
        found: torch.Tensor = self.first(x) * self.scale.to(x.device) + self.second(x) * table
        return found


def both(kind: type[nn.Module], example: Any) -> tuple[Any, Any, Any]:
    plain = kind()
    model = copy.deepcopy(plain)
    return plain, model, placed_at_random(model, example, 2, seed=1)


def batch() -> torch.Tensor:
    return torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def same(plain: Any, model: Any, *args: Any) -> None:
    torch.testing.assert_close(model(*args), plain(*args), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("twice", [True, False])
def test_arguments_that_are_one_are_told_from_two(twice: bool) -> None:
    x, y = batch(), batch() + 1
    plain, model, place = both(OfOne, (x, x if twice else y))
    for q, k in ((x, y), (x, x), (y, y), (y, x)):
        same(plain, model, q, k)
    assert (place.tier, place.graphs) == (2, 2)
    place.restore()


@pytest.mark.filterwarnings("ignore:.*not in the recorded step")
@pytest.mark.parametrize("what", ["argument", "weight"])
def test_whether_gradients_are_wanted_is_asked_in_every_call(what: str) -> None:
    plain, model, place = both(OfGradients, (batch(), what))
    for wanted in (False, True, False):
        for each in (plain, model):
            each.second.weight.requires_grad_(wanted)
        same(plain, model, batch().requires_grad_(wanted), what)
    assert "asks for requires_grad of a tensor (asked_while_traced_test.py:" in place.tier_note
    place.restore()


def test_a_module_that_asks_is_asked_in_every_call() -> None:
    plain, model, place = both(InUnit, batch())
    for x in (batch(), batch().requires_grad_() * 2):
        same(plain, model, x)
    assert "asks for grad_fn of a tensor" in place.tier_note
    place.restore()


def test_arguments_that_lie_otherwise_have_a_graph_of_their_own() -> None:
    x = batch()
    plain, model, place = both(OfStrides, x)
    for other in (x, x.t(), x.repeat(1, 2)[:, ::2], torch.cat([x, x], 1)[:, :8], x + 1):
        same(plain, model, other)
    assert place.graphs == 2
    place.restore()


def test_the_default_type_is_that_of_the_call() -> None:
    plain, model, place = both(OfType, batch())
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            same(plain, model, batch())
    finally:
        torch.set_default_dtype(before)
    assert place.tier == 2
    place.restore()


def scaled(model: Any, number: int) -> None:
    model.scale[number] = 3


def tabled(model: Any, number: int) -> None:
    model.table[number] = 5


@pytest.mark.parametrize("change", [scaled, tabled])
def test_attributes_that_change_in_place_are_noticed(change: Callable[[Any, int], None]) -> None:
    plain, model, place = both(OfContent, batch())
    for number in range(3):
        same(plain, model, batch())
        same(plain, model, batch())
        assert place.graphs == number + 1
        change(plain, number)
        change(model, number)
    place.restore()
