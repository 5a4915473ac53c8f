# SPDX-License-Identifier: Apache-2.0
"""Models that are built without weights have those of models that are built as usual."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.weights import deferred
from baechi.torch.weights.deferred import deferred_values
from baechi.torch.weights.making import Making
from torch import nn

import baechi
from models.pytorch import MODELS


class Initialised(nn.Module):
    """What initialisers do: look at values, draw until it is enough, fill parts, share, convert."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
        self.listed = torch.rand(3).tolist()
        self.linear = nn.Linear(5, 7)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.trunc_normal_(self.linear.bias, std=0.7)
        self.embedding = nn.Embedding(9, 4, padding_idx=2)
        self.normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.register_buffer("given", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)
        self.last = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.half = nn.Linear(4, 4).half()
        self.recurrent = nn.LSTM(3, 4)
        self.mixed = nn.Parameter(torch.rand(4) * self.listed[0] + torch.arange(4))
        own = torch.Generator().manual_seed(9)
        self.drawn = nn.Parameter(torch.empty(20).normal_(generator=own))
        self.again = nn.Parameter(torch.empty(20).uniform_(generator=own))
        self.tied = nn.Linear(4, 9, bias=False)
        self.tied.weight = self.embedding.weight
        if self.linear.weight.is_meta or self.linear.weight.device.type != "cpu":
            raise AssertionError("some initialisers leave such weights alone")


class Otherwise(nn.Module):
    """What is done to many weights at once, by arrays, and in another type of numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_default_dtype(torch.double)
        self.register_buffer("halves", torch.randn(5) + torch.arange(5) / 2)
        torch.set_default_dtype(torch.float32)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        one, two, three = self.layers
        own = torch.Generator().manual_seed(9)
        filled = np.zeros((4, 4), np.float32)
        with torch.no_grad():
            torch._foreach_mul_([one.weight, two.weight], 0.5)
            for layer in (one, two):
                filled[:] += 1
                layer.weight.add_(torch.from_numpy(filled))
            three.bias.copy_(torch.rand(4, generator=own))
            three.weight.copy_(torch.multinomial(torch.ones(4), 4).expand(4, 4))
        sums = torch.from_numpy(np.zeros(4, np.float32))
        sums.add_(one.bias.detach())
        self.register_buffer("sums", sums)


class Looked(nn.Module):
    """What depends on values, is the same tensor in another guise, or writes without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(4, 6))
        drawn = torch.randn(5, 5)
        drawn[drawn > 0] = 0
        self.register_buffer("below", drawn[drawn < 0])
        self.register_buffer("where", (drawn < 0).nonzero())
        self.register_buffer("shares", torch.distributions.Dirichlet(torch.ones(3)).sample((2,)))
        self.register_buffer("array", torch.tensor(np.asarray(drawn)) + 1)
        self.words = f"{drawn[0, 0]:.3f}"
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.features(torch.randn(2, 3, 8, 8))
        self.linear = nn.Linear(3, 3)
        self.linear.weight.data.cpu().fill_(3.0)
        self.linear.bias.data.to("cpu", torch.float).mul_(2)
        given = torch.from_numpy(np.ones(3, np.float32))
        self.register_buffer("doubled", given.to(self.linear.bias.data.double()) + torch.rand(3))
        self.register_buffer("angles", torch.polar(torch.ones(3), torch.randn(3)).conj())


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "initialised": Initialised,
    "otherwise": Otherwise,
    "looked": Looked,
    **{
        name: lambda entry=MODELS[name]: entry.build(entry.small())  # type: ignore[misc]
        for name in ("vit", "gnmt", "unet")
    },
}


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_are_those_of_a_model_built_as_usual(name: str) -> None:
    """Also where only some are made, and so are random numbers behind it."""
    torch.manual_seed(3)
    usual, then = BUILDERS[name](), torch.rand(3)
    torch.manual_seed(3)
    with baechi.torch.deferred_weights():
        model = BUILDERS[name]()
    assert torch.equal(torch.rand(3), then)
    weights = weights_of(model)
    given = {"sums", "array"}  # memory of an array
    assert all(w.is_meta for name, w in weights.items() if w.dim() and name not in given)
    one = next(reversed(dict(model.named_parameters())))
    assert torch.equal(deferred_values({one: weights[one]})[one], weights_of(usual)[one])
    kept = {name: id(weight) for name, weight in weights.items()}
    making = Making(model, None)
    some = list(weights)[::2]
    making.give(making.read(some), torch.device("cpu"))
    making = Making(model, None)
    making.give(making.read(n for n, w in weights.items() if w.is_meta), torch.device("cpu"))
    assert {name: id(weight) for name, weight in weights_of(model).items()} == kept
    for name, weight in weights_of(usual).items():
        made = weights[name]
        assert type(made) is type(weight)
        assert (made.stride(), made.requires_grad) == (weight.stride(), weight.requires_grad)
        assert torch.equal(made, weight)
    told = {name: value for name, value in vars(usual).items() if isinstance(value, (str, list))}
    assert {name: vars(model)[name] for name in told} == told


