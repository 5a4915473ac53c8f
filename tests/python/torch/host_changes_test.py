# SPDX-License-Identifier: Apache-2.0
"""Weights in a host's memory that a forward changes itself."""

from __future__ import annotations

import copy
from types import ModuleType

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from torch import nn

# PyTorch 2.14.0 says once what it leaves out of a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")


class Changing(nn.Module):
    """A weight is changed by its own forward, but not yet in the call that is traced."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change, self.calls = change, 0
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        weight, other = self.a.weight, self.b.weight
        if self.calls > 2:
            with torch.no_grad():
                if self.change == "data":
                    weight.data.mul_(0.9)
                elif self.change == "itself":
                    weight.mul_(0.9).lerp_(other, 0.1)
                elif self.change == "views":
                    weight[0].mul_(0.5)
                    other.view(-1)[3:5].zero_()
                elif self.change == "items":
                    weight[1] = 0.25
                    other[torch.tensor([0, 1], device=x.device)] *= 0.5
                elif self.change == "lists":
                    torch._foreach_mul_([weight, other], 0.95)
                else:
                    nn.init.constant_(self.a.bias, 0.3)
                    torch.add(weight, other, out=weight)
        found: torch.Tensor = self.b(self.a(x).tanh()) @ (weight.t() @ other)
        return found.sin().sum()


@pytest.mark.repeats
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("change", ["data", "itself", "views", "items", "lists", "functions"])
def test_a_weight_that_is_away_keeps_what_a_forward_does_to_it(
    sim: ModuleType, change: str, eager: bool
) -> None:
    torch.manual_seed(3)
    model, batches = Changing(change).double(), torch.randn(4, 4, 8, dtype=torch.double)
    alone = copy.deepcopy(model)
    with sim.configured(devices=1, memory="1GiB", asynchronous=False):
        torch._dynamo.reset()
        placed = baechi.torch.place(
            model, batches[0], "1x1GiB+1xhost:1GiB", residency="all", budget="50ms", bounds=False
        )
        model.calls = 0
        assert {w.device.type for w in model.parameters()} == {"cpu"}
        stance = "force_eager" if eager else "default"
        for one, device in ((model, "sim:0"), (alone, "cpu")):
            optimizer = torch.optim.AdamW(one.parameters(), 1e-2)
            for x in batches:
                optimizer.zero_grad()
                with torch.compiler.set_stance(stance):
                    one(x.to(device)).backward()
                optimizer.step()
        placed.restore()
    for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-12, msg=name)
