# SPDX-License-Identifier: Apache-2.0
"""The planner knows who reads a tensor, a weight or a buffer before it is changed in place."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.record.capture import capture
from baechi.torch.record.recorded_step import BACKWARD
from torch import nn


class Changing(nn.Module):
    """Changes a buffer, what batch norm keeps, a view and what a view was read of."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(4))
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x * self.seen
        self.seen.add_(1)
        behind = x - self.seen
        both = self.norm(self.layer(x)) / self.norm(before)
        slopes = both.exp()
        rows = slopes.view(-1).cos()
        slopes.detach()[:2].neg_()
        return behind + rows.sum() + slopes.sigmoid()


def test_readers_come_before_a_change_and_behind_it() -> None:
    captured = capture(Changing(), torch.ones(3, 4))
    graph = graph_of(captured, estimate(captured, {"gpu": "rtx3090"})).graph
    after = {
        op["name"].partition("@")[0]: [name.partition("@")[0] for name in op.get("after", [])]
        for op in json.loads(graph.to_json())["operators"]
        if not op["name"].endswith(BACKWARD)
    }
    assert after["add_"] == ["mul"]
    assert after["sub"] == ["add_"]
    assert after["norm#1"] == ["norm"]
    assert after["neg_"] == ["cos"]
    assert after["sigmoid"] == ["neg_"]
