# SPDX-License-Identifier: Apache-2.0
"""What the caller of a model reads, where devices of the placement share an accelerator.

Each has a stream of its own there: what is made on one is ordered, and kept, for the caller's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from random_placement import placed_at_random
from torch import nn
from torch.utils.checkpoint import checkpoint

sim: Any = pytest.importorskip("baechi.torch.sim")

ONE = ["sim:0"] * 3
SHARED = ["sim:0", "sim:0", "sim:1"]
BATCHES = list(torch.randn(3, 6, 8, dtype=torch.float64).unbind())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8).double() for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.a(x))
        return self.d(self.b(h) * nn.functional.gelu(self.c(h)) + h)


class Slotted:
    __slots__ = ("first", "rest")

    def __init__(self, first: torch.Tensor, rest: list[torch.Tensor]) -> None:
        self.first, self.rest = first, rest

    def loss(self) -> torch.Tensor:
        where = self.first.device
        return self.first.square().mean() + sum(t.to(where).square().mean() for t in self.rest)


class Called:
    def __init__(self, first: torch.Tensor, rest: list[torch.Tensor]) -> None:
        self.held = Slotted(first, rest)

    def __call__(self) -> torch.Tensor:
        return self.held.loss()


def held_by_a_function(first: torch.Tensor, rest: list[torch.Tensor]) -> Callable[[], Any]:
    return lambda: Slotted(first, rest).loss()


class Returning(Layers):
    """Returns what no container of Python's is."""

    def __init__(self, of: Callable[..., Any]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: torch.Tensor) -> Any:
        h = self.a(x)
        return self.of(self.b(h).tanh(), [self.c(h).exp(), self.d(h)])


def loss_of(out: Any) -> torch.Tensor:
    if isinstance(out, torch.Tensor):
        return out.square().mean()
    loss: torch.Tensor = out.loss() if isinstance(out, Slotted) else out()
    return loss


def by_optimizer(model: Any, x: torch.Tensor, call: Any = None) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.zero_grad()
    loss = loss_of((call or model)(x))
    loss.backward()
    optimizer.step()
    return loss.detach()


def by_hand(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Train with gradients that autograd returns, and let go of them at once."""
    weights = list(model.parameters())
    loss = loss_of(model(x))
    with torch.no_grad():
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.sub_(gradient.mul_(0.1))
    return loss.detach()


def again(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Run the model once more in the backward."""
    call = partial(checkpoint, model, use_reentrant=False)
    return by_optimizer(model, x.requires_grad_(), call)


def new_weights(model: Any) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def old_weight_norm(model: Any) -> None:
    torch.nn.utils.weight_norm(model.b)


CASES: dict[str, Any] = {
    "gradients of autograd.grad": (Layers, by_hand, None),
    "a checkpoint of the model": (Layers, again, None),
    "weights that were assigned": (Layers, by_optimizer, new_weights),
    "a weight that a hook computes": (Layers, by_optimizer, old_weight_norm),
    "slots": (partial(Returning, Slotted), by_optimizer, None),
    "an object that is called": (partial(Returning, Called), by_optimizer, None),
    "a function": (partial(Returning, held_by_a_function), by_optimizer, None),
}


@pytest.mark.filterwarnings("ignore:.*not in the recorded step", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_caller_reads_what_was_made(name: str) -> None:
    made, step, change = CASES[name]
    plain = made()
    origin = copy.deepcopy(plain)
    torch.nn.init.ones_(plain.a.bias)
    torch.nn.init.ones_(origin.a.bias)
    if change is not None:
        change(plain)
    expected = [step(plain, x.clone()) for x in BATCHES]
    for seed, devices in ((1, SHARED), (2, ONE), (4, SHARED)):
        for tier in (1, "auto"):
            model = copy.deepcopy(origin)
            with sim.configured(devices=4, poison=True, longest_delay="300us", seed=seed):
                place = placed_at_random(
                    model, BATCHES[0], devices, seed=seed, tier=tier, loss=loss_of
                )
                model(BATCHES[0].to("sim:1"))
                if change is not None:
                    change(model)
                home = "cpu" if devices is ONE else "sim:1"
                found = [step(model, x.clone().to(home)) for x in BATCHES]
                torch.accelerator.synchronize()
                for mine, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(mine.cpu(), other, msg=f"{devices}, tier {tier}")
                state = model.state_dict()
                for key, tensor in plain.state_dict().items():
                    torch.testing.assert_close(state[key].cpu(), tensor)
                place.restore()


class Beside(Layers):
    """Has a tensor read, and changed, by what is no function of PyTorch's."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.read: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        if self.how == "shown":
            self.read.append(f"{h.sum():.6f} {h.detach().cpu() if h.is_cpu else h.detach()}")
        elif self.how == "named":
            h = h + h.type("torch.DoubleTensor").to(h.device) * 2
        else:  # as a kernel that is given an address and runs on the current stream
            h = h * 1
            assert h.data_ptr()
            with torch._C.DisableTorchFunction():
                self.read.append(h.detach().sum())
                h.detach().mul_(3)
        found: torch.Tensor = self.d(self.b(h) * self.c(h))
        return found


@pytest.mark.parametrize("how", ["shown", "named", "by address"])
def test_what_is_read_beside_the_operators_is_there(how: str) -> None:
    plain = Beside(how)
    origin = copy.deepcopy(plain)
    with torch.no_grad():
        expected = [plain(x) for x in BATCHES]
    for seed, devices in ((1, SHARED), (2, ONE), (4, SHARED), (5, ONE)):
        model = copy.deepcopy(origin).eval()
        with (
            sim.configured(devices=4, poison=True, longest_delay="1ms", seed=seed),
            torch.no_grad(),
        ):
            place = placed_at_random(model, BATCHES[0], devices, seed=seed, tier=1)
            model.read.clear()
            found = [model(x.to("sim:0")) for x in BATCHES]
            torch.accelerator.synchronize()
            for mine, other in zip(found, expected, strict=True):
                torch.testing.assert_close(mine.cpu(), other)
            for mine, other in zip(model.read, plain.read, strict=True):
                if isinstance(mine, str):
                    assert mine.partition("device=")[0].rstrip(" ,\n") in other
                else:
                    torch.testing.assert_close(mine.cpu(), other)
            place.restore()
