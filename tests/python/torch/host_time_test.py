# SPDX-License-Identifier: Apache-2.0
"""What the host takes to ask for the parts of a step: which plan is taken for it, what is said."""

from __future__ import annotations

import re
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.asked import Request
from baechi.torch.cost.profiler import Costs, estimate
from baechi.torch.micro_batched import PlannedStep, StepRequest
from baechi.torch.planning import Planned
from baechi.torch.run import host_time
from torch import nn

LAYERS = 6
LASTS = 30_000_000  # nanoseconds that a layer takes forward, and twice that backward
BY_WEIGHTS = 100_000  # of that, the gradients of its weights


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(LAYERS)))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def planned(micro_batches: int, *, over_ranks: bool) -> PlannedStep:
    """Return the plan of a chain whose gradients of weights take little of a step."""
    asked = Request(
        chain(),
        torch.randn(16, 64),
        "2x1GiB",
        devices=["cpu", "cpu"],
        costs=lasting(),
        optimizer="none",
        search={"bounds": False, "budget": "1s"},
    )
    step = StepRequest(asked, micro_batches, loss_of, None, over_ranks=over_ranks)
    return PlannedStep(step, micro_batches)


def lasting() -> Costs:
    batch = torch.randn(16, 64)
    probe = Planned(Request(chain(), batch, "2x1GiB", devices=["cpu", "cpu"], loss=loss_of))
    costs = estimate(probe.captured, probe.cluster, adding=True)
    for key in map(str, range(LAYERS)):
        costs.ops[key].forward["gpu"] += LASTS
        costs.ops[key].backward["gpu"] += 2 * LASTS + BY_WEIGHTS
        costs.ops[key].by_weights["gpu"] = BY_WEIGHTS
    return costs


def parts_of(found: PlannedStep) -> int:
    return round(host_time.host_time(found.step_plan).parts / host_time.PER_PART)


def test_a_chain_of_one_micro_batch_is_not_cut_for_less_than_its_parts_take() -> None:
    """Over ranks of CPUs, which ask for parts in the time in which they would compute."""
    cut, whole = planned(1, over_ranks=False), planned(1, over_ranks=True)
    assert cut.plan.makespan_ns < whole.plan.makespan_ns < 1.01 * cut.plan.makespan_ns
    assert parts_of(whole) <= 4 < 12 <= parts_of(cut)


def test_several_micro_batches_are_cut_where_that_gains_more() -> None:
    assert len(set(planned(4, over_ranks=True).plan.devices)) == 2


def test_hosts_of_ranks_ask_at_the_same_time() -> None:
    step = planned(4, over_ranks=True).step_plan
    together, apart = host_time.host_time(step), host_time.host_time(step, hosts_apart=True)
    assert together.total / 2 <= apart.total < together.total


def test_a_placed_model_says_that_its_host_is_the_slower_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how: dict[str, Any] = {"devices": ["cpu", "cpu"], "loss": loss_of, "bounds": False}
    placed = baechi.torch.place(
        chain(), torch.randn(16, 64), "2x1GiB", micro_batches=4, verbose=False, **how
    )
    said = str(placed)
    line = re.search(
        r"^the host takes about (.+) to ask for what devices do in (.+), so", said, re.M
    )
    assert line is not None
    assert line[2] in said.split("\n")[0]  # the step of the plan
    assert "take fewer micro-batches, larger batches, or a plan of fewer parts" in said
    assert "the host takes about" in placed._repr_html_()
    monkeypatch.setattr(host_time, "PER_PART", 0)
    monkeypatch.setattr(host_time, "PER_OPERATOR", 0)
    assert "the host takes about" not in str(placed)
    placed.restore()
