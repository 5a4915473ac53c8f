# SPDX-License-Identifier: Apache-2.0
"""Activations that are computed again in the backward: as in the forward, call by call."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.placing import assign
from random_placement import placed_at_random
from torch import nn
from torch.utils import checkpoint as checkpointing
from training_steps import close, train

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = [
    pytest.mark.usefixtures("sim"),
    # What PyTorch says of reentrant checkpoints on several devices, and in evaluation.
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
]

X = torch.linspace(-1, 1, 3 * 8).reshape(3, 8)


class Doubled(torch.autograd.Function):
    """Keeps its input, and has a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * gradients[0]


class Layered(nn.Module):
    """Calls the same layers several times and keeps only what goes in."""

    def __init__(self, what: str, reentrant: bool) -> None:
        super().__init__()
        self.what, self.reentrant = what, reentrant
        self.stem, self.side = nn.Linear(8, 8), nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def function(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Have plain operations between modules, one of which is called twice."""
        x = torch.cat([self.side(x), self.stem(y)], 1).view(x.shape[0], 2, -1).sum(1)
        return self.block(torch.relu(self.side(x))) + y

    def nested(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Have a checkpoint inside, and something before and behind it."""
        x = Doubled.apply(self.side(x) * 2)
        return self.again(self.function, x, y) - self.side(x)

    def again(self, function: Any, *inputs: torch.Tensor) -> torch.Tensor:
        return checkpointing.checkpoint(function, *inputs, use_reentrant=self.reentrant)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.stem(x)
        for _ in range(3):
            if self.what == "module":
                x = self.again(self.block, x)
            else:
                x = self.again(getattr(self, self.what), x, first)
        return x


def layered(what: str, reentrant: bool) -> Layered:
    torch.manual_seed(7)
    return Layered(what, reentrant)


def scattered(model: nn.Module, devices: list[str], seed: int = 1, **options: Any) -> Any:
    return placed_at_random(model, X, devices, seed=seed, **options)


@pytest.mark.repeats
@pytest.mark.parametrize("devices", [["sim:0", "sim:1", "sim:2"], ["sim:0"] * 3])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("what", ["module", "function", "nested"])
def test_every_call_is_computed_again_as_itself(
    what: str, reentrant: bool, devices: list[str]
) -> None:
    expected = train(layered(what, reentrant), [X] * 2)
    for seed in range(3):
        model = layered(what, reentrant)
        placed = scattered(model, devices, seed)
        close(expected, train(model, [X] * 2))
        assert (placed.unplanned, placed.transfers > 0) == (set(), True)
        placed.restore()


@pytest.mark.parametrize("reentrant", [False, True])
def test_streams_of_devices_that_share_one_wait_for_each_other(reentrant: bool) -> None:
    expected = train(layered("function", reentrant), [X] * 2)
    with sim.configured(devices=1, poison=True, longest_delay="1ms", seed=3):
        for seed in range(3):
            model = layered("function", reentrant)
            placed = scattered(model, ["sim:0"] * 3, seed)
            close(expected, train(model, [X] * 2))
            placed.restore()


@pytest.mark.parametrize("reentrant", [False, True])
def test_inputs_from_elsewhere_count_as_those_of_the_recorded_step(reentrant: bool) -> None:
    class First(nn.Module):
        """Begins with a checkpoint, which keeps the random states of its inputs' devices."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:2]:
                x = x + checkpointing.checkpoint(layer, x, use_reentrant=reentrant)
            return self.layers[2](x)

    model = First()
    placed = scattered(model, ["sim:0", "sim:1", "sim:2"])
    train(model, [X])
    assert placed.unplanned == set()
    placed.restore()


@pytest.mark.parametrize("reentrant", [False, True])
def test_several_forwards_before_one_backward(reentrant: bool) -> None:
    plain = layered("function", reentrant)
    model = copy.deepcopy(plain)
    scattered(model, ["sim:0", "sim:1", "sim:2"])
    for each in (plain, model):
        outs = [each(X * n) for n in (1, 2, 3)]
        with torch.no_grad():
            each(X)
        sum(out.square().mean() for out in outs).backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_is_no_operator_of_the_step(reentrant: bool) -> None:
    captured = baechi.torch.capture(layered("function", reentrant), X)
    keys = [op.key for op in captured.ops]
    assert len(set(keys)) == len(keys)
    again = [op for op in captured.ops if op.key.startswith("side")]
    assert len(again) == 6
    assert all(op.backward.flops > op.forward.flops for op in again) or reentrant


def test_nothing_is_left_in_the_process() -> None:
    def parts() -> Any:
        module = checkpointing
        return module._checkpoint_without_reentrant_generator, module.CheckpointFunction.forward

    gc.collect()  # models of other tests that were never restored
    before = parts()
    model = layered("function", False)
    placed = scattered(model, ["sim:0", "sim:1"])
    assert parts() != before
    placed.restore()
    assert parts() == before


def test_another_model_is_computed_again_as_ever() -> None:
    plain = layered("function", True)
    expected = train(copy.deepcopy(plain), [X])
    placed = scattered(layered("module", False), ["sim:0", "sim:1"])
    close(expected, train(plain, [X]))
    placed.restore()


def test_a_failure_in_the_forward_is_the_users() -> None:
    model = layered("module", False)
    placed = scattered(model, ["sim:0", "sim:1"])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.zeros(2, 5))
    train(model, [X])
    placed.restore()


class Late(nn.Module):
    """Reads its second argument in a checkpoint, on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return checkpointing.checkpoint(self.inner, self.a(x), y, use_reentrant=False)

    def inner(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(x)) + self.b(y)


def test_nothing_is_kept_of_what_was_computed_again() -> None:
    model, x, y = Late(), torch.ones(2, 4), torch.ones(2, 4)
    plain = copy.deepcopy(model)
    captured = baechi.torch.capture(model, (x, y))
    device_of = {op.key: "one" if op.module == "a" else "two" for op in captured.ops}
    devices = {"one": "sim:0", "two": "sim:1"}
    placed = assign(model, captured, device_of, devices, tier=1)
    there = x.to("sim:0"), y.to("sim:0")
    for _ in range(3):
        found = model(*there)
        found.sum().backward()
        torch.testing.assert_close(found.cpu(), plain(x, y))
        y.add_(1)
        there[1].data.add_(1)
    placed.restore()
