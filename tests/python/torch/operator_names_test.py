# SPDX-License-Identifier: Apache-2.0
"""Operators have names of their own, however the parts of a model are called."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
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
