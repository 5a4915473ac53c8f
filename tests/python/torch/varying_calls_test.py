# SPDX-License-Identifier: Apache-2.0
"""Calls that differ from each other get graphs of their own, up to a limit."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch import tiers
from baechi.torch.exported import export
from random_placement import placed_at_random, scattered_graph
from torch import nn
from torch_models import CASES, built


def test_other_sizes_get_another_graph_until_they_vary_too_much() -> None:
    case = CASES["unet"]
    placed = scattered_graph("unet")
    for size in (16, 24, 32):
        images = torch.randn(2, 3, size, size)
        torch.testing.assert_close(placed.model(images), built(case)(images), rtol=1e-4, atol=1e-5)
        assert placed.tier == 2
    assert placed.graphs == 2  # the second leaves the size of the images open


@dataclasses.dataclass
class Found:
    """Nested outputs, one of them no tensor."""

    parts: dict[str, list[Any]]
    name: str = "found"


class Nested(nn.Module):
    """Takes and returns nested containers and numbers; computes a weight from others."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.right = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> Found:
        left = self.left(batch["pair"][0])
        right = self.right(batch["pair"][1]) * scale
        return Found({"both": [left + right, None], "right": [right]})


def test_nested_arguments_and_outputs_and_numbers_that_vary() -> None:
    def call(scale: float) -> dict[str, Any]:
        return {"batch": {"pair": (torch.ones(2, 4), torch.ones(2, 4) / 2)}, "scale": scale}

    torch.manual_seed(7)
    model = Nested()
    plain = copy.deepcopy(model)
    placed = placed_at_random(model, call(1.0), 2)
    for number in range(20):
        expected, found = plain(**call(number / 4)), model(**call(number / 4))
        assert isinstance(found, Found)
        assert found.parts["both"][1] is None
        torch.testing.assert_close(found.parts["both"][0], expected.parts["both"][0])
        torch.testing.assert_close(found.parts["right"][0], expected.parts["right"][0])
    assert placed.graphs == 16  # each number has a graph of its own, up to a limit
    assert (placed.tier, placed.tier_note) == (1, "its arguments vary too much")


class Turning(Nested):
    """Takes a turn by its data, so that it has no graph."""

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> Found:
        if batch["pair"][0].sum() > 1e9:
            scale = -scale
        return super().forward(batch, scale=scale)


def test_graphs_that_cannot_be_had_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal tried
        tried += 1
        return export(*args, **kwargs)

    monkeypatch.setattr(tiers, "export", counted)
    inputs = {"batch": {"pair": (torch.ones(2, 4), torch.ones(2, 4))}, "scale": 1.0}
    placed = placed_at_random(Turning(), inputs, 2)
    for number in range(20):
        placed.model(**{**inputs, "scale": number / 4})
    assert tried == 15  # of sixteen; `place` tried the first
    assert "data-dependent" in placed.tier_note


class Options:
    """What libraries keep beside a model's weights."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.steps = [1.0]


class Adjusted(nn.Module):
    """Does what its attributes say."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.outer = nn.Linear(16, 4)
        self.options = options
        self.shift = 0.0
        self.doubled = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x) * self.options.scale * self.options.steps[-1] + self.shift
        return self.outer(x) * 2 if self.doubled else self.outer(x)


def double(model: Any) -> None:
    model.doubled = not model.doubled


def scale(model: Any) -> None:
    model.options.scale = 3.5 - model.options.scale


def append(model: Any) -> None:
    model.options.steps.append(model.options.steps[-1] + 1)


def replace(model: Any) -> None:
    model.options = Options()
    model.options.scale = 0.25


@pytest.mark.parametrize("change", [double, scale, append, replace])
def test_attributes_that_change_between_calls_are_noticed(change: Any) -> None:
    torch.manual_seed(2)
    plain = Adjusted(Options())
    model = copy.deepcopy(plain)
    x = torch.randn(3, 16)
    placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2, tier=2)
    for _ in range(2):
        for _ in range(2):  # the second call uses the graph of the first
            torch.testing.assert_close(model(x), plain(x))
            assert placed.tier == 2
        change(plain)
        change(model)
    torch.testing.assert_close(model(x), plain(x))
    assert placed.graphs <= 3
    placed.restore()


def test_attributes_that_change_all_the_time_end_in_tier_1() -> None:
    torch.manual_seed(2)
    plain = Adjusted(Options())
    model = copy.deepcopy(plain)
    x = torch.randn(3, 16)
    placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
    for step in range(8):
        plain.shift = model.shift = 0.1 * step
        torch.testing.assert_close(model(x), plain(x))
        assert placed.tier == (2 if step < 4 else 1)
    assert placed.tier_note == "its attribute 'shift' varies too much"
    plain.shift = model.shift = 0.1
    torch.testing.assert_close(model(x), plain(x))
    assert (placed.tier, placed.graphs) == (2, 4)
    placed.restore()
