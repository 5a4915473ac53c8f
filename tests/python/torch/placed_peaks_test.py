# SPDX-License-Identifier: Apache-2.0
"""Peaks of placed models: what simulated devices hold at most, to the byte for steps."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from places import mean_square
from step_models import module
from torch import nn

ROWS, WIDTH = 256, 64


class Branches(nn.Module):
    """Two ways of several layers that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(*(nn.Linear(WIDTH, WIDTH), nn.GELU()) * 3)
        self.right = nn.Sequential(*(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) * self.right(x)


def allocated() -> list[int]:
    """Return what other tests have left on the devices."""
    gc.collect()
    return [torch.accelerator.memory_allocated(i) for i in range(2)]


def measured(placed: Any, run: Any, *, zero: bool, left: list[int]) -> dict[str, int]:
    """Return the peaks of a third run, with or without gradients from before."""
    found = []
    for _ in range(3):
        if zero:
            placed.model.zero_grad()
        gc.collect()
        for i in range(2):
            torch.accelerator.reset_peak_memory_stats(i)
        run()
        found = [torch.accelerator.max_memory_allocated(i) - left[i] for i in range(2)]
    return dict(zip(placed.planned.names, found, strict=True))


@pytest.mark.parametrize("zero", [True, False])
def test_peaks_of_steps_are_exact(sim: ModuleType, zero: bool) -> None:
    sim.configure(devices=2, memory="1GiB")
    left = allocated()
    model = Branches()
    x = torch.randn(ROWS, WIDTH, device="sim:0")
    placed = baechi.torch.place(
        model, x, "2x420KiB", loss=mean_square, micro_batches=2, optimizer="sgd", budget="0.3s"
    )
    assert len({*placed.weight_devices.values()}) == 2
    assert placed.peaks == (placed.plan.run_peaks or placed.plan.peaks)
    found = measured(placed, lambda: placed.step(x), zero=zero, left=left)
    assert placed.peaks == found
    placed.restore()


def of_a_call(build: Any, cluster: str, loss: Any = mean_square, **how: Any) -> Any:
    """Place a model by a plan of its calls; return it, its peaks, and those of one call."""
    left, model, x = allocated(), build(), torch.randn(ROWS, WIDTH, device="sim:0")
    placed = baechi.torch.place(model, x, cluster, loss=loss, optimizer="sgd", **how)
    found = measured(placed, lambda: loss(model(x)).backward(), zero=True, left=left)
    peaks = placed.peaks
    placed.restore()
    return placed, peaks, found


def test_peaks_of_calls_are_close(sim: ModuleType) -> None:
    sim.configure(devices=2, memory="1GiB")
    placed, peaks, found = of_a_call(Branches, "2x600KiB", budget="0.3s")
    assert len({*placed.weight_devices.values()}) == 2
    for name, size in peaks.items():
        assert 0.97 * found[name] <= size <= 1.1 * found[name]


@module(lambda: {"first": nn.Linear(WIDTH, WIDTH), "last": nn.Linear(WIDTH, WIDTH)})
def InPlace(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Tensors that are changed in place, whose gradients autograd makes outside of modules."""
    h = self.first(x).relu_().clone()
    for row in range(4):
        h[row::4].mul_(row + 1)
    return self.last(h)


class TwoHeads(nn.Module):
    """What the loss reads, with a peak in its backward, and beside it what nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32 * WIDTH), nn.Linear(32 * WIDTH, WIDTH))
        self.side = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers(x), self.side(x)


def of_first(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return mean_square(outputs[0])


@pytest.mark.parametrize(("build", "loss"), [(InPlace, mean_square), (TwoHeads, of_first)])
def test_peaks_of_a_call_on_one_device_are_within_an_allocation(
    sim: ModuleType, build: Any, loss: Any
) -> None:
    sim.configure(devices=2, memory="1GiB", asynchronous=False)
    placed, peaks, found = of_a_call(build, "2x1GiB", loss, method="single")
    keys = placed.planned.step.keys.values()
    assert not [key for key in keys if key.startswith("(loss):copy")]
    assert peaks["gpu:0"] == pytest.approx(found["gpu:0"], abs=512)
