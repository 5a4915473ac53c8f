# SPDX-License-Identifier: Apache-2.0
"""Buffers that a forward reads and changes, without gradients or under autocast of its own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from same_training import trains_the_same
from torch import nn
from torch.nn import functional

import baechi

CLUSTER = baechi.Cluster("3xgpu:1GiB")
pytestmark = pytest.mark.usefixtures("asynchronous_devices")


class Codebook(nn.Module):
    """A vector quantiser whose book follows averages of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 8)
        self.decode = nn.Linear(8, 8)
        self.book: torch.Tensor
        self.register_buffer("book", torch.randn(4, 8))
        self.register_buffer("counts", torch.ones(4))
        self.register_buffer("sums", self.book.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.encode(x)
        index = torch.cdist(found, self.book).argmin(1)
        taken = self.book[index]
        with torch.no_grad():
            chosen = functional.one_hot(index, 4).to(found)
            self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(chosen.t() @ found, alpha=0.1)
            self.book.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
        return self.decode(found + (taken - found).detach()) + found * 0.1


class Several(nn.Module):
    """Changes buffers by operators that return nothing, or a copy from another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        for name in ("one", "two", "three"):
            self.register_buffer(name, torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.one
        with torch.no_grad():
            torch._foreach_mul_([self.one, self.two], 0.5)
            self.three.copy_(self.two)
            with torch.enable_grad():
                y = x.sin() + self.two
            self.two.add_(x.sum(0))
        self.one.copy_(self.three)
        return self.second(y + self.one) + self.two


class Precise(nn.Module):
    """Computes in full precision whatever is around it, and changes a buffer there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = (x * x).softmax(-1)
            self.seen.add_(y.detach().sum(0))
            with torch.no_grad():
                self.mean.copy_(self.seen / 2)
        return self.second(y) + self.seen


@pytest.mark.parametrize("kind", [Codebook, Several, Precise])
def test_buffers_that_are_changed_where_no_gradients_are_kept(kind: type) -> None:
    torch.manual_seed(3)
    trains_the_same(kind().double(), torch.randn(6, 8 if kind is Codebook else 4).double(), ran=2)


def test_the_calls_of_a_part_without_gradients_are_operators_of_their_own() -> None:
    graph = baechi.torch.export(Codebook(), torch.randn(6, 8))
    keys = [node.key for node in graph.graph.nodes if node.kind == "call"]
    assert len(set(keys)) == len(keys)
    assert {"copy_@15:copy_", "add_@7:add_"} <= set(keys)
    assert not any(node.is_host for node in graph.graph.nodes if node.writes)


def test_what_changes_several_buffers_keeps_them_together() -> None:
    captured = baechi.torch.capture(Several(), torch.randn(6, 4))
    graph = baechi.torch.graph_of(captured, baechi.torch.estimate(captured, CLUSTER)).graph
    assert "_foreach_mul_@1" in graph.names
    for seed in range(4):
        plan = baechi.place_graph(graph, CLUSTER, method="random", seed=seed, bounds=False)
        assert len({plan.device_of[key] for key in ("add@0", "_foreach_mul_@1", "add@4")}) == 1
