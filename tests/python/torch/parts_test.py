# SPDX-License-Identifier: Apache-2.0
"""Parts of a placed model that a script calls alone, with inputs from where the model gets its."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.placing import assign
from baechi.torch.run.planned_pieces import intercepted_calls
from random_placement import placed_at_random
from same_training import EXCLUSIVE, SHARED, trains_the_same
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("asynchronous_devices")


class Codec(nn.Module):
    """Two parts, one with parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.encode = nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 8))
        self.decode = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))


PARTS = ["encode", "encode.1", "encode.1.1", "encode.2", "decode"]


@pytest.mark.repeats
@pytest.mark.parametrize("tier", [1, "auto"])
@pytest.mark.parametrize(
    "how", [{"seed": 1}, {"seed": 2}, {"method": "single"}, {"seed": 1, "devices": SHARED}]
)
@pytest.mark.parametrize("home", ["cpu", "sim:1"])
def test_a_part_that_is_called_alone(tier: Any, how: dict[str, Any], home: str) -> None:
    torch.manual_seed(3)
    plain = Codec().double()
    x = torch.randn(4, 8).double().requires_grad_()
    options = {"devices": EXCLUSIVE, **how, "tier": tier}
    placed = placed_at_random(copy.deepcopy(plain), x, **options)
    for path in PARTS:
        expected = plain.get_submodule(path)(x)
        expected.square().sum().backward()
        found = placed.model.get_submodule(path)(x.to(home))
        assert found.device == torch.device(home)
        found.square().sum().backward()
        torch.accelerator.synchronize()
        torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(placed.model(x), plain(x))
    assert not placed.unplanned
    for name, parameter in plain.named_parameters():
        found = placed.model.get_parameter(name).grad
        torch.testing.assert_close(None if found is None else found.cpu(), parameter.grad)
    placed.restore()


class Making(nn.Module):
    """Layers that make tensors of no other, on the host or where their argument is."""

    def __init__(self, told: bool, how: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Scaled(told, how)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Scaled(nn.Module):
    """A linear layer, times numbers of its own."""

    def __init__(self, told: bool, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.told, self.how = told, how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = x.device if self.told else None
        if self.how == "values":
            numbers = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
        else:
            numbers = torch.arange(1.0, 5.0, device=device)
        return self.linear(x) * numbers


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("how", ["values", "a function"])
def test_what_a_part_makes_of_no_tensor_is_where_the_part_is(how: str, told: bool) -> None:
    torch.manual_seed(1)
    model, x = Making(told, how), torch.randn(2, 4)
    expected = model(x)
    captured = baechi.torch.capture(model, x)
    device_of = {op.key: "host" if "s.0." in op.key else "sim" for op in captured.ops}
    # Where they were told, each layer is one piece.
    assert intercepted_calls(captured, device_of) == (3 if told else 9)
    where = {"host": "cpu", "sim": "sim:0"}
    placed = assign(model, captured, device_of, where, tier=1)
    torch.testing.assert_close(model(x), expected)
    placed.restore()


class Named(nn.Module):
    """Takes arguments by names that ours could have, also where a function runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def again(self, x: torch.Tensor, *, scope: float, mark: float) -> torch.Tensor:
        return torch.tanh(self.inner(x)) * (scope + mark)

    def forward(self, *, path: torch.Tensor, forward: torch.Tensor) -> torch.Tensor:
        found = checkpoint(self.again, path + forward, use_reentrant=False, scope=1.0, mark=2.0)
        result: torch.Tensor = self.outer(found)
        return result


def test_arguments_have_any_name() -> None:
    torch.manual_seed(1)
    model = Named().to(torch.float64)
    inputs = {name: torch.randn(4, 8, dtype=torch.float64) for name in ("path", "forward")}
    trains_the_same(model, inputs, seeds=(1,), homes=("cpu",))


@pytest.mark.parametrize("how", [{"seed": 1}, {"method": "single"}])
@pytest.mark.parametrize("path", ["encode", "encode.1", "encode.2"])
def test_a_part_that_a_script_runs_through_a_checkpoint(how: dict[str, Any], path: str) -> None:
    torch.manual_seed(3)
    plain = Codec().double()
    x = torch.randn(4, 8).double().requires_grad_()
    placed = placed_at_random(copy.deepcopy(plain), x, EXCLUSIVE, tier=1, **how)
    found = []
    for model in (plain, placed.model):
        given = x.detach().clone().requires_grad_()
        out = checkpoint(model.get_submodule(path), given, use_reentrant=False)
        out.square().sum().backward()
        torch.accelerator.synchronize()
        assert given.grad is not None
        grads = [weight.grad for weight in model.parameters()]
        found.append([given.grad, *(grad.cpu() for grad in grads if grad is not None)])
    torch.testing.assert_close(found[1], found[0])
    placed.restore()
