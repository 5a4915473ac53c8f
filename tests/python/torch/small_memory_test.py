# SPDX-License-Identifier: Apache-2.0
"""Real models on four devices with 40% and 30% each of what one needs; what a module is sent."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch import place
from baechi.torch.memory.beside import room_for_later
from baechi.torch.memory.eager import peak_memory
from baechi.torch.placing import assign
from baechi.torch.record.capture import capture_on
from baechi.torch.weights.homes import homes_by_name
from memory_test import SIZES, machine, measured_peaks, placed_on
from torch import nn
from training_steps import close, train

from models.pytorch import MODELS, loss_of

sim: Any = pytest.importorskip("baechi.torch.sim")

__all__ = ["machine"]  # a fixture that all tests here use


def fails_on_one(model: Any, batch: Any) -> bool:
    """Whether a step of the model runs out of memory on one device; what it left is collected."""
    try:
        model.to("sim:0")
        loss_of(model(**{name: t.to("sim:0") for name, t in batch.items()})).backward()
    except torch.OutOfMemoryError:
        return True
    finally:
        del model
        gc.collect()
    return False


# With 30% no plan is found for the others at these sizes.
@pytest.mark.repeats
@pytest.mark.parametrize(
    ("name", "percent"),
    [
        *((name, 40) for name in MODELS),
        ("gnmt", 30),
        ("transformer", 30),
        ("mixtral", 30),
    ],
)
def test_a_model_that_fails_on_one_device_trains_the_same_on_four(name: str, percent: int) -> None:
    entry = MODELS[name]
    config = dataclasses.replace(entry.small(), **SIZES[name])
    if hasattr(config, "dropout"):
        config = dataclasses.replace(config, dropout=0.0)

    def build() -> Any:
        torch.manual_seed(1)
        return entry.build(config).to(torch.float64)  # five steps of Inception amplify rounding

    how: dict[str, Any] = {"loss": loss_of, "tier": "auto", "optimizer": "adam"}
    inputs = entry.inputs(config, 6)
    batches = [{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}] * 5
    expected = train(build(), batches)
    whole = placed_on(1, build(), batches[0], method="single", **how)
    cap = whole.peaks["gpu:0"] * percent // 100
    whole.restore()
    del whole
    gc.collect()
    sim.configure(memory=cap)
    assert fails_on_one(build(), batches[0])
    model = build()
    placed = placed_on(4, model, batches[0], cap * 97 // 100, method="auto", **how)
    close(expected, train(model, batches))
    assert all(peak <= cap for peak in placed.peaks.values())
    assert placed.plan.run_peaks == {
        name: max(peaks[name] for peaks in placed.tier_peaks.values()) for name in placed.peaks
    }
    assert {device.capacity for device in placed.plan.cluster.devices} == {cap * 97 // 100}
    placed.restore()


def test_devices_that_share_an_accelerator_need_no_more_than_it_has() -> None:
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3)))
    how: dict[str, Any] = {"optimizer": "none", "method": "random", "seed": 1, "gradients": "freed"}
    with sim.configured(devices=1, memory="300KiB"):
        said = r"gpu:0, gpu:1 share sim:0, which has 307,200 bytes: their peaks are [\d,]+ together"
        with pytest.warns(UserWarning, match=said):
            place(model, torch.randn(4, 128), "2x280KiB", devices=["sim:0"] * 2, **how).restore()
    with sim.configured(devices=1, memory="600KiB"):
        place(model, torch.randn(4, 128), "2x280KiB", devices=["sim:0"] * 2, **how).restore()


class Pooled(nn.Module):
    """Reads the first row of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(x[:, 0]))


class Handed(nn.Module):
    """Is given what it does not read, beside what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        del beside
        return torch.tanh(self.last(x))


class Handing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 64), nn.Linear(64, 64), Handed()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        return self.head(self.second(y).relu(), y).sum() + y.mean()


def test_what_a_module_is_given_and_does_not_read_is_not_sent() -> None:
    model, x = Handing(), torch.randn(4, 32, 8)
    with sim.configured(devices=2, memory="1GiB"):
        captured = capture_on(torch.device("sim:0"), model, (x,))
        where = {op.key: "b" if op.key.startswith("head") else "a" for op in captured.ops}
        predicted = peak_memory(captured, where, optimizer="adamw", home="a")
        placed = assign(model, captured, where, {"a": "sim:0", "b": "sim:1"}, tier=1)
        measured = measured_peaks(placed.model, x, "adamw", 2)
        placed.restore()
    assert predicted["b"] == measured[1]


def test_of_a_part_of_what_a_module_is_given_only_the_part_is_sent() -> None:
    """A module whose operators are on one device runs there as one, unless a view begins it."""
    head = Pooled()
    model, x = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), head), torch.randn(4, 32, 8)
    head.register_parameter("unread", nn.Parameter(torch.ones(8)))
    with sim.configured(devices=2, memory="1GiB"):  # no gradient comes to `unread`
        captured = capture_on(torch.device("sim:0"), model, (x,))
        where = {op.key: "b" if op.key.startswith("2") else "a" for op in captured.ops}
        predicted = peak_memory(captured, where, optimizer="adamw", home="a")
        weights = homes_by_name(captured, where)
        room = room_for_later(captured, weights, "adamw")
        placed = assign(model, captured, where, {"a": "sim:0", "b": "sim:1"}, tier=1)
        measured = measured_peaks(placed.model, x, "adamw", 2)
        placed.restore()
    assert room == {"a": 1024, "b": 0}
    assert predicted["b"] == measured[1]
