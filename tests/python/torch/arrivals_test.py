# SPDX-License-Identifier: Apache-2.0
"""Batches come to where the plan has them, and what dynamo cannot compile is said in a line."""

from __future__ import annotations

import copy
import logging
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.run import calls
from baechi.torch.where.arrivals import Arrivals
from places import machine
from step_models import module
from torch import nn

import baechi


@module(lambda: {"first": nn.Linear(8, 8), "last": nn.Linear(8, 8)})
def Labelled(self: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
    """Has its loss inside, by a class that dynamo calls past every function mode."""
    scores = self.last(self.first(x).tanh())
    labels.add_(1)
    return nn.CrossEntropyLoss()(scores, labels)


def labelled(home: str = "cpu") -> dict[str, torch.Tensor]:
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(4, 8)
    return {"x": x.to(home), "labels": torch.tensor([3, 1, 4, 1]).to(home)}


def placed_apart(model: nn.Module, labels: int, **more: Any) -> Any:
    """Place a model with its loss on another device than its first layer."""
    torch._dynamo.reset()
    how: dict[str, Any] = {"devices": ["sim:0", "sim:1"], "optimizer": None, **more}
    plan = baechi.torch.plan(model, labelled(), "2x1GiB", bounds=False, **how)
    second = ("last", "update:last", ":", "tangent")
    apart = {name: f"gpu:{int(name.startswith(second))}" for name in plan.device_of}
    apart |= {name: f"gpu:{labels}" for name in apart if name.startswith("batch:labels")}
    made = baechi.simulate(plan.graph, plan.cluster, apart)
    return baechi.torch.place(model, labelled(), plan=made, verbose=False, **how)


class Tied(nn.Module):
    """Has a head whose weight is that of its first module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    forward = Labelled.forward


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [weight.grad.cpu() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("home", ["cpu", "sim:0", "sim:1"])
@pytest.mark.parametrize("micro_batches", [None, 2])
@pytest.mark.parametrize("kind", [Labelled, Tied])
def test_labels_come_to_the_loss_that_reads_them(
    home: str, micro_batches: int | None, kind: Any
) -> None:
    torch.manual_seed(0)
    model = kind().double()
    plain, given = copy.deepcopy(model), labelled()
    expected = plain(**given)
    expected.backward()
    with machine():
        placed = placed_apart(model, labels=1, micro_batches=micro_batches)
        batch = labelled(home)
        if micro_batches is None:
            found = model(**batch)
            found.backward()
            assert found.device == torch.device("sim:0" if home == "cpu" else home)
        else:
            found = placed.step(batch)
        torch.accelerator.synchronize()
        assert placed.left_out == []
        if micro_batches is None or home != "cpu":  # programs bring parts of what is on the host
            assert batch["labels"].tolist() == given["labels"].tolist() == [4, 2, 5, 2]
        torch.testing.assert_close(found.detach().cpu(), expected.detach())
        torch.testing.assert_close(gradients_of(model), gradients_of(plain))
        placed.restore()


class Heard(logging.Handler):
    """Keeps what is logged; `pytest`'s own is not there in every run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_what_dynamo_cannot_compile_is_said_in_a_line() -> None:
    torch.manual_seed(0)
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", calls.__name__)]
    heard = Heard()
    model = Labelled().double()
    expected = copy.deepcopy(model)(**labelled()).item()
    with machine():
        placed = placed_apart(model, labels=0)
        for logger in loggers:
            logger.addHandler(heard)
        losses = [model(**labelled()).item() for _ in range(2)]
        for logger in loggers:
            logger.removeHandler(heard)
        (why,) = placed.left_out
        placed.restore()
    assert losses == pytest.approx([expected] * 2, rel=1e-12)
    assert f"Tensor device mismatch ({__file__}:" in why
    assert heard.lines == [f"a part of the model runs eagerly, slower and right: {why}"]


@module(lambda: {"linear": nn.Linear(8, 8)})
def Twice(self: Any, x: torch.Tensor, others: list[torch.Tensor]) -> Any:
    """Does other things with a tensor that it is given twice than with two."""
    first, second = others
    return self.linear(x).sum() + (first.exp().sum() if first is second else second.sum())


@pytest.mark.parametrize("home", ["cpu", "sim:0"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_model_changes_goes_back_without_gradients(home: str, mode: Any) -> None:
    with machine():
        model = Labelled().double()
        placed = placed_apart(model, labels=1)
        with mode():
            batch = labelled(home)
            model(**batch)
        assert batch["labels"].tolist() == [4, 2, 5, 2]
        wrong = {**labelled(home), "x": torch.zeros(4, 7, device=home).double()}
        with pytest.raises(RuntimeError, match="4x7 and 8x8"):
            model(**wrong)
        assert placed.left_out == []
        placed.restore()


@pytest.mark.parametrize("micro_batches", [None, 2])
def test_what_is_in_a_batch_twice_stays_one(micro_batches: int | None) -> None:
    torch.manual_seed(0)
    model, x = Twice().double(), torch.randn(4, 8).double()
    expected = model(x, [x, x]).item()
    with machine():
        torch._dynamo.reset()
        how: dict[str, Any] = {"devices": ["sim:0", "sim:1"], "bounds": False}
        example = x, [x, x]
        placed = baechi.torch.place(model, example, "2x1GiB", micro_batches=micro_batches, **how)
        call: Any = (lambda batch: model(*batch)) if micro_batches is None else placed.step
        count = micro_batches or 1
        assert call(example).item() * count == pytest.approx(expected, rel=1e-12)
        placed.restore()


def test_what_has_come_moves_only_where_nobody_could_tell() -> None:
    here, home = torch.device("cpu"), torch.device("meta")
    arrivals = Arrivals([here, home], {"x": home, "y.0": home, "y.1": home, "z": home, "w": home})
    shared = torch.ones(4)
    trained = torch.ones(4, requires_grad=True)
    batch = {"x": torch.ones(4), "y": [torch.ones(4), shared[:2]], "z": shared[2:], "w": trained}
    _, found, _ = arrivals.of((), batch)
    where = [t.device for t in (found["x"], *found["y"], found["z"], found["w"])]
    assert where == [here, home, here, here, here]
    _, found, _ = arrivals.of((), dict(reversed(batch.items())))
    assert (found["w"].device, found["x"].device) == (here, home)
