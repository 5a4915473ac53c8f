# SPDX-License-Identifier: Apache-2.0
"""Second runs: what the plan runs again, or the model by a checkpoint, is held by nobody."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from places import mean_square, virtual_ns
from step_models import module
from torch import nn
from torch.utils.checkpoint import checkpoint

import baechi

WIDTH, ROWS = 32, 512
X = torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)


@module(
    lambda checkpoints=False: {
        "checkpoints": checkpoints,
        "layers": nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.GELU(), nn.Linear(WIDTH, WIDTH)
            )
            for _ in range(4)
        ),
    }
)
def Layers(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Layers with activations of several kinds, each of which may be a checkpoint."""
    for layer in self.layers:
        x = x + (checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x))
    return x


def trained(
    recompute: str, *, parts: int | None = None, cluster: str = "1x1GiB", **of: Any
) -> tuple[Any, torch.Tensor, list[torch.Tensor], list[int]]:
    """Return what was placed, its loss, its gradients, and the peak of a second step."""
    gc.collect()
    torch.manual_seed(1)
    model = Layers(**of)
    placed = baechi.torch.place(
        model,
        X,
        cluster,
        loss=mean_square,
        micro_batches=parts,
        recompute=recompute,
        optimizer="sgd",
        budget="0.3s",
    )
    batch = X.to("sim:0")
    devices = range(len(placed.runs_on))
    for _ in range(2):
        model.zero_grad()
        for i in devices:
            torch.accelerator.reset_peak_memory_stats(i)
        torch.manual_seed(3)
        if parts:
            loss = placed.step(batch)
        else:
            loss = mean_square(model(batch))
            loss.backward()
    peaks = [torch.accelerator.max_memory_allocated(i) for i in devices]
    gradients = [p.grad.to("cpu", copy=True) for p in model.parameters() if p.grad is not None]
    assert len(gradients) == 16
    placed.restore()
    return placed, loss.detach().cpu(), gradients, peaks


@pytest.mark.parametrize("parts", [None, 2])
def test_second_runs_give_the_same_gradients_and_a_lower_peak(
    sim: ModuleType, parts: int | None
) -> None:
    sim.configure(devices=1, memory="1GiB")
    plain, loss, gradients, (peak,) = trained("none", parts=parts)
    assert plain.plan.recomputed == []
    assert "@again" not in plain.program
    twice, other_loss, other_gradients, (lower,) = trained("all", parts=parts)
    assert any("native_dropout" in key for key in twice.planned.again)
    assert "@again" in twice.program
    torch.testing.assert_close(other_loss, loss, rtol=0, atol=0)
    torch.testing.assert_close(other_gradients, gradients, rtol=0, atol=0)
    assert lower < (0.9 if parts else 0.6) * peak


@pytest.mark.parametrize("recompute", ["none", "all"])
@pytest.mark.parametrize("parts", [None, 2])
def test_a_checkpoint_in_the_model_runs_again(
    sim: ModuleType, parts: int | None, recompute: str
) -> None:
    sim.configure(devices=1, memory="1GiB")
    _, loss, gradients, (peak,) = trained("none", parts=parts)
    placed, other_loss, other_gradients, (lower,) = trained(
        recompute, parts=parts, checkpoints=True
    )
    assert placed.left_out == []
    assert "@again" in placed.program
    torch.testing.assert_close(other_loss, loss, rtol=0, atol=0)
    torch.testing.assert_close(other_gradients, gradients, rtol=0, atol=0)
    assert lower < (0.9 if parts else 0.7) * peak


def test_a_plan_has_what_checkpoints_run_again_in_it(sim: ModuleType) -> None:
    kernels = {"operator_time": "100us", "memory_bandwidth": "1GB/s"}
    link = sim.Link("5us", "10GB/s")
    sim.configure(devices=2, asynchronous=False, clock="virtual", link=link, **kernels)
    torch.manual_seed(1)
    model = Layers(checkpoints=True)
    search = baechi.torch.Search(method="random", seed=4)
    placed = baechi.torch.place(
        model, X, "2x1GiB", loss=mean_square, costs="measure", search=search
    )
    again = {key for key in placed.planned.step.keys.values() if key.endswith("@again")}
    kinds = {key.rpartition(":")[0].rpartition(":")[2] for key in again}
    assert {"addmm", "native_dropout", "gelu"} <= kinds
    homes = placed.planned.device_of_key
    assert all(homes[key] == homes[key.removesuffix("@again")] for key in again)
    batch = X.to("sim:0")
    taken = virtual_ns(lambda: mean_square(model(batch)).backward())
    # Beside the plan: the gradient of the loss, and that of what the model returns.
    assert taken == pytest.approx(placed.plan.makespan_ns, rel=0.03)
    placed.restore()


@pytest.mark.parametrize("parts", [None, 2])
def test_what_fits_with_second_runs_alone_runs_in_that_memory(
    sim: ModuleType, parts: int | None
) -> None:
    sim.configure(devices=2, memory=f"{SMALL[parts] + ROOM}KiB")
    with pytest.raises(baechi.DoesNotFit, match="with recompute auto it fits"):
        trained("none", parts=parts, cluster=f"2x{SMALL[parts]}KiB")
    placed, *_ = trained("auto", parts=parts, cluster=f"2x{SMALL[parts]}KiB")
    assert placed.plan.recomputed


ROOM = 192  # KiB for the batch, and for what autograd holds of an output and of its gradient
SMALL = {None: 520, 2: 300}  # KiB of each device
