# SPDX-License-Identifier: Apache-2.0
"""Predicted peaks of backwards that are not only the forward's in reverse."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch.sim as sim
import torch
from baechi.torch import place
from memory_test import OPTIMIZERS, accumulating_peaks, check, check_close, machine, placed_on
from torch import nn

from models.bank.elsewhere import WIDTH, Reversible

__all__ = ["machine"]


class ChangedViews(nn.Module):
    """Changes in place what a normalisation returns, which is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu_(self.norm(self.first(x))))
        return y


class Conjugated(nn.Module):
    """Complex weights; before a sum of gradients conjugated ones are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)
        self.weight = nn.Parameter(torch.randn(32, 32, dtype=torch.complex64))
        self.angle = nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(self.first(x).view(len(x), 32, 2).contiguous())
        phase = torch.polar(torch.ones_like(self.angle), self.angle)
        turned = turned @ self.weight + phase * turned.conj()
        y: torch.Tensor = self.second(torch.cat([(turned * turned.conj()).real, turned.imag], 1))
        return y


CASES = {"reversible": (Reversible, (8, WIDTH)), "changed views": (ChangedViews, (4, 3, 16, 16))}


@pytest.mark.repeats
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_predicted_peaks(name: str, count: int) -> None:
    torch.manual_seed(3)
    build, size = CASES[name]
    inputs = torch.randn(size)
    how = {"method": "single"} if count == 1 else {"method": "random", "seed": 4}
    placed = placed_on(count, build(), inputs, optimizer="adam", **how)
    check(placed, inputs, "adam")
    placed.restore()


class KeysTwice(nn.Module):
    """Reads keys as they are and by attributes, which are views that no operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = torch.tanh(self.key(x))
        found = (self.query(x) @ key.mT).softmax(-1) @ key @ self.weight.T
        y: torch.Tensor = self.last(found * key)
        return y


@pytest.mark.parametrize("seed", [3, 7])
@pytest.mark.parametrize(("build", "size"), [(KeysTwice, (4, 12, WIDTH)), (Conjugated, (16, 32))])
def test_sums_of_gradients_are_where_the_tensor_was_made(build: Any, size: Any, seed: int) -> None:
    """Of a tensor and its view that two other devices read, one of them conjugated by a bit."""
    torch.manual_seed(3)
    inputs = torch.randn(size)
    how: dict[str, Any] = {"method": "random", "seed": seed, "mode": "streams", "tier": 1}
    placed = placed_on(3, build(), inputs, optimizer="adam", **how)
    check(placed, inputs, "adam")
    placed.restore()


def test_a_weight_keeps_the_gradient_that_came_before_a_sum_of_conjugated_ones() -> None:
    inputs = torch.randn(16, 32)
    placed = placed_on(1, Conjugated(), inputs, optimizer="adam", method="single")
    check(placed, inputs, "adam")
    placed.restore()


def test_gradients_that_a_backward_inside_adds_to() -> None:
    torch.manual_seed(3)
    model, inputs = Reversible(), torch.randn(8, 16)
    placed = placed_on(1, model, inputs, optimizer="adam", method="single", gradients="held")
    check_close(placed.peaks, accumulating_peaks(model, inputs, "adam", 1))
    placed.restore()


@pytest.mark.parametrize("gradients", ["freed", "held"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_are_small(
    optimizer: Any, gradients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    monkeypatch.setitem(OPTIMIZERS, "this", optimizer)
    layers: list[nn.Module] = [nn.Embedding(2000, 16, sparse=True), nn.Tanh()]
    model, words = nn.Sequential(*layers), torch.randint(2000, (8, 5))
    placed = placed_on(1, model, words, optimizer=optimizer, method="single", gradients=gradients)
    if gradients == "freed":
        check(placed, words, "this")
    else:
        check_close(placed.peaks, accumulating_peaks(model, words, "this", 1))
    placed.restore()


class Logits(nn.Module):
    """Returns its loss, and logits that are larger than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle, self.last = (
            nn.Embedding(512, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 512),
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.last(torch.relu(self.middle(self.words(x))))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
        return {"loss": loss, "logits": logits}


def _loss_in(out: Any) -> Any:
    return out["loss"]


@pytest.mark.parametrize("tier", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_loop_keeps_what_the_step_before_returned(seed: int, tier: int) -> None:
    """As `out = model(x)` does until the next call has returned."""
    torch.manual_seed(3)
    model, inputs = Logits(), torch.randint(512, (8, 16), device="sim:0")
    how: dict[str, Any] = {"loss": _loss_in, "method": "random", "seed": seed, "tier": tier}
    placed = placed_on(3, model, inputs, optimizer="adam", **how)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        for device in range(3):
            sim.reset_peak_memory_stats(device)
        out = model(inputs)
        loss = out["loss"]
        loss.backward()
        optimizer.step()
        measured = [sim.max_memory_allocated(device) for device in range(3)]
    check_close(placed.peaks, measured)
    placed.restore()


def test_a_plan_without_room_for_the_last_outputs_says_so() -> None:
    model, inputs = Logits(), torch.randint(512, (8, 16), device="sim:0")
    how: dict[str, Any] = {"loss": _loss_in, "tier": 1, "optimizer": "adam", "gradients": "freed"}
    placed = placed_on(3, model, inputs, method="random", seed=1, **how)
    less = {"gpu:0": placed.peaks["gpu:0"] - 100_000, "gpu:1": 1 << 30, "gpu:2": 1 << 30}
    plan = placed.plan.with_cluster(placed.plan.cluster.with_capacities(less))
    placed.restore()
    with pytest.warns(UserWarning, match=r"let go of it before each forward \(`del out, loss`\)"):
        placed = place(model, inputs, plan=plan, devices=["sim:0", "sim:1", "sim:2"], **how)
    assert placed.peaks["gpu:0"] <= less["gpu:0"]
    placed.restore()
