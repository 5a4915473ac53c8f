# SPDX-License-Identifier: Apache-2.0
"""Calls that differ from each other get graphs of their own, up to a limit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from baechi.torch.placing import place
from places import machine, placed_at_random
from step_models import language_model
from torch import nn


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
        x = self.last(x * self.masks[0].to(x))
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
    with machine():
        placed = placed_at_random(model, x)
        for _ in range(2):
            for _ in range(2):  # the second call uses the graph of the first
                torch.testing.assert_close(model(x).cpu(), plain(x))
            change(plain)
            change(model)
        torch.testing.assert_close(model(x).cpu(), plain(x))
        placed.restore()


class Cached(nn.Module):
    """Keeps what it needs for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(16, 4), 0
        self.known: dict[Any, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = tuple(x.shape)
        if size not in self.known:
            self.known[size] = torch.linspace(0, 1, 4, device=x.device)
        self.calls += 1
        return (self.inner(x) + self.known[size]) * self.calls


def test_graphs_that_return_a_size_are_programs() -> None:
    model = Cached()
    plain = copy.deepcopy(model)
    with machine():
        placed = placed_at_random(model, torch.randn(4, 16))
        for count in (4, 4, 6, 4, 6):
            x = torch.randn(count, 16)
            torch.testing.assert_close(model(x).cpu(), plain(x))
        assert not placed.left_out
        placed.restore()


def test_the_sizes_of_another_model_are_none_of_a_model() -> None:
    with machine() as devices:
        for count in (3, 5, 7):
            model = nn.Linear(16, 4)
            placed = place(model, torch.randn(count, 16), "1x1GiB", devices=devices[:1])
            model(torch.randn(count, 16))
            assert "number" not in placed.program
            placed.restore()


@pytest.mark.filterwarnings("ignore")
def test_a_placed_model_generates_the_same_words() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    model, inputs = language_model("llama", 2, 16, 2)
    words = inputs["input_ids"][:, :7]
    how: dict[str, Any] = {"do_sample": False, "max_new_tokens": 3, "use_cache": True}
    how |= {"attention_mask": torch.ones_like(words), "pad_token_id": 0}
    expected = copy.deepcopy(model).eval().generate(words, **how)
    with machine(seed=2):
        placed = placed_at_random(model, inputs, 2)
        model.eval()
        assert torch.equal(model.generate(words, **how).cpu(), expected)
        placed.restore()
