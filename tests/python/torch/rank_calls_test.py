# SPDX-License-Identifier: Apache-2.0
"""Models over ranks are called, and trained by `loss.backward()`, as in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import rank_calls
import rank_cases
import rank_inputs
import rank_leaving
import torch
from rank_runs import left_by
from ranks_test import odd_step, same

_CASES = [(world, *case) for world, cases in rank_calls.MODEL_CASES.items() for case in cases]


folder = left_by(rank_calls)


@pytest.mark.parametrize(("world", "name", "seed"), _CASES)
def test_models_train_as_in_one_process(folder: Path, world: int, name: str, seed: int) -> None:
    """Branches and long skips, and a model that returns its own loss; AdamW, all weights."""
    model, inputs = rank_cases.built(name)
    losses = rank_cases.trained(model, rank_calls.training(model, inputs))
    same(folder, f"called {name} {seed}", world, model, losses)


_OUTSIDE = [
    *(("odd called 2", 2), ("odd called 3", 3)),
    *(
        ("odd called 3 again", 3),
        ("simulated", 2),
        ("simulated apart", 2),
    ),  # the first: operators run a second time
]


@pytest.mark.parametrize(("case", "world"), _OUTSIDE)
def test_a_loss_outside_and_calls_without_gradients(folder: Path, case: str, world: int) -> None:
    """Two calls before one backward, calls for nothing, other sizes, outputs that are changed."""
    model = rank_cases.odd_model()
    same(folder, case, world, model, rank_calls.odd_training(model))


def test_calls_and_steps_take_turns(folder: Path) -> None:
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(2):
        losses.append(odd_step(model, x, targets, 2).item())
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses.append(rank_cases.odd_loss(model(x), targets).item())
        losses.append(odd_step(model, x, targets, 1).item())
        optimizer.step()
        optimizer.zero_grad()
    same(folder, "steps", 3, model, losses)


_ARGUMENTS = [(f"arguments {world} {seed}", world) for world in (2, 3) for seed in (1, 2)]


@pytest.mark.parametrize(("case", "world"), [*_ARGUMENTS, ("arguments simulated", 2)])
def test_arguments_get_gradients_on_every_rank(folder: Path, case: str, world: int) -> None:
    """Weights get theirs by `backward()` only, and never by what is asked of arguments."""
    model, given = rank_inputs.reading()
    names: list[set[str]] = [set() for _ in rank_inputs.HOWS]
    for rank in range(world):
        found = torch.load(folder / f"{case} {rank}.pt")
        for number, how in enumerate(rank_inputs.HOWS):
            *expected, wanted = rank_inputs.gradients(model, how, given)
            *mine, here = found[number]
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
            for name, gradient in here.items():
                if how != "backward":
                    assert gradient is None
                else:
                    torch.testing.assert_close(gradient.cpu(), wanted[name], rtol=0, atol=0)
            names[number] |= here.keys()
    assert names == [{name for name, _ in model.named_parameters()}] * 3


def test_what_comes_before_a_model_trains_with_it(folder: Path) -> None:
    """Its operators run a second time."""
    model, before, *batch = rank_inputs.outside()
    losses = rank_inputs.train_outside(model, before, *batch)
    for rank in range(3):
        found, weights, outside = torch.load(folder / f"outside {rank}.pt")
        torch.testing.assert_close(found, losses, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(outside, before.state_dict(), rtol=1e-9, atol=1e-9)
        state = dict([*model.named_parameters(), *model.named_buffers()])
        for name, weight in weights.items():
            torch.testing.assert_close(weight, state[name].detach(), rtol=1e-9, atol=1e-9)


def test_some_weights_alone_get_no_gradients(folder: Path) -> None:
    model, (x, shift) = rank_inputs.reading()
    x = x.clone().requires_grad_()
    model(x, shift)["y"].sum().backward()
    assert x.grad is not None
    for rank in range(2):
        found = torch.load(folder / f"asked {rank}.pt")
        assert "torch.autograd.grad of weights" in found["weights"]
        assert "call loss.backward()" in found["weights"]
        assert "gives all weights their gradients, or none" in found["some"]
        assert found["then"] == f"{x.grad.norm().item():.9f}"


@pytest.mark.parametrize("case", ["inference", "inference as planned"])
def test_a_model_is_placed_for_inference(folder: Path, case: str) -> None:
    """By a plan of the forward, without room for gradients; dropout is off."""
    model, x = rank_inputs.odd_inference()
    with torch.no_grad():
        expected = [model(x), model(x[:3]), model(x[:1]), model(x)]
    sent = 0
    for rank in range(3):
        found, peaks, kinds, step, transfers = torch.load(folder / f"{case} {rank}.pt")
        assert kinds == {""}  # neither backward nor loss
        assert "step runs micro-batches" in step
        sent += transfers
        assert sum(peaks.values()) < 8192
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert sent > 0


def test_replicas_have_the_mean_of_their_gradients(folder: Path) -> None:
    model, (x, targets) = rank_cases.odd_model(), rank_cases.odd_batch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(2):
        odd_step(model, x, targets, 2)
        optimizer.step()
        optimizer.zero_grad()
    for rank in range(2):
        found, _ = torch.load(folder / f"replicas {rank}.pt")
        for name, weight in model.named_parameters():
            torch.testing.assert_close(found[name], weight.detach(), rtol=1e-9, atol=1e-9)


def test_where_one_rank_has_all_outputs_each_gets_its_gradient(folder: Path) -> None:
    expected = rank_calls.beside_the_loss(1)
    for rank in range(2):
        _, found = torch.load(folder / f"replicas {rank}.pt")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


_SAID = {
    "step": "step runs micro-batches: place(..., micro_batches=4)",
    "part": "a part of Odd was called, which is placed over ranks: call the whole model",
    "argument": "do not have the same arguments that require a gradient: [] and [0]",
    "batch": "do not have the same shapes of the batch",
    "values": "do not have the same values of the batch",
    "grad": "do not have the same wish for gradients: False and True",
    "outputs": "outputs is one of auto, everywhere, not 'all'",
    "targets": "targets is for steps of micro-batches",
    "loss": "rank 0 and rank 1 begin the backward with other gradients of ",
    "directions": "other gradients of ",
    "copied": "build another model of its class and load placed.state_dict() into it, over ranks",
    "averaged": "cannot be copied or pickled (AveragedModel copies what it is given)",
    "changed": "'embedding.weight' was changed since this call of the model",
    "other": "do not have the same outputs that get gradients",
    "one calls": "rank 0 is about to call the model, and rank 1 to run the backward of a call",
    "twice": "the backward of this call of the model ran already",
    "order": "do not have the same number of the call",
    "shape": "(8, 6)",
    "failing": "out of bounds",
}


def test_what_ranks_do_not_agree_on_is_said_on_each(folder: Path) -> None:
    """And they go on behind it; a model's own loss is everywhere, the rest where it was made."""
    x, targets = rank_cases.odd_batch()
    found = [torch.load(folder / f"refused {rank}.pt") for rank in range(2)]
    model = rank_cases.odd_model()
    own = torch.nn.functional.cross_entropy(model(x)["logits"], targets).item()
    logits = rank_cases.odd_model()(x)["logits"].sum().item()
    for rank in range(2):
        for name, words in _SAID.items():
            assert words in found[rank][name], (rank, name, found[rank][name])
        assert found[rank]["own loss"] == f"loss {own:.9f}"
        assert found[rank]["gathered"] == f"logits {logits:.9f}"
        assert found[rank]["then"] == found[0]["then"]
    told = sorted(each["logits"] for each in found)
    assert told[0].startswith("InputError: sum: what the model returns beside its loss is on")
    assert told[1] == "nothing"


def test_what_has_left_is_held_no_longer(folder: Path) -> None:
    """A rank that sends 64 MiB in a step grows by the gradients that come back, and by no more."""
    found = [torch.load(folder / f"leaving {rank}.pt") for rank in range(2)]
    assert all(sent >= rank_leaving.SENT for _, sent, _ in found)
    (grown,) = (grown for sends, _, grown in found if sends)
    assert grown < rank_leaving.SENT * 5 // 4


def test_a_rank_that_calls_no_backward_is_missed(folder: Path) -> None:
    """Behind the timeout of the group, with what was waited for."""
    words, seconds = torch.load(folder / "missing.pt")
    assert re.match(r"RankError: rank 1 was lost, or does not answer", words), words
    assert "the backward of a call of the model" in words
    assert seconds < rank_calls.WAITS + 2
