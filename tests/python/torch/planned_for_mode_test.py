# SPDX-License-Identifier: Apache-2.0
"""The plan is made for the order in which the mode runs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from torch import nn

import baechi


class LateSpark(nn.Module):
    """A long branch, then a short one that shares its first weight and feeds another device's.

    In the order of the program the short one waits for all of the long branch, as they are on one
    device; in that of a plan it comes first and both branches run side by side.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.spark = nn.Linear(width, width), nn.Linear(width, width)
        self.spark.weight = self.first.weight
        self.long = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.other = nn.Sequential(*(nn.Linear(width, width) for _ in range(5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both branches."""
        return self.long(self.first(x)) + self.other(self.spark(x[:8]).repeat(x.shape[0] // 8, 1))


def placed_spark(mode: str) -> baechi.torch.Placed:
    """Place it on two devices that are the CPU."""
    torch.manual_seed(0)
    model, x = LateSpark(512).eval(), torch.randn(1024, 512)
    cluster = baechi.Cluster("2xcpu:1GiB", link="1us,100GB/s")
    with torch.no_grad():
        return baechi.torch.place(model, x, cluster, mode=mode, budget=0.1)


def test_the_plan_is_made_for_the_order_of_the_mode() -> None:
    placed, ordered = placed_spark("streams"), placed_spark("streams+order")
    assert placed.plan is not None
    assert ordered.plan is not None
    assert (placed.plan.order, ordered.plan.order) == ("program", "planned")
    assert ordered.plan.makespan_ns < placed.plan.makespan_ns
    for plan in (placed.plan, ordered.plan):
        assert baechi.verify(plan) == []
    replay = ordered.plan.with_order("program")  # what was predicted for a plan of no such order
    assert placed.plan.makespan_ns <= replay.makespan_ns


def test_the_order_is_not_an_option() -> None:
    with pytest.raises(baechi.InputError, match="order follows from the mode"):
        baechi.torch.place(nn.Linear(4, 4), torch.ones(2, 4), "2x1GiB", order="none")
