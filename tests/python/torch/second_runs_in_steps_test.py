# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches run operators a second time, and train as one device does all the same."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import baechi.torch
import baechi.torch.sim as simulated
import pytest
import torch
from baechi.torch.asked import Request
from baechi.torch.micro_batched import StepRequest
from baechi.torch.placing import placed_for_steps
from baechi.torch.run.step_order import Phase
from micro_batch_steps_test import doubled, in_turn, trained
from same_training import EXCLUSIVE, SHARED, check_same
from torch import nn
from torch_models import ALL, built
from training_steps import loss_like

import baechi


def placed_again(model: nn.Module, inputs: Any, micro_batches: int, **options: Any) -> Any:
    """Place a model for steps, by default at random and with all regions run a second time."""
    asked: dict[str, Any] = {
        "cluster": "3x1GiB",
        "devices": EXCLUSIVE,
        "exported": (),
        "recompute": "all",
        "method": "random",
        "bounds": False,
        **options,
    }
    names = ("cluster", "devices", "exported", "recompute")
    request = {name: asked.pop(name) for name in names}
    step = Request(model, inputs, **request, in_steps=True, search=asked)
    return placed_for_steps(StepRequest(step, micro_batches, loss_like, None))


def trains_the_same(name: str, micro_batches: int, cases: Any) -> None:
    """Compare three steps with one device's; a seed places at random and says how late all is."""
    if name not in ALL:
        pytest.skip("transformers is not installed")
    model, inputs = built(ALL[name]).double(), doubled(ALL[name].inputs(8))
    reference = copy.deepcopy(model)
    expected = trained(reference, lambda: in_turn(reference, inputs, micro_batches, loss_like))
    known: list[Any] = []
    for seed, devices in cases:
        mine = copy.deepcopy(model)
        delays = {"longest_delay": "100us", "seed": seed}
        with simulated.configured(devices=4, poison=True, memory="1GiB", **delays):
            placed = placed_again(
                mine, inputs, micro_batches, devices=devices, exported=known, seed=seed
            )
            found = trained(mine, lambda: placed.step(inputs))  # noqa: B023
            known = placed._assigner.graphs.tier2.exported  # traced once
            check_runs(placed)
            placed.restore()
        check_same(expected, found, f"{name}, seed {seed}", rounding=1e-7)


def check_runs(placed: Any) -> None:
    """Every operator of the plan's list runs again, once per micro-batch, where the plan says."""
    ((_, program),) = placed._stepper._programs
    again = {name for name, _ in placed.plan.recomputed}
    assert again
    assert again == {o for i in program.repeated for o in program.segments[i].operators}
    parts = [part for part in program.order if part.phase is Phase.AGAIN]
    assert len(parts) == len(program.repeated) * placed.plan.micro_batches
    starts = placed._stepper._planned.start_of
    for operator in again:
        assert starts(Phase.AGAIN, operator, 0) > starts(Phase.FORWARD, operator, 0)


@pytest.mark.parametrize(("name", "micro_batches"), [("gpt2", 2), ("lstm", 4)])
def test_losses_and_weights_are_those_of_one_device(name: str, micro_batches: int) -> None:
    trains_the_same(name, micro_batches, ((1, EXCLUSIVE),))


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("name", "micro_batches"),
    [("resnet", 1), ("resnet", 4), ("unet", 2), ("t5", 2), ("transformer", 4), ("inception", 2)],
)
def test_any_model_with_second_runs_trains_the_same(name: str, micro_batches: int) -> None:
    trains_the_same(name, micro_batches, ((1, EXCLUSIVE), (2, SHARED), (3, EXCLUSIVE)))


def test_a_step_that_fits_in_no_other_way_has_operators_run_again(tmp_path: Path) -> None:
    """Three forms of the same: planned so, given again, and refused where nothing may."""
    model, inputs = built(ALL["unet"]).double(), doubled(ALL["unet"].inputs(32))
    options: dict[str, Any] = {
        "cluster": "2x1500KiB",
        "devices": EXCLUSIVE[:2],
        "method": "auto",
        "budget": "50ms",
    }
    with pytest.raises(baechi.DoesNotFit, match="with recompute auto it fits"):
        placed_again(model, inputs, 2, recompute="none", **options)
    placed = placed_again(model, inputs, 2, recompute="auto", **options)
    assert placed.plan.recomputed
    assert baechi.verify(placed.plan) == []
    assert all(peak <= 1500 * 1024 for peak in placed.peaks.values())
    placed.plan.save(tmp_path / "plan.json")
    placed.plan.micro_batch_graph.save(tmp_path / "graph.json")
    placed.restore()
    plan = baechi.Plan.load(tmp_path / "plan.json", baechi.Graph.load(tmp_path / "graph.json"))
    assert plan == placed.plan
    with simulated.configured(devices=4, poison=True, memory="1GiB", longest_delay="100us"):
        again = baechi.torch.place(
            model, inputs, plan=plan, loss=loss_like, devices=EXCLUSIVE[:2], recompute="none"
        )
        assert again.plan == plan
        found = trained(model, lambda: again.step(inputs))
        check_runs(again)
    reference = built(ALL["unet"]).double()
    expected = trained(reference, lambda: in_turn(reference, inputs, 2, loss_like))
    check_same(expected, found, "planned", rounding=1e-7)


def test_less_is_held_as_foreseen() -> None:
    """By the plan's own account, which for steps is that of operators and tensors."""
    held, inputs = {}, ALL["transformer"].inputs(32)
    for recompute in ("none", "all"):
        gc.collect()
        with simulated.configured(devices=4, asynchronous=False, memory="1GiB"):
            placed = placed_again(
                built(ALL["transformer"]),
                inputs,
                4,
                recompute=recompute,
                method="m-etf",
                cluster="1x1GiB",
                devices=EXCLUSIVE[:1],
            )
            optimizer = torch.optim.Adam(placed.model.parameters(), 1e-3)
            for _ in range(2):
                simulated.reset_peak_memory_stats(0)
                placed.step(inputs)
                optimizer.step()
                held[recompute] = simulated.max_memory_allocated(0)
                optimizer.zero_grad(set_to_none=False)
            (foreseen,) = placed.peaks.values()
            placed.restore()
        assert 0.97 * held[recompute] <= foreseen <= 1.1 * held[recompute]
    assert held["all"] < 0.95 * held["none"]  # which holds one micro-batch at a time
