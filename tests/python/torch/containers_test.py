# SPDX-License-Identifier: Apache-2.0
"""Lists, dictionaries and other containers among the arguments, which a model changes."""

from __future__ import annotations

import collections
import copy
from dataclasses import dataclass, field
from typing import Any

import baechi.torch
import pytest
import torch
from places import ON_ONE, machine, placed_at_random, trains_the_same
from step_models import module
from torch import nn

import baechi


class State:
    """An object of no class that anybody knows."""

    def __init__(self, last: torch.Tensor) -> None:
        self.last, self.slots, self.at = last, [None, None], 0

    def put(self, y: torch.Tensor) -> None:
        self.slots[self.at % 2] = y
        self.at += 1
        self.last = self.last + y


class Cell(nn.Module):
    """One operator, which reads tensors that are no arguments: in an object, and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) * 0.3)
        self.told: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, state: State) -> torch.Tensor:
        y = x @ self.weight + state.last
        if state.slots[1] is not None:
            y = y * state.slots[1]
        for told in self.told:
            y = y + 0.3 * told
        self.told.append(y.tanh())
        state.put(y)
        return y


@module(lambda: {"cells": nn.ModuleList(Cell() for _ in range(4))})
def Cells(self: Any, x: torch.Tensor, state: State | None = None) -> torch.Tensor:
    """Has its cells share a state and a list."""
    state = state or State(x * 0.5)
    told = [x * 0.3]
    for cell in self.cells:
        cell.told = told
        x = cell(x, state)
    result: torch.Tensor = x.sin() + state.last + sum(told) * state.at
    for cell in self.cells:
        cell.told = []
    return result


def test_operators_read_and_change_what_objects_hold() -> None:
    torch.manual_seed(3)
    trains_the_same(Cells().double(), torch.randn(4, 8).double())


def test_an_object_among_the_example_inputs_stays_as_it_is() -> None:
    torch.manual_seed(3)
    x = torch.randn(4, 8).double()
    state = State(torch.zeros_like(x))
    last = state.last
    with machine():
        placed = placed_at_random(Cells().double(), (x, state))
        placed.restore()
    assert state.last is last
    assert state.at == 0
    assert state.slots == [None, None]


@module(lambda: {"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
def Batch(self: Any, batch: dict[str, Any], seen: list[Any]) -> torch.Tensor:
    """Changes the batch that its caller gives it."""
    y = self.first(batch.pop("x"))
    batch["hidden"] = y.tanh()
    seen.append(batch["hidden"].detach())
    batch["count"] += 1
    return self.second(batch["hidden"]) * batch["scale"]


def batch_of(home: str) -> tuple[dict[str, Any], list[Any]]:
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(4, 8)
    return {"x": x.to(home), "scale": x[:, :1].exp().to(home), "count": 2}, []


@pytest.mark.usefixtures("asynchronous_devices")
@pytest.mark.parametrize("home", ["cpu", "sim:1"])
def test_the_caller_sees_what_a_model_does_to_its_batch(home: str) -> None:
    torch.manual_seed(3)
    plain = Batch().double()
    example = batch_of("cpu")
    placed = placed_at_random(copy.deepcopy(plain), example, seed=2)
    assert list(example[0]) == ["x", "scale", "count"]
    assert example[0]["count"] == 2
    assert example[1] == []
    for _ in range(2):
        expected, found = batch_of("cpu"), batch_of(home)
        (plain(*expected).sum() + expected[0]["hidden"].sum()).backward()
        out = placed.model(*found)
        assert list(found[0]) == ["scale", "count", "hidden"]
        assert found[0]["count"] == 3
        (out.sum() + found[0]["hidden"].to(home).sum()).backward()
        torch.accelerator.synchronize()
        torch.testing.assert_close(found[0]["hidden"].cpu(), expected[0]["hidden"])
        torch.testing.assert_close(found[1][0].cpu(), expected[1][0])
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(placed.model.get_parameter(name).grad.cpu(), weight.grad)
    placed.restore()


@module(lambda: {"linear": nn.Linear(8, 8)})
def Asks(self: Any, x: torch.Tensor, y: torch.Tensor, scale: Any = None) -> torch.Tensor:
    """Does other things with one tensor that it is given twice than with two."""
    assert scale is None or isinstance(scale, list)
    hidden: torch.Tensor = self.linear(x)
    return (2 * hidden if x is y else hidden + self.linear(y)).square().mean()


@dataclass
class Halved:
    """Changes what it is made of, and has a field that it is not made of."""

    x: torch.Tensor
    scale: float = field(init=False, default=1.0)

    def __post_init__(self) -> None:
        self.x = self.x * 0.5


class Rows(list[torch.Tensor]):
    """A list, and a number beside it."""

    scale = 1.0
    x = property(lambda self: self[0])


class Pair(tuple[torch.Tensor, ...]):
    """A tuple, and a number beside it."""

    scale = 1.0
    x = property(lambda self: self[0])


class Named(dict[str, torch.Tensor]):
    """A dictionary, and a number beside it."""

    scale = 1.0
    x = property(lambda self: self["x"])


@module(lambda: {"first": nn.Linear(8, 8), "last": nn.Linear(8, 8)})
def Passes(self: Any, batch: Any, make: Any) -> Any:
    """Returns a batch of the kind that it was given."""
    found = make(self.last(self.first(batch.x).tanh()) * batch.scale)
    found.scale = batch.scale + 1
    return found


@pytest.mark.parametrize(
    "make", [Halved, lambda x: Rows([x]), lambda x: Pair([x]), lambda x: Named(x=x)]
)
def test_containers_of_classes_of_their_own_come_as_they_were(make: Any) -> None:
    def given() -> Any:
        batch = make(x)
        batch.scale = 3.0
        return batch

    torch.manual_seed(0)
    model, x = Passes().double(), torch.randn(4, 8).double()
    wanted = model(given(), make)
    with machine():
        placed = placed_at_random(model, (given(), make))
        found = model(given(), make)
        assert (type(found), found.scale) == (type(wanted), wanted.scale)
        torch.testing.assert_close(found.x.cpu(), wanted.x)
        placed.restore()


@dataclass
class Numbers:
    values: list[float]


@pytest.mark.parametrize("kind", [dict, collections.UserDict])
def test_a_step_cuts_dictionaries_and_what_is_in_them_twice_stays_one(kind: Any) -> None:
    torch.manual_seed(0)
    model = Asks().double()
    x = torch.randn(8, 8).double()
    wanted = float(model(x, x).detach())
    calls: list[int] = []
    model.linear.register_forward_hook(lambda *found: calls.append(len(found[1][0])))
    placed = baechi.torch.place(model, kind(x=x, y=x), "2x1GiB", micro_batches=2, **ON_ONE)
    calls.clear()
    assert float(placed.step(kind(x=x, y=x))) == pytest.approx(wanted, rel=1e-12)
    assert set(calls) == {4}
    assert placed.program.count("aten.addmm.default") == 2  # one of each micro-batch


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ([float(i) for i in range(8)], r"inputs\['scale'\] is a list of 8 numbers or texts"),
        ({i: str(i) for i in range(8)}, r"inputs\['scale'\] is a dict of 8 numbers or texts"),
        ([Numbers([1.0] * 8)], r"inputs\['scale'\]\[0\].values is a list of 8 numbers"),
        (object(), r"inputs\['scale'\] is a object, which cannot be cut into micro-batches"),
        ({torch.ones(8)}, r"inputs\['scale'\] is a set, which cannot be cut"),
    ],
)
def test_what_would_go_whole_to_every_micro_batch_is_refused(scale: Any, said: str) -> None:
    x = torch.randn(8, 8)
    placed = baechi.torch.place(Asks(), {"x": x, "y": x}, "2x1GiB", micro_batches=2, **ON_ONE)
    with pytest.raises(baechi.InputError, match=said):
        placed.step({"x": x, "y": x, "scale": scale})
