# SPDX-License-Identifier: Apache-2.0
"""The stages: a plan is made without placing, kept, and placed later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch import planning
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
        *("capture", "deferred_weights", "measure", "plan", "place"),
        *("Capture", "Costs", "Placed", "RankError", "Verification"),
        *("device_map", "load_pt2", "module_fqns_per_model_part", "split_spec"),
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


def tight(peaks: dict[str, int]) -> str:
    return "+".join(f"1x{peak}B" for peak in peaks.values())


def test_a_plan_made_before_must_leave_room_for_gradients_or_says_so() -> None:
    how: dict[str, Any] = {"devices": ["cpu"] * 2, "tier": 1, "optimizer": "sgd"}
    x = torch.ones(256, 8)
    ample = baechi.torch.plan(layers(64), x, "2x1GiB", method="random", seed=3, **how)
    assert len(set(ample.device_of.values())) == 2

    def peaks(gradients: str) -> dict[str, int]:
        placed = baechi.torch.place(layers(64), x, plan=ample, gradients=gradients, **how)
        placed.restore()
        return placed.peaks

    held, freed = peaks("held"), peaks("freed")
    between = {d: (held[d] + freed[d]) // 2 for d in held}
    assert any(held[d] > between[d] > freed[d] for d in held)
    cluster = baechi.Cluster(tight(between))
    plan = baechi.simulate(ample.graph, cluster, ample.device_of, ample.order)
    with pytest.warns(UserWarning, match=r"call zero_grad\(\) before each forward") as said:
        placed = baechi.torch.place(layers(64), x, plan=plan, **how)
    assert [warning.filename for warning in said] == [__file__]
    assert (placed.gradients, placed.peaks) == ("freed", freed)
    placed.restore()
    with pytest.raises(baechi.DoesNotFit, match=r"bytes short in the plan that was given") as held_:
        baechi.torch.place(layers(64), x, plan=plan, gradients="held", **how)
    assert held_.value.short_by == max(held[d] - between[d] for d in held)
    small = baechi.Cluster(tight({d: size - 512 for d, size in freed.items()}))
    plan = baechi.simulate(ample.graph, small, ample.device_of, ample.order)
    for gradients in ("auto", "freed"):
        with pytest.raises(baechi.DoesNotFit, match="512 bytes short in the plan"):
            baechi.torch.place(layers(64), x, plan=plan, gradients=gradients, **how)


def test_a_graph_has_the_peaks_of_its_tier_under_a_plan_made_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how: dict[str, Any] = {"devices": ["cpu"] * 2}
    placed = baechi.torch.place(layers(), X, "2x1GiB", method="random", seed=3, **how)
    again = baechi.torch.place(layers(), X, plan=placed.plan, **how)
    assert set(again.tier_peaks) == {1, 2}
    assert again.tier_peaks == placed.tier_peaks
    monkeypatch.setattr(planning, "_too_large", lambda *_: "its graph has no room")
    model = layers()
    without = baechi.torch.place(model, X, plan=placed.plan, **how)
    model(X)
    assert (without.tier, without.graphs, set(without.tier_peaks)) == (1, 0, {1})
    assert without.tier_note == "its graph has no room"


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize("cluster", ["2x1GiB", "1x1GiB+1xcpu:1GiB"])
def test_memory_is_that_of_the_cluster_where_its_devices_are_not_there(cluster: str) -> None:
    devices = ["sim:0", "cpu" if "cpu" in cluster else "sim:1"]
    how: dict[str, Any] = {"method": "random", "seed": 3, "optimizer": "adam", "tier": 1}
    there = baechi.torch.plan(layers(64), X, cluster, devices=devices, **how)
    absent = baechi.torch.plan(layers(64), X, cluster, **how)
    assert absent.device_of == there.device_of
    assert len(set(there.device_of.values())) == 2
    assert absent.run_peaks == there.run_peaks
