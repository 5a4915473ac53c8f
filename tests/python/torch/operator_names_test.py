# SPDX-License-Identifier: Apache-2.0
"""Operators have names of their own, however the parts of a model are called."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.trace.exported import export
from same_training import trains_the_same
from torch import nn

pytestmark = pytest.mark.usefixtures("asynchronous_devices")


class Frequencies(nn.Module):
    """Has no weights, and functions inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Identity()

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.sin(t), torch.cos(self.scale(t))], -1)


class Embedding(nn.Module):
    """What a block and the model around it call, as in a diffusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies, self.out = Frequencies(), nn.Linear(16, 8)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.out(self.frequencies(t))


class Block(nn.Module):
    """Calls its embedding twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.linear = Embedding(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.embed(t) * self.embed(t * 2)


class Reaching(nn.Module):
    """Calls parts of its parts, and has parts with names that are used elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.loss, self.inputs = Block(), Frequencies(), nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = self.block(self.inputs(x), t)
        x = self.last(x) + self.block.embed(t) + self.block.embed(t + 1)
        return self.loss(x)[:, :8] + self.block.embed.out(self.loss(x)) + x


def test_parts_that_are_called_by_their_parent_and_directly() -> None:
    torch.manual_seed(3)
    inputs = (torch.randn(4, 8).double(), torch.randn(4, 8).double())
    model = Reaching().double()
    keys = [op.key for op in baechi.torch.capture(model, inputs).ops]
    assert len(set(keys)) == len(keys)
    assert {
        "block.embed.out",
        ">block.embed.out",
        ">block.embed#1.out",
        ">>block.embed.out",
    } <= set(keys)
    trains_the_same(model, inputs, ran=2)


class Bounded(nn.Module):
    """Takes as many rows as there are, at most: of an open size a trace makes a call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = min(x.shape[0], max(2, int(1.25 * x.shape[0])))
        return (self.linear(x) * 2).topk(rows, 0).values.sin().cos()


def test_arithmetic_on_sizes_does_not_shift_the_names_of_what_follows() -> None:
    model, x = Bounded(), torch.randn(6, 4)
    recorded = {op.key for op in baechi.torch.capture(model, x).ops}
    calls = [node for node in export(model, x).graph.nodes if node.kind == "call"]
    named = {node.owner for node in calls if not node.is_host}
    assert named <= recorded
    assert {"mul@0", "topk@1", "sin@2", "cos@3"} <= named