def test_a_model_without_weights_is_placed_in_one_process() -> None:
    x = torch.randn(4, 3)
    torch.manual_seed(1)
    usual = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    expected = usual(x)
    state = {name: value.clone() for name, value in usual.state_dict().items()}
    for weights in (None, state):
        torch.manual_seed(1)
        with baechi.torch.deferred_weights():
            model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        placed = baechi.torch.place(
            model, x, "2x1GiB", devices=["cpu"] * 2, verbose=False, weights=weights
        )
        assert torch.equal(model(x), expected)
        model(x).sum().backward()
        before = model[0].weight.detach().clone()
        optimizer.step()
        assert not torch.equal(before, model[0].weight)
        placed.restore()
        assert {weight.device.type for weight in model.parameters()} == {"cpu"}


class Beside(nn.Module):
    """A module with tensors that are none of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.rand(4) + 1
        self.table = [torch.arange(4.0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale + self.table[0]


def test_tensors_beside_the_weights_have_their_values() -> None:
    x = torch.randn(3, 4)
    torch.manual_seed(1)
    expected = Beside()(x)
    torch.manual_seed(1)
    with baechi.torch.deferred_weights():
        model = Beside()
    baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2, verbose=False)
    assert torch.equal(model(x), expected)


def test_notes_are_forgotten_when_no_weight_needs_them() -> None:
    deferred.forget_unwanted()
    others = len(deferred._NOTES)  # of models that other tests still have
    with baechi.torch.deferred_weights():
        placed, waiting = nn.Linear(3, 3), nn.Linear(3, 3)
    baechi.torch.place(placed, torch.randn(2, 3), "1x1GiB", devices=["cpu"], verbose=False)
    assert len(deferred._NOTES) == others + 1
    baechi.torch.place(waiting, torch.randn(2, 3), "1x1GiB", devices=["cpu"], verbose=False)
    assert len(deferred._NOTES) == others
    with baechi.torch.deferred_weights():
        unused = nn.Linear(3, 3)
    assert len(deferred._NOTES) == others + 1
    del unused
    for _ in range(3):
        with baechi.torch.deferred_weights():
            nn.Linear(3, 3)
    assert len(deferred._NOTES) == others + 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_module_of_torchscript_is_refused() -> None:
    with baechi.torch.deferred_weights():
        model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Linear(3, 3)))
    with pytest.raises(baechi.InputError, match="'1' is a module of TorchScript, whose weights"):
        baechi.torch.place(model, torch.randn(2, 3), "1x1GiB", devices=["cpu"])


def test_what_would_be_lost_is_refused() -> None:
    with baechi.torch.deferred_weights():
        model = nn.Linear(3, 3)
        assert (model.weight.data.numpy() != 0).any()
        with pytest.raises(ValueError, match="read-only"):
            model.weight.data.numpy()[:] = 1
    with baechi.torch.deferred_weights():
        model = nn.Linear(3, 3)
    nn.init.zeros_(model.bias)
    with pytest.raises(baechi.InputError, match=r"'bias' was changed behind deferred_weights\(\)"):
        baechi.torch.place(model, torch.randn(2, 3), "1x1GiB", devices=["cpu"])
    with baechi.torch.deferred_weights():
        other = nn.BatchNorm1d(3, affine=False)
    other.running_mean.fill_(2)
    with pytest.raises(baechi.InputError, match="'running_mean' was changed behind"):
        baechi.torch.place(other, torch.randn(2, 3), "1x1GiB", devices=["cpu"])
    with baechi.torch.deferred_weights():
        with pytest.raises(baechi.InputError, match=r"made outside of this deferred_weights\(\)"):
            copy.deepcopy(model)
        lazy = nn.LazyLinear(3)
    with pytest.raises(baechi.InputError, match="'weight' has no shape yet"):
        baechi.torch.place(lazy, torch.randn(2, 3), "1x1GiB", devices=["cpu"])
    model.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(baechi.InputError, match="'weight' is on the meta device and has a hook"):
        baechi.torch.place(model, torch.randn(2, 3), "1x1GiB", devices=["cpu"])
    with baechi.torch.deferred_weights():
        model = nn.Linear(3, 3)
    with pytest.raises(baechi.InputError, match="costs='measure' runs the model"):
        baechi.torch.place(model, torch.randn(2, 3), "1x1GiB", devices=["cpu"], costs="measure")
