# SPDX-License-Identifier: Apache-2.0
"""A placed model trains as it did before: the same losses, gradients and state."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from random_placement import placed_at_random
from torch_models import ALL, CASES, Case, built
from training_steps import close, train


@pytest.mark.filterwarnings("ignore:.*not in the recorded step")  # what "turns" is about
@pytest.mark.parametrize("name", ALL)
def test_losses_and_gradients_are_those_of_the_unplaced_model(name: str) -> None:
    case = ALL[name]
    inputs = case.inputs(2)
    batches = [case.inputs(2), case.inputs(3), case.inputs(2), case.inputs(2), case.inputs(3)]
    expected = train(built(case), batches)
    for seed, count in ((1, 2), (2, 4)):
        model = built(case)
        ids = [id(p) for p in model.parameters()]
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        placed = placed_at_random(model, inputs, count, seed=seed, tier=1)
        close(expected, train(model, batches, optimizer))
        assert placed.transfers > 0
        assert ids == [id(p) for p in model.parameters()]
        placed.restore()
        close(train(built(case), batches[:1]), train_again(case, model, batches[:1]))


def train_again(case: Case, model: Any, batches: list[Any]) -> Any:
    model.load_state_dict(built(case).state_dict())
    return train(model, batches)


@pytest.mark.parametrize("method", ["m-topo", "m-etf", "m-sct"])
def test_planned_placements_train_the_same(method: str) -> None:
    case = CASES["inception"]
    batches = [case.inputs(2), case.inputs(3)]
    expected = train(built(case), batches)
    model = built(case)
    placed = baechi.torch.place(model, case.inputs(2), "3x1GiB", method=method, devices=["cpu"] * 3)
    close(expected, train(model, batches))
    placed.restore()


def test_a_turn_that_was_not_recorded_is_said_once() -> None:
    case = CASES["turns"]
    model = built(case)
    placed = baechi.torch.place(
        model, case.inputs(2), "2x1GiB", method="random", devices=["cpu"] * 2
    )
    model(case.inputs(2))
    assert placed.unplanned == set()
    with pytest.warns(UserWarning, match="not in the recorded step") as said:
        train(model, [case.inputs(3)] * 2)
    assert len(said) == 1
    assert "negative" in "".join(placed.unplanned)
    placed.restore()


def test_everything_is_undone_by_restore() -> None:
    model = built(CASES["transformer"])
    before = copy.deepcopy(model.state_dict())
    placed = baechi.torch.place(
        model, CASES["transformer"].inputs(2), "3x1GiB", method="random", devices=["cpu"] * 3
    )
    assert any("forward" in vars(m) for m in model.modules())
    assert list(model.state_dict()) == list(before)
    assert model.output.weight is model.embedding.weight
    placed.restore()
    placed.restore()
    assert not any("forward" in vars(m) for m in model.modules())
    assert not any(hasattr(p, "_baechi_device") for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_capture_leaves_no_trace() -> None:
    model = built(CASES["resnet"])
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    baechi.torch.capture(model, CASES["resnet"].inputs(2))
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_on_the_meta_device_is_captured_like_a_real_one() -> None:
    case = CASES["resnet"]
    real = baechi.torch.capture(built(case), case.inputs(2))
    with torch.device("meta"):
        model = case.build()
    abstract = baechi.torch.capture(model, case.inputs(2))
    assert [op.key for op in abstract.ops] == [op.key for op in real.ops]
    assert [op.forward.flops for op in abstract.ops] == [op.forward.flops for op in real.ops]
    assert abstract.weights == real.weights
