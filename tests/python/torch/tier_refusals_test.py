# SPDX-License-Identifier: Apache-2.0
"""Models that no graph can stand for run in tier 1, and one clause says why."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.trace.exported import export
from baechi.torch.trace.graph import NotExportedError
from random_placement import placed_at_random
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_steps import close, train


class Remembering(nn.Module):
    """Leaves something in its attributes."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(4))
        self.what, self.calls = what, 0
        self.history: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "calls":
            self.calls += 1
        elif self.what == "mean":
            self.mean = self.mean / 2 + x.detach().mean(0)
        else:
            self.history.append(1)
        return self.inner(x)


class Clamp(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradients[0]


class Doing(nn.Module):
    """A model that does something special between two layers."""

    def __init__(self, special: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.special = special

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.special(self, self.first(x)))


def _hooked(_: Any, x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda g: g * 2)
    return x


clamp = Clamp.apply  # held before anything looks at who is called

REFUSED = {
    "a backward of its own": (lambda _, x: Clamp.apply(x), "backward of its own"),
    "one that has a name": (lambda _, x: clamp(x), "backward of its own"),
    "hooks on tensors": (_hooked, "register_hook"),
    "checkpointing": (lambda m, x: checkpoint(m.second, x, use_reentrant=False), "saved tensors"),
    "reentrant checkpointing": (
        lambda m, x: checkpoint(m.second, x, use_reentrant=True),
        "backward of its own",
    ),
    "a turn": (lambda _, x: x + 1 if x.sum() > 0 else x - 1, "data-dependent"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_would_forget_runs_in_tier_1(what: str) -> None:
    special, reason = REFUSED[what]
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(7)
    plain = Doing(special)
    model = copy.deepcopy(plain)
    with pytest.raises(NotExportedError, match=reason):
        export(model, inputs)
    placed = placed_at_random(model, inputs, 2)
    close(train(plain, [inputs] * 2), train(model, [inputs] * 2))
    assert placed.tier == 1
    assert reason in placed.tier_note


@pytest.mark.skipif(
    hasattr(torch.autograd.Function.apply, "__code__"), reason="seen up to PyTorch 2.13"
)
def test_a_function_by_another_name_is_refused_where_pytorch_hides_the_call() -> None:
    model, inputs = Doing(REFUSED["one that has a name"][0]), torch.randn(3, 4)
    for tier in (1, 2):
        with pytest.raises(baechi.InputError, match=r"^the model calls Clamp.apply by anoth"):
            placed_at_random(model, inputs, 2, tier=tier)
    train(model, [inputs])  # as it was


class Inside(nn.Module):
    """Calls an autograd function by another name where nobody looks: in a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return clamp(x * self.weight)


def test_a_function_by_another_name_inside_a_unit_is_no_concern_of_the_placement() -> None:
    torch.manual_seed(7)
    plain, inputs = nn.Sequential(nn.Linear(4, 4), Inside(), nn.Linear(4, 4)), torch.randn(3, 4)
    model = copy.deepcopy(plain)
    placed = placed_at_random(model, inputs, 2)
    close(train(plain, [inputs] * 2), train(model, [inputs] * 2))
    assert placed.tier == 1


class Listed(nn.Module):
    """Has parameters that its code finds in a list, which makes them its own or not."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.scales = [nn.Parameter(torch.rand(4)) for _ in range(2)]
        self.first = nn.Linear(4, 4)
        if own:
            self.kept = nn.ParameterList(self.scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = torch.tanh(self.first(x) * scale)
        return x


@pytest.mark.parametrize(
    ("own", "reason"),
    [(True, "kept.0 from elsewhere than the module's attribute"), (False, "that is no parameter")],
)
def test_parameters_that_are_found_in_a_list_are_trained(own: bool, reason: str) -> None:
    torch.manual_seed(7)
    inputs, plain = torch.randn(3, 4), Listed(own)
    model = copy.deepcopy(plain)
    placed = placed_at_random(model, inputs, 2)
    for one in (plain, model):
        one(inputs).square().sum().backward()
    for a, b in zip(plain.scales, model.scales, strict=True):
        torch.testing.assert_close(b.grad, a.grad)
    assert placed.tier == 1
    assert reason in placed.tier_note


def _shapeless(_: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.baechi_tests.shapeless(x)


@functools.cache
def define_shapeless() -> None:
    def shapeless(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    shapeless.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    torch.library.custom_op("baechi_tests::shapeless", shapeless, mutates_args=())


# What is said of the module `special`, and the class of torch's own error.
CLAUSES = {
    "a turn": (
        lambda x: x + 1 if x.sum() > 0 else x,
        "a turn that its code takes, or a size, is data-dependent, in 'special/__bool__@2'",
        "GuardOnDataDependentSymNode",
    ),
    "a size": (
        lambda x: x.repeat(int(x.sum().abs().item()) + 1, 1),
        "a turn that its code takes, or a size, is data-dependent, behind 'special/item@2'",
        "GuardOnDataDependentSymNode",
    ),
    "an operator": (
        lambda x: x if torch.allclose(x, x * 2) else -x,
        "a turn that its code takes, or a size, is data-dependent (aten.allclose.default), in "
        "'special/allclose@1'",
        "DataDependentOutputException",
    ),
    "no shapes": (
        lambda x: _shapeless(None, x),
        "an operator is called whose shapes PyTorch cannot tell without running it "
        "(baechi_tests::shapeless), in 'special/shapeless@0'; "
        "`torch.library.register_fake` tells it",
        "RuntimeError",
    ),
    "numpy": (
        lambda x: torch.from_numpy(x.detach().numpy()),
        "tracing it fails, in 'special/numpy@1': RuntimeError: .numpy() is not supported for "
        "tensor subclasses.",
        "RuntimeError",
    ),
    "a key": (
        lambda x: {"a": x}["b"],
        "tracing it fails, behind 'first': KeyError: 'b'",
        "KeyError",
    ),
}


class Special(nn.Module):
    """A module around a function that cannot be traced."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.inner, self.function = nn.Identity(), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("what", CLAUSES)
def test_a_refusal_is_one_clause_that_names_the_call(what: str) -> None:
    define_shapeless()
    function, clause, cause = CLAUSES[what]
    model = Doing(Special(function))
    model.forward = lambda x: model.second(model.special(model.first(x)))  # type: ignore[method-assign]
    with pytest.raises(NotExportedError) as raised:
        export(model, torch.ones(3, 4))
    assert str(raised.value) == clause
    assert type(raised.value.__cause__).__name__ == cause


@pytest.mark.parametrize("what", ["calls", "mean", "history"])
def test_what_a_forward_leaves_in_attributes_is_not_lost(what: str) -> None:
    torch.manual_seed(7)
    plain = Remembering(what)
    model = copy.deepcopy(plain)
    inputs = torch.ones(2, 4)
    with pytest.raises(NotExportedError, match="changes an attribute"):
        export(model, inputs)
    assert (model.calls, model.history) == (0, [])
    placed = baechi.torch.place(model, inputs, "2x1GiB", devices=["cpu"] * 2)
    assert (model.calls, model.history) == (0, [])
    close(train(plain, [inputs] * 2), train(model, [inputs] * 2))
    assert placed.tier == 1
    assert (model.calls, model.history) == (plain.calls, plain.history)
    torch.testing.assert_close(model.mean, plain.mean)
