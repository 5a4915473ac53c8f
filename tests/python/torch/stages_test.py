# SPDX-License-Identifier: Apache-2.0
"""The stages of `place`, one by one: each result can be kept and goes into the next."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import baechi.torch
import pytest
import torch
from torch import nn

import baechi

X = torch.ones(8, 16)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


def test_stages_go_through_files_and_place_the_model(sim: ModuleType, tmp_path: Path) -> None:
    sim.configure(devices=2, memory="1GiB")
    net = model()
    step = baechi.torch.capture(net, X)
    costs = baechi.torch.measure(net, X, step, devices={"gpu": "sim:0"})
    assert costs.runs == len({*costs.times}) - 2  # and two that move bytes
    costs.save(tmp_path / "costs.json")
    known = baechi.torch.Costs.load(tmp_path / "costs.json")
    assert known.times == costs.times
    plan = baechi.torch.plan(net, X, "2x1GiB", costs=known)
    plan.save(tmp_path / "plan.json")
    plan = baechi.Plan.load(tmp_path / "plan.json", plan.graph)
    net(X).mean().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    placed = baechi.torch.place(net, X, plan=plan, costs=known)
    net(X).mean().backward()
    for p, gradient in zip(net.parameters(), expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.cpu(), gradient)
    placed.restore()


def test_costs_of_any_kind_are_measured_without_weights() -> None:
    with torch.device("meta"):
        empty = model()
    costs = baechi.torch.measure(empty, X)
    assert {kind for times in costs.times.values() for kind in times} == {"*"}
    assert baechi.torch.plan(empty, X, "4xrtx3090", costs=costs).makespan_ns > 0
    again = baechi.torch.measure(empty, X, known=costs)
    assert again.runs == 0


def test_a_step_without_gradients_is_a_forward() -> None:
    with torch.no_grad():
        step = baechi.torch.capture(model(), X)
    assert [one.kind for one in step.outputs] == ["output"]
    assert baechi.torch.capture(model(), X).is_training
    with pytest.raises(baechi.InputError, match="name one that can compute"):
        baechi.torch.measure(model(), X, devices="meta")
    with pytest.raises(baechi.InputError, match="'cuda:9' is no device here"):
        baechi.torch.measure(model(), X, devices={"gpu": "cuda:9"})
