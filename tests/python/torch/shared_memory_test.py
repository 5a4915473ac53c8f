# SPDX-License-Identifier: Apache-2.0
"""What shares memory without a placement does so with one: it may be changed in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from places import machine, placed_at_random, trains_the_same
from step_models import module
from torch import nn
from torch.utils.checkpoint import checkpoint

X = torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4)


def check_same(plain: nn.Module, model: nn.Module, use: Any, training: bool = False) -> None:
    """Compare what a script makes of a model, and the gradients that it leaves."""
    found = []
    for each in (plain, model):
        each.train(training)
        out = use(each)
        sum(t.square().sum() for t in out).backward()
        grads = [p.grad.cpu() for p in each.parameters() if p.grad is not None]
        found.append([t.detach().clone() for t in out] + grads)
    torch.testing.assert_close(found[1], found[0])


@module(lambda: {"first": nn.Linear(4, 4), "last": nn.Tanh()})
def Parts(self: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns a tensor, and parts of it, and the same again."""
    h = self.first(x)
    return [h[:, :2], h.t(), h.detach(), h, h, self.last(h)]


@pytest.mark.parametrize("home", ["cpu", "sim:1"])
def test_outputs_that_share_memory(home: str) -> None:
    def use(model: nn.Module) -> list[torch.Tensor]:
        x = X if model is plain else X.to(home)
        left, turned, values, whole, again, last = model(x)
        assert again is whole
        assert not values.requires_grad
        left.mul_(3)
        values[0].fill_(5)
        return [t.cpu() for t in (left, turned, whole, last)]

    plain = Parts().double()
    model = copy.deepcopy(plain)
    with machine(seed=2):
        placed_at_random(model, X, 2)
        check_same(plain, model, use)


class Reversal(torch.autograd.Function):
    """A view, as autograd sees it, that changes the gradient."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> Any:
        return -0.7 * grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> Any:
        return -0.7 * grad


def reversed_by_hook(x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(lambda grad: -0.7 * grad)
    return x


def reversed_before_a_view(x: torch.Tensor) -> torch.Tensor:
    return reversed_by_hook(x.view_as(x))[:, :]


@module(lambda: {"first": nn.Linear(4, 4), "last": nn.Linear(4, 4)})
def Sliced(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Its own code puts a hook on a slice, and returns a slice of that beside the whole."""
    h = self.first(x).tanh()
    return h, reversed_by_hook(h[:, :])[:, :], self.last(h)


def test_a_hook_on_a_slice_is_not_passed_by_where_a_slice_of_it_is_returned() -> None:
    torch.manual_seed(3)
    trains_the_same(Sliced().double(), X, seeds=(2,))


@module(lambda by: {"inner": nn.Linear(4, 4), "by": by})
def Reversing(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = self.by(x)
    return y, self.inner(y)


class Returned(nn.Module):
    """Returns what a module reversed, beside what it was given, or goes on with both."""

    def __init__(self, by: Any, outputs: bool) -> None:
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(4, 4), Reversing(by), nn.Linear(4, 4)
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> Any:
        h = self.first(x).tanh()
        y, z = self.mid(h)
        return (h, y, self.last(z)) if self.outputs else self.last(y) + z


@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize(
    "by",
    [
        lambda x: Reversal.apply(x),
        lambda x: Scaled.apply(x),
        reversed_by_hook,
        reversed_before_a_view,
    ],
)
def test_what_changes_a_gradient_is_not_passed_by(by: Any, outputs: bool) -> None:
    torch.manual_seed(3)
    model = Returned(by, outputs).double()
    trains_the_same(model, X, seeds=(2,))


class Handled(nn.Module):
    """Puts a hook on what is in its argument, and keeps the handle."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.handle: Any = None

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        if given["x"].requires_grad:
            self.handle = given["x"].register_hook(lambda grad: grad * grad)
        return self.inner(given["x"])


@module(
    lambda how: {"first": nn.Linear(4, 4), "mid": Handled(), "last": nn.Linear(4, 4), "how": how}
)
def Handling(self: Any, x: torch.Tensor) -> Any:
    h = self.first(x).tanh()
    again = self.how == "computed again"  # which puts the hook there again
    given = {"x": h}
    z = checkpoint(self.mid, given, use_reentrant=False) if again else self.mid(given)
    if self.how == "removed" and self.mid.handle is not None:
        self.mid.handle.remove()
    self.mid.handle = None
    return self.last(z) + h * h


@pytest.mark.parametrize("how", ["kept", "removed", "computed again"])
def test_hooks_on_what_is_in_an_argument_see_all_of_it_until_they_are_removed(how: str) -> None:
    torch.manual_seed(3)
    trains_the_same(Handling(how).double(), X, seeds=(2,))
