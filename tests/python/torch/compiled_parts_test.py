# SPDX-License-Identifier: Apache-2.0
"""What runs compiled in a placed model, and what runs its own code, in which thread."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from random_placement import placed_at_random, simulated
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's look

X = torch.linspace(-1, 1, 8).reshape(2, 4).double()


class Backend:
    """Runs what PyTorch's compiler found as it is; counts these graphs and their calls."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, module: Any, _: Any) -> Any:
        self.graphs += 1

        def call(*args: Any) -> Any:
            self.calls += 1
            return module(*args)

        return call


def _bent(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.cos()


class Block(nn.Module):
    """Two layers, and a function behind each."""

    def __init__(self, bend: Any = _bent) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bend = bend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.bend(self.second(self.bend(self.first(x))))
        return out


def blocks(count: int = 2) -> Any:
    torch.manual_seed(7)
    return nn.Sequential(*(Block() for _ in range(count))).double()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def checkpointed(part: nn.Module) -> list[torch.Tensor]:
    """Return what a part computes, and its gradients, where it is computed again for them."""
    out: torch.Tensor = checkpoint(part, X.clone().requires_grad_(), use_reentrant=False)
    out.square().sum().backward()
    return [out.detach().cpu(), *gradients(part)]


def one_piece(model: nn.Module) -> Any:
    """Place a model so that each of its blocks lies on one device as a whole."""
    return placed_at_random(model, X, ["sim:1"], tier=1)


def test_parts_computed_again_run_as_planned() -> None:
    """PyTorch's compiler must not look into our waiting in the backward, either."""
    expected = checkpointed(blocks()[0])
    for seed in range(4):
        backend = Backend()
        with sim.configured(devices=4, asynchronous=True, poison=True, seed=seed):
            model = blocks()
            for block in model:
                block.bend = torch.compile(_bent, backend=backend)
            placed = placed_at_random(model, X, simulated(4), seed=seed, tier=1)
            torch.testing.assert_close(checkpointed(model[0]), expected)
            placed.restore()
        assert backend.graphs == 0


def test_forwards_of_two_threads() -> None:
    """While a forward runs in one thread, others compile; and so do all when two are over."""
    backend = Backend()
    compiled = torch.compile(_bent, backend=backend)
    inside = [threading.Event(), threading.Event()]
    leave = [threading.Event(), threading.Event()]
    counted: list[int] = []

    def model_of(number: int) -> nn.Module:
        def bend(x: torch.Tensor) -> torch.Tensor:
            inside[number].set()
            assert leave[number].wait(60)
            before = backend.calls
            out: torch.Tensor = compiled(x)
            counted.append(backend.calls - before)
            return out

        for event in leave:
            event.set()
        model: nn.Module = Block(bend).double()
        placed_at_random(model, X, simulated(4), seed=1, tier=1)
        return model

    with sim.configured(devices=4):
        models = [model_of(0), model_of(1)]
        counted.clear()
        for event in (*inside, *leave):
            event.clear()
        threads = [threading.Thread(target=model, args=(X,)) for model in models]
        for number, thread in enumerate(threads):
            thread.start()
            assert inside[number].wait(60)
        compiled(X)
        while_they_run = backend.calls
        for number, thread in enumerate(threads):
            leave[number].set()
            thread.join()
        compiled(X)
    assert (while_they_run, backend.calls, counted) == (1, 2, [0] * 4)


def test_compiled_layers_of_blocks_in_one_piece() -> None:
    """What lies on one device as a whole runs compiled where `torch.compile` returned a layer."""
    plain, model, backend = blocks(), blocks(), Backend()
    for block in model:
        block.second = torch.compile(block.second, backend=backend)
    with sim.configured(devices=2, asynchronous=True, poison=True):
        placed = one_piece(model)
        assert backend.calls == 0
        for n in (1, 2):
            torch.testing.assert_close(model(X * n), plain(X * n))
        assert backend.calls == 4
        torch.testing.assert_close(model[1](X), plain[1](X))
        torch.testing.assert_close(model[1].second(X), plain[1].second(X))
        assert (backend.calls, placed.unplanned) == (6, frozenset())
        with torch.compiler.set_stance("force_eager"):  # the user's goes before
            torch.testing.assert_close(model(X), plain(X))
        assert backend.calls == 6
        model(X).square().sum().backward()
        plain(X).square().sum().backward()
        torch.testing.assert_close(gradients(model), gradients(plain))
        placed.restore()


class Sine(nn.Module):
    """A function before a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.sin())
        return out


@pytest.mark.filterwarnings("ignore:Sequential ran")  # the functions in a compiled layer
def test_compiled_layers_with_weights_from_elsewhere() -> None:
    """Such a block runs function by function: PyTorch's compiler must not see us do so."""
    torch.manual_seed(7)
    plain = nn.Sequential(*(Sine() for _ in range(2))).double()
    some = False
    for seed in range(8):
        model, backend = copy.deepcopy(plain), Backend()
        for block in model:
            block.layer = torch.compile(block.layer, backend=backend)
        with sim.configured(devices=2, asynchronous=True, poison=True):
            placed = placed_at_random(model, X, simulated(2), seed=seed, tier=1)
            foreign = {n: p.detach() * 2 for n, p in model.named_parameters()}
            before = backend.calls
            found = functional_call(model, foreign, (X,))
            opened = len({key.partition("/")[0] for key in placed.unplanned})
            assert backend.calls - before == 2 - opened
            some |= opened > 0
            doubled = {n.replace("_orig_mod.", ""): w.cpu() for n, w in foreign.items()}
            torch.testing.assert_close(found, functional_call(plain, doubled, (X,)))
            placed.restore()
    assert some


def test_compiled_layers_that_are_layers_elsewhere_too() -> None:
    """The wrapper of a layer that a compiled one calls is not compiled."""
    plain, model, backend = blocks(), blocks(), Backend()
    plain[1].second = plain[0].first
    model[1].second = torch.compile(model[0].first, backend=backend)
    for seed in range(4):
        with sim.configured(devices=4, asynchronous=True, poison=True, seed=seed):
            placed = placed_at_random(model, X, simulated(4), seed=seed, tier=1)
            for n in (1, 2):
                torch.testing.assert_close(model(X * n), plain(X * n))
            found = torch.compile(model[0].first, backend=backend)(X)  # as it lies
            torch.testing.assert_close(found, plain[0].first(X))
            placed.restore()
