# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.grad` in a forward: what it runs is counted where it runs, and may be spread."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.memory.eager import peak_memory
from baechi.torch.placing import assign
from baechi.torch.record.capture import capture_on
from memory_test import check_close, measured_peaks
from random_placement import placed_at_random, simulated
from same_training import trains_the_same
from torch import nn
from torch.utils.checkpoint import checkpoint

import baechi
from models.bank import ENTRIES

sim: Any = pytest.importorskip("baechi.torch.sim")


class Forces(nn.Module):
    """Minus the slopes of an energy, which are trained."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, width), nn.Linear(width, width)])
        self.energy = nn.Linear(width, 1)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        places = places.detach().requires_grad_()
        hidden = places
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) * hidden.mean()
        (slope,) = torch.autograd.grad(self.energy(hidden).sum(), places, create_graph=True)
        return -slope


class Leapfrog(nn.Module):
    """Slopes of what was computed with slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        place, speed = places.requires_grad_(), (places * 0.5).detach().requires_grad_()
        for _ in range(2):
            energy = self.energy(torch.cat([place, speed], 1)).sum()
            down, up = torch.autograd.grad(energy, (place, speed), create_graph=True)
            place, speed = place + 0.1 * up, speed - 0.1 * down
        return torch.cat([place, speed], 1)


class Adapted(nn.Module):
    """MAML: two inner steps on weights of its own, through which the outer loss goes."""

    def __init__(self, create_graph: bool = True) -> None:
        super().__init__()
        self.create_graph = create_graph
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        weights = dict(self.net.named_parameters())
        for _ in range(2):
            out = torch.func.functional_call(self.net, weights, (places,))
            inner = (out - places).square().mean()
            slopes = torch.autograd.grad(
                inner, list(weights.values()), create_graph=self.create_graph
            )
            weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
        return torch.func.functional_call(self.net, weights, (places,))


MODELS: dict[str, Any] = {
    "forces": Forces,
    "leapfrog": Leapfrog,
    "maml": Adapted,
    "first-order maml": lambda: Adapted(create_graph=False),
}


def built(name: str) -> Any:
    torch.manual_seed(5)
    return MODELS[name](), torch.randn(48, 12)


class Again(nn.Module):
    """A block whose activations are computed again, by the older kind of checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        found: torch.Tensor = checkpoint(self.second, hidden, use_reentrant=True)
        return found


class Slopes(nn.Module):
    """Slopes by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(lambda row: self.energy(row).squeeze()))(x)


@pytest.mark.parametrize(
    ("kind", "share", "why"),
    [
        (Adapted, 0.05, "gradients of gradients"),
        (Slopes, 0.1, "derivatives by torch.func"),
        (Again, 0.07, "checkpoint"),
        (lambda: nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 4)), 0.0, ""),
    ],
)
def test_room_is_left_for_what_is_not_foreseen(kind: Any, share: float, why: str) -> None:
    model, inputs = kind(), torch.randn(48, 12)
    how: dict[str, Any] = {"devices": ["cpu"], "tier": 1, "gradients": "freed"}
    placed = baechi.torch.place(
        model, inputs, "1x1GiB", method="single", mode="streams", bounds=False, **how
    )
    placed.restore()
    plan, peak = placed.plan, placed.peaks["gpu:0"]
    assert plan is not None

    def place_within(memory: int) -> None:
        plan_there = plan.with_cluster(baechi.Cluster(f"1x{memory}B"))
        baechi.torch.place(model, inputs, plan=plan_there, **how).restore()

    place_within(math.ceil(peak * (1 + share)))
    said = f"with {share:.0%} more, as memory of {why}" if why else "1 bytes short"
    with pytest.raises(baechi.DoesNotFit, match=said):
        place_within(math.ceil(peak * (1 + share)) - 1)


@pytest.mark.repeats
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_peaks_are_those_of_where_the_inner_backward_runs(name: str, seed: int) -> None:
    model, inputs = built(name)
    with sim.configured(devices=3, memory="1GiB"):
        options = {"seed": seed, "tier": 1, "optimizer": "adamw", "gradients": "freed"}
        placed = placed_at_random(model, inputs, simulated(3), **options)
        measured = measured_peaks(placed.model, inputs, "adamw", 3)
        check_close(placed.peaks, measured)
        placed.restore()


def test_the_layers_behind_a_slope_may_be_on_several_devices() -> None:
    model, inputs = built("forces")
    with sim.configured(devices=3, memory="1GiB"):
        placed = placed_at_random(model, inputs, simulated(3), seed=2)
        homes = {str(weight.device) for weight in model.parameters()}
        placed.restore()
    assert len(homes) > 1


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_slopes_train_as_on_one_device(name: str) -> None:
    model, inputs = built(name)
    trains_the_same(model.double(), inputs.double(), tiers=(1,), seeds=(1,), homes=("cpu",))


@pytest.mark.parametrize(
    ("name", "seed"),
    [("hamiltonian", 9), ("hamiltonian", 12), ("hamiltonian", 16), ("energy-forces", 6)],
)
def test_gradients_inside_a_forward_are_there_when_they_go_over(name: str, seed: int) -> None:
    """A slope goes to where it is wanted before the call that asks for it has ended.

    That holds the gradient which it began with to its end. A part of a gradient that comes back to
    where it was made, expanded on another device, is a copy.
    """
    entry = ENTRIES[name]
    model = entry.build().double()
    inputs = tuple(t.double() if t.is_floating_point() else t for t in entry.inputs(4, 1))
    with sim.configured(devices=3, memory="1GiB"):
        options = {"seed": seed, "tier": 1, "optimizer": "adamw", "gradients": "freed"}
        placed = placed_at_random(model, inputs, simulated(3), loss=entry.loss, **options)

        def loss(model: Any, inputs: Any) -> Any:
            return entry.loss(model(*inputs))

        measured = measured_peaks(placed.model, inputs, "adamw", 3, loss)
        for peak, found in zip(placed.peaks.values(), measured, strict=True):
            assert peak >= found - 512, (placed.peaks, measured)  # a sum of two slopes
        placed.restore()


class SlopesOfBoth(nn.Module):
    """Slopes by the weights of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        weights = [self.first.weight, self.second.weight]
        slopes = torch.autograd.grad(self.second(hidden).sum(), weights)
        return hidden.detach() * weights[0].mean() * slopes[0].mean() + slopes[1].mean()


def test_what_is_sent_of_an_inner_backward_is_there_until_all_of_the_operators_has_run() -> None:
    """The gradient by `hidden` is made before that by the weight, and is sent behind both."""
    model, x = SlopesOfBoth(), torch.randn(64, 8)
    with sim.configured(devices=2, memory="1GiB"):
        captured = capture_on(torch.device("sim:0"), model, (x,))
        near = ("second", "sum@2", "grad@3>s")
        where = {op.key: "b" if op.key.startswith(near) else "a" for op in captured.ops}
        predicted = peak_memory(captured, where, optimizer="sgd", home="a")
        placed = assign(model, captured, where, {"a": "sim:0", "b": "sim:1"}, tier=1)
        measured = measured_peaks(placed.model, x, "sgd", 2)
        placed.restore()
    assert predicted["b"] == measured[1]
