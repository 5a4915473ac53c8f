# SPDX-License-Identifier: Apache-2.0
"""Which micro-batch of a plan is which of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from baechi.torch.run.step_order import Phase
from baechi.torch.run.stepping import StepPlan


def step_plan(starts: dict[str, int], operators: list[str], micro_batches: int) -> StepPlan:
    plan: Any = SimpleNamespace(
        graph=SimpleNamespace(names=list(starts)),
        micro_batch_graph=SimpleNamespace(names=operators),
        starts=list(starts.values()),
        ends=[start + 1 for start in starts.values()],
        transfers=[("a@2", 0, "gpu:1", 0, 0, 1, 2)],
    )
    return StepPlan(plan, micro_batches, 6, lambda output: output, has_targets=False)


def test_the_first_samples_are_those_whose_loss_a_plan_has_first() -> None:
    starts = {"a@0": 1, "a@1": 2, "a@2": 0}
    starts |= {"a:backward@0": 30, "a:backward@1": 20, "a:backward@2": 10}
    step = step_plan(starts, ["a", "a:backward"], 3)
    assert [step.start_of(Phase.FORWARD, "a", m) for m in range(3)] == [0, 2, 1]
    assert [step.start_of(Phase.BACKWARD, "a", m) for m in range(3)] == [10, 20, 30]
    assert [step.end_of(Phase.BACKWARD, "a", m) for m in range(3)] == [11, 21, 31]
    assert [step.sent_at(Phase.FORWARD, "a", m, "gpu:1") for m in range(3)] == [[1], [], []]


def test_without_a_backward_the_numbers_are_those_of_the_plan() -> None:
    step = step_plan({"a@0": 3, "a@1": 0}, ["a"], 2)
    assert [step.start_of(Phase.FORWARD, "a", m) for m in range(2)] == [3, 0]
