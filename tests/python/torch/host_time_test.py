# SPDX-License-Identifier: Apache-2.0
"""What the host takes to ask for the parts of a step: which plan is taken for it, what is said."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.summary import in_time
from baechi.torch.asked import Request
from baechi.torch.cost.profiler import Costs, estimate
from baechi.torch.micro_batched import PlannedStep, StepRequest
from baechi.torch.planning import Planned
from baechi.torch.run import host_time
from baechi.torch.run.stepping import Hosts, StepPlan
from torch import nn

LAYERS = 6
LASTS = 30_000_000  # nanoseconds that a layer takes forward, and twice that backward
BY_WEIGHTS = 100_000  # of that, the gradients of its weights


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(LAYERS)))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def planned(micro_batches: int, *, over_ranks: bool, **search: Any) -> PlannedStep:
    """Return the plan of a chain whose gradients of weights take little of a step."""
    asked = Request(
        chain(),
        torch.randn(16, 64),
        "2x1GiB",
        devices=["cpu", "cpu"],
        costs=lasting(),
        optimizer="none",
        search={"bounds": False, "budget": "1s", **search},
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
    together, apart = (host_time.host_time(replace(step, hosts=h)) for h in (Hosts.ONE, Hosts.EACH))
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
    assert "take fewer micro-batches, " in said
    assert "the host takes about" in placed._repr_html_()
    monkeypatch.setattr(host_time, "PER_PART", 0)
    monkeypatch.setattr(host_time, "PER_OPERATOR", 0)
    assert "the host takes about" not in str(placed)
    placed.restore()


def advice(step: StepPlan) -> str:
    """Return what is said to do about a host that is slow, however short devices compute."""
    return host_time.waits_for_host(step).rpartition(": take ")[2]


@pytest.fixture
def slow_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_time, "PER_PART", 1_000_000_000)


@pytest.mark.usefixtures("slow_host")
def test_what_is_said_to_do_is_what_can_help() -> None:
    """No stages of one micro-batch, none that were tried, no fewer devices than one."""
    several, larger = "fewer micro-batches, ", "larger batches"
    fewer = f"{larger}, or a plan of fewer parts"
    chained = planned(4, over_ranks=False, method="chain").step_plan
    assert len(set(chained.plan.devices)) == 2
    assert advice(chained) == f"{several}{fewer} (fewer devices, or method='pipeline')"
    assert advice(replace(chained, compared=True)) == f"{several}{fewer} (fewer devices)"
    assert advice(replace(chained, hosts=Hosts.EACH)) == f"{several}{fewer} (method='pipeline')"
    staged = planned(4, over_ranks=False, method="pipeline").step_plan
    assert len(set(staged.plan.devices)) == 2
    assert advice(staged) == f"{several}{fewer} (fewer devices)"
    auto = planned(4, over_ranks=False).step_plan
    assert "pipeline" not in advice(auto)
    single = planned(4, over_ranks=False, method="single").step_plan
    assert advice(single) == "fewer micro-batches, or larger batches"
    assert advice(planned(1, over_ranks=False, method="single").step_plan) == larger
    one = planned(1, over_ranks=False, method="random").step_plan
    assert len(set(one.plan.devices)) == 2
    assert advice(one) == f"{fewer} (fewer devices)"
    assert advice(replace(one, hosts=Hosts.DEVICES)) == larger


def test_fewer_parts_are_not_advised_where_operators_take_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_time, "PER_OPERATOR", 1_000_000_000)
    step = planned(4, over_ranks=False, method="chain").step_plan
    assert advice(step) == "fewer micro-batches, or larger batches"


def test_over_ranks_of_cpus_the_line_says_what_plans_are_compared_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is measured of an operator there has its call in it."""
    found = planned(4, over_ranks=True)
    step = found.step_plan
    assert step.hosts is Hosts.DEVICES
    monkeypatch.setattr(host_time, "PER_OPERATOR", 1_000_000_000)
    assert host_time.waits_for_host(step) == ""
    monkeypatch.setattr(host_time, "PER_PART", 1_000_000_000)
    parts = host_time.host_time(step).parts
    assert found.takes_ns == step.plan.makespan_ns + parts
    asks, computes, takes = map(in_time, (parts, step.plan.makespan_ns, found.takes_ns))
    said = host_time.waits_for_host(step)
    assert said.startswith(
        f"a host takes about {asks} to ask for parts, and computes for {computes}, so that a step "
        f"takes about {takes}: take "
    )
