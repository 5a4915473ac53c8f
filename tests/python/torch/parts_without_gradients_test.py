# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches of models that run a part of their forward without gradients.

Views that are made there say that they require gradients, and autograd knows of none.
"""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")

import baechi.torch.sim as simulated
import torch
from micro_batch_steps_test import in_turn, placed_for, trained
from same_training import EXCLUSIVE, SHARED, check_same
from torch import nn

WIDTH = 8


class Slots(nn.Module):
    """Finds where its slots belong without gradients, and takes one more step with them."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.queries = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.start = nn.Parameter(torch.randn(3, WIDTH))
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def _found(self, keys: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        shares = (keys @ self.queries(slots).mT).softmax(-1)
        read = (shares / shares.sum(1, keepdim=True)).mT @ keys
        return self.cell(read.flatten(0, 1), slots.flatten(0, 1)).view(slots.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = self.keys(x)
        with torch.no_grad():
            slots = self.start.expand(len(x), -1, -1)
            slots = self._found(keys, slots)
        return self._found(keys, slots) + self.start


class BestPath(nn.Module):
    """A conditional random field: the best path without gradients, then its score with them."""

    def __init__(self, labels: int = 4) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, labels)
        self.follows = nn.Parameter(torch.randn(labels, labels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x)
        with torch.no_grad():
            best, before = scores[:, 0], []
            for now in scores.unbind(1)[1:]:
                best, came = (best[:, :, None] + self.follows + now[:, None]).max(1)
                before.append(came)
            path = [best.argmax(1)]
            for came in reversed(before):
                path.append(came.gather(1, path[-1][:, None])[:, 0])
            steps = torch.stack(path[::-1], 1)
        total = scores[:, 0]
        for now in scores.unbind(1)[1:]:
            total = torch.logsumexp(total[:, :, None] + self.follows + now[:, None], 1)
        chosen = scores.gather(2, steps[..., None]).sum((1, 2))
        chosen = chosen + self.follows[steps[:, :-1], steps[:, 1:]].sum(1)
        return total.logsumexp(1) - chosen


class Turned(nn.Module):
    """Reads views of a value and of a weight that it made without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        with torch.no_grad():
            halves, turned = hidden[..., :4], self.first.weight.t()
        return self.second(torch.tanh(hidden)) @ turned + halves.mean()


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.mark.parametrize("kind", [Slots, BestPath, Turned])
def test_what_is_made_without_gradients_gets_none(kind: type[nn.Module]) -> None:
    torch.manual_seed(7)
    model, x = kind().double(), torch.randn(8, 4, WIDTH).double()
    reference = copy.deepcopy(model)
    expected = trained(reference, lambda: in_turn(reference, x, 4, mean_square))
    for seed, devices in ((1, EXCLUSIVE), (2, SHARED)):
        mine = copy.deepcopy(model)
        how = {"poison": True, "memory": "1GiB", "longest_delay": "100us", "seed": seed}
        with simulated.configured(devices=4, **how):
            placed = placed_for(mine, x, 4, devices=devices, seed=seed, loss=mean_square)
            found = trained(mine, lambda: placed.step(x))  # noqa: B023
            placed.restore()
        check_same(expected, found, f"{kind.__name__}, seed {seed}", rounding=1e-7)
