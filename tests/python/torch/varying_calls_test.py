# SPDX-License-Identifier: Apache-2.0
"""Calls that differ from each other get graphs of their own, up to a limit."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.run import graphs
from baechi.torch.trace.exported import export
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

    monkeypatch.setattr(graphs, "export", counted)
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
        self.shift: Any = 0.0
        self.doubled = False
        self.last = torch.nn.functional.relu
        self.masks = [torch.ones(16)]

    def forward(self, x: torch.Tensor, shift: float | None = None) -> torch.Tensor:
        if shift is not None:
            self.shift = shift  # also for later calls
        x = self.inner(x) * self.options.scale * self.options.steps[-1] + self.shift
        x = self.last(x * self.masks[0])
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


def mask(model: Any) -> None:
    model.masks[0] = model.masks[0] + 1


@pytest.mark.parametrize("change", [double, scale, append, replace, mask])
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


def adjusted() -> tuple[Any, Any, torch.Tensor]:
    torch.manual_seed(2)
    plain = Adjusted(Options())
    return plain, copy.deepcopy(plain), torch.randn(3, 16)


def test_a_tensor_that_is_put_in_and_taken_out_is_noticed() -> None:
    plain, model, x = adjusted()
    placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
    for value in (torch.ones(16), torch.full((16,), 7.0), 0.0, torch.full((16,), 3.0)):
        plain.shift = model.shift = value
        torch.testing.assert_close(model(x), plain(x))
    placed.restore()


def test_what_a_call_without_a_graph_changes_is_noticed_by_those_with_one() -> None:
    plain, model, x = adjusted()
    placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
    for more in ({}, {"shift": 5.0}, {}, {"shift": -1.0}, {}):
        torch.testing.assert_close(model(x, **more), plain(x, **more))
    placed.restore()


def test_a_function_in_the_place_of_one_that_is_gone_is_another() -> None:
    """Also where it has the address of the former one."""
    plain, model, x = adjusted()
    model.last = functools.partial(torch.mul, torch.tensor(1.0))
    placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
    for step in range(60):
        plain.last = functools.partial(torch.mul, torch.tensor(float(step)))
        model.last = functools.partial(torch.mul, torch.tensor(float(step)))
        torch.testing.assert_close(model(x), plain(x))
    placed.restore()


@pytest.mark.parametrize("tier", ["auto", 1])
def test_a_forward_that_was_wrapped_while_placed_stays_wrapped(tier: Any) -> None:
    plain, model, x = adjusted()
    placed = baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2, tier=tier)
    for each in (plain, model):
        each.forward = functools.partial(twice, each.forward)
    for batch in (x, torch.randn(2, 3, 16), x):  # the second has a graph of its own
        torch.testing.assert_close(model(batch), plain(batch))
    placed.restore()


def twice(forward: Any, x: torch.Tensor) -> torch.Tensor:
    return forward(x) * 2
