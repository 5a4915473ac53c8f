# SPDX-License-Identifier: Apache-2.0
"""Buffers that a forward reads and changes, and weights that hooks compute of others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.placing import assign
from baechi.torch.trace.exported import export
from same_training import trains_the_same
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

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


class Observed(nn.Module):
    """Scales by limits that have a size once data were seen, as observers of a quantiser do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.high: torch.Tensor
        self.register_buffer("high", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        with torch.no_grad():
            highest = found.abs().amax(0)
            if self.high.numel() == 0:
                self.high.resize_(highest.shape)
                self.high.copy_(highest / 2)
            else:
                self.high.copy_(torch.maximum(self.high, highest))
        return self.second(found / self.high)


@pytest.mark.repeats
@pytest.mark.parametrize("kind", [Codebook, Several, Precise])
def test_buffers_that_are_changed_where_no_gradients_are_kept(kind: type) -> None:
    torch.manual_seed(3)
    trains_the_same(kind().double(), torch.randn(6, 8 if kind is Codebook else 4).double(), ran=2)


@pytest.mark.filterwarnings("ignore:Observed ran")
def test_buffers_that_get_their_size_in_the_first_call() -> None:
    torch.manual_seed(3)
    trains_the_same(Observed().double(), torch.randn(6, 4).double(), seeds=(1,), ran=1)


def test_the_calls_of_a_part_without_gradients_are_operators_of_their_own() -> None:
    graph = export(Codebook(), torch.randn(6, 8))
    keys = [node.key for node in graph.graph.nodes if node.kind == "call"]
    assert len(set(keys)) == len(keys)
    assert {"copy_@15:copy_", "add_@7:add_"} <= set(keys)
    assert not any(node.is_host for node in graph.graph.nodes if node.writes)


def test_what_changes_several_buffers_keeps_them_together() -> None:
    captured = baechi.torch.capture(Several(), torch.randn(6, 4))
    graph = graph_of(captured, estimate(captured, CLUSTER)).graph
    assert "_foreach_mul_@1" in graph.names
    for seed in range(4):
        plan = baechi.place_graph(graph, CLUSTER, method="random", seed=seed, bounds=False)
        assert len({plan.device_of[key] for key in ("add@0", "_foreach_mul_@1", "add@4")}) == 1


def _batch(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, m.mean, m.var, training=True)


def _instance(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.instance_norm(x[None], m.mean[1:], m.var[1:], use_input_stats=True)[0]


def _listed(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        torch._foreach_add_([m.mean, m.var], [x.mean(0), x.var(0)])
    return x + 1


def _renormed(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + functional.embedding((x[:, 0] > 0).long(), m.table, max_norm=0.5).sum()


class Between(nn.Module):
    """Reads buffers, has something change them, and reads them again."""

    def __init__(self, change: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("var", torch.rand(4) + 1)
        self.register_buffer("table", torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.mean
        x = x + self.var + self.table[0]
        x = self.change(self, x)
        return self.second(x + self.mean + self.var + self.table[2])


@pytest.mark.repeats
@pytest.mark.parametrize("change", [_batch, _instance, _listed, _renormed])
@pytest.mark.parametrize("tier", [1, 2])
def test_by_hand_a_buffer_is_changed_elsewhere_than_it_is(change: Any, tier: int) -> None:
    torch.manual_seed(3)
    plain, x = Between(change).double(), torch.randn(3, 4).double()
    model = copy.deepcopy(plain)
    captured = baechi.torch.capture(model, x)
    early = {"first", "add@0", "add@1", "__getitem__@2", "add@3"}
    places = {op.key: "a" if op.key in early else "b" for op in captured.ops}
    for second in ("b", "c"):  # of the buffers that are read behind the first
        places["add@1"] = second
        devices = {name: f"sim:{i}" for i, name in enumerate("abc")}
        placed = assign(model, captured, places, devices, tier=tier)
        for _ in range(3):
            torch.testing.assert_close(model(x), plain(x))
        assert placed.tier == tier
        placed.restore()
        for name, buffer in plain.named_buffers():
            torch.testing.assert_close(model.get_buffer(name), buffer)


def _pruned(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():  # what it computes at once could not be copied otherwise
        return prune.random_unstructured(layer, "weight", amount=0.5)


@pytest.mark.repeats
@pytest.mark.parametrize("hooked", [nn.utils.spectral_norm, _pruned])
def test_weights_that_hooks_compute(hooked: Callable[[nn.Linear], nn.Linear]) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(hooked(nn.Linear(4, 6)), nn.Tanh(), hooked(nn.Linear(6, 4)))
    trains_the_same(model.double(), torch.randn(5, 4).double(), tiers=(1,))
