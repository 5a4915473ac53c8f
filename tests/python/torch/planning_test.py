# SPDX-License-Identifier: Apache-2.0
"""The stages: a plan is made without placing, kept, and placed later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from torch import nn

import baechi

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def layers(width: int = 8, count: int = 3) -> Any:
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Linear(8 if i == 0 else width, width) for i in range(count)))


def trained(model: Any) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_the_stages_and_what_they_return_are_all_that_is_public() -> None:
    assert set(baechi.torch.__all__) == {
        *("capture", "measure", "plan", "place"),
        *("Capture", "Costs", "Placed", "Verification"),
        *("device_map", "load_pt2", "split_spec"),
    }


@pytest.mark.parametrize("level", ["module", "operator"])
def test_a_plan_is_saved_and_placed_later(level: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"devices": ["cpu"] * 3, "level": level}
    plan = baechi.torch.plan(layers(), X, "3x1GiB", method="random", seed=3, bounds=False, **how)
    assert len(set(plan.device_of.values())) > 1
    plan.save(tmp_path / "plan.json")
    loaded = baechi.Plan.load(tmp_path / "plan.json", plan.graph)
    model = layers()
    placed = baechi.torch.place(model, X, plan=loaded, **how)
    assert placed.plan is loaded
    assert placed.peaks.keys() == set(placed.plan.device_of.values()) | placed.peaks.keys()
    assert {placed.weight_devices[f"{i}.weight"] for i in range(3)} == {
        plan.device_of[name] for name in plan.graph.names if name[0] in "012"
    }
    found = trained(model)
    placed.restore()
    for mine, truth in zip(found, trained(layers()), strict=True):
        torch.testing.assert_close(mine, truth)


def test_peaks_of_a_plan_made_before_are_those_of_place() -> None:
    how: dict[str, Any] = {"devices": ["cpu"] * 2, "tier": 1}
    placed = baechi.torch.place(layers(), X, "2x1GiB", method="random", seed=3, **how)
    again = baechi.torch.place(layers(), X, plan=placed.plan, **how)
    assert (
        (again.peaks, again.gradients) == (placed.peaks, placed.gradients) == (placed.peaks, "held")
    )
    freed = baechi.torch.place(layers(), X, plan=placed.plan, gradients="freed", **how)
    assert freed.gradients == "freed"
    assert sum(freed.peaks.values()) < sum(placed.peaks.values())


def test_planning_leaves_a_model_as_it_is() -> None:
    model = layers()
    before = [(p, p.device, p.detach().clone()) for p in model.parameters()]
    state = torch.get_rng_state()
    plan = baechi.torch.plan(model, X, "2x1GiB", tier=2)
    assert isinstance(plan, baechi.Plan)
    for parameter, device, value in before:
        assert parameter.device == device
        assert parameter.grad is None
        assert torch.equal(parameter, value)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(model(X).grad_fn).__name__ == "AddmmBackward0"


def test_neither_weights_nor_devices_need_be_there() -> None:
    with torch.device("meta"):
        model, x = layers(4096, 6), torch.empty(4, 8)
    plan = baechi.torch.plan(model, x, "4xrtx3090")
    assert len(plan.cluster) == 4
    assert plan.run_peaks
    assert all(p.is_meta for p in model.parameters())
    with pytest.raises(baechi.DoesNotFit):
        baechi.torch.plan(model, x, "2x64MiB")
    with pytest.raises(baechi.InputError, match=r"meta device.*only plan it: baechi\.torch\.plan"):
        baechi.torch.place(model, x, "4xrtx3090")


def test_a_plan_of_another_step_is_refused() -> None:
    plan = baechi.torch.plan(layers(count=2), X, "2x1GiB", devices=["cpu"] * 2)
    with pytest.raises(baechi.InputError, match="says nothing of operator '2' of Sequential"):
        baechi.torch.place(layers(), X, plan=plan, devices=["cpu"] * 2)


def test_measuring_needs_no_recorded_step() -> None:
    captured = baechi.torch.capture(layers(), X)
    costs = baechi.torch.measure(layers(), X, repeats=1, warm_up=0)
    assert costs.ops.keys() <= {op.key for op in captured.ops}
    plan = baechi.torch.plan(layers(), X, "2x1GiB", costs=costs)
    assert plan.graph["0"].times == costs.ops["0"].forward
