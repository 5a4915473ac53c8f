# SPDX-License-Identifier: Apache-2.0
"""A graph that runs in another order than its program computes the same."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.trace.exported import export
from baechi.torch.trace.schedule import planned_order
from changing_model import changing, changing_graph, changing_placed
from random_placement import placed_at_random
from torch import nn
from training_steps import close, train


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["plain", "streams", "streams+order"])
def test_changes_in_place_are_seen_by_those_who_read_later(seed: int, mode: str) -> None:
    batches = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 2)]
    plain, placed = changing(), changing_placed(seed, mode=mode)
    close(train(plain, batches), train(placed.model, batches))
    assert placed.tier == 2
    torch.testing.assert_close(placed.model.seen.cpu(), plain.seen)


class Branches(nn.Module):
    """Branches of different lengths, each of which draws random numbers at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Linear(8, 8) for _ in range(n)), nn.Dropout(0.5))
            for n in (5, 1, 3, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def in_conflict(graph: Any, a: Any, b: Any) -> bool:
    """Whether `b` of the program has to stay behind `a`."""

    def seen(node: Any) -> set[int]:
        return {s for r in node.reads for s in graph.nodes[r].storages} | set(node.storages)

    def changed(node: Any) -> set[int]:
        return {s for w in node.writes for s in graph.nodes[w].storages}

    both = changed(a) & seen(b) | seen(a) & changed(b)
    return bool(both) or a.index in b.reads or (a.random and b.random)


def _start(starts: dict[int, int], node: Any) -> int | None:
    return starts.get(node.index)


@pytest.mark.parametrize("kind", ["branches", "changing"])
def test_any_planned_order_keeps_data_changes_and_random_numbers(kind: str) -> None:
    torch.manual_seed(7)
    inputs = torch.ones(4, 8)
    exported = changing_graph() if kind == "changing" else export(Branches(), inputs)
    graph = exported.graph
    pairs = [
        (a.index, b.index)
        for b in graph.nodes
        for a in graph.nodes[: b.index]
        if in_conflict(graph, a, b)
    ]
    other = 0
    for seed in range(30):
        chance = random.Random(seed)
        starts = {node.index: chance.randrange(50) for node in graph.nodes if chance.random() < 0.8}
        start_of = functools.partial(_start, starts)
        order = planned_order(graph, start_of, lambda _: 0)
        assert sorted(order) == [node.index for node in graph.nodes]
        place = {n: i for i, n in enumerate(order)}
        assert all(place[a] < place[b] for a, b in pairs), seed
        other += order != sorted(order)
    assert other > 20


@pytest.mark.parametrize("mode", ["streams", "streams+order"])
def test_random_numbers_are_those_of_the_unplaced_model(mode: str) -> None:
    inputs = torch.ones(4, 8)
    results = []
    for where in ("plain", "placed"):
        torch.manual_seed(7)
        model = Branches()
        if where == "placed":
            placed_at_random(model, inputs, 4, seed=2, tier=2, mode=mode)
        torch.manual_seed(11)
        results.append(train(model, [inputs] * 3))
    close(*results)
