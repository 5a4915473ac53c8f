# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining and accelerate take what a plan is exported as, as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch import split_spec
from chain_plan import chain_plan
from torch import nn
from torch.distributed.pipelining import pipeline

import baechi


class Stack(nn.Module):
    """An embedding, five layers, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        out: torch.Tensor = self.head(x)
        return out


NAMES = ["embed", *[f"layers.{i}" for i in range(5)], "head"]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch itself
def test_the_stages_are_the_plan_s() -> None:
    spec = split_spec(chain_plan("0001122", NAMES))
    assert list(spec) == ["layers.2", "layers.4"]
    torch.manual_seed(0)
    model = Stack().eval()
    ids = torch.arange(6).reshape(2, 3)
    pipe = pipeline(model, mb_args=(ids,), split_spec=spec)
    assert pipe.num_stages == 3
    stages = [pipe.get_stage_module(i) for i in range(3)]
    held = [{name for name, _ in stage.named_parameters()} for stage in stages]
    assert held[0] == {"embed.weight"} | {f"layers.{i}.{p}" for i in (0, 1) for p in PARTS}
    assert held[1] == {f"layers.{i}.{p}" for i in (2, 3) for p in PARTS}
    assert held[2] == {f"layers.4.{p}" for p in PARTS} | {f"head.{p}" for p in PARTS}
    x = ids
    for stage in stages:
        x = stage(x)
    assert torch.equal(x, model(ids))


PARTS = ("weight", "bias")


def test_a_plan_that_is_no_pipeline_is_refused() -> None:
    with pytest.raises(baechi.InputError, match="'head', which runs after the layers, is on gpu:0"):
        split_spec(chain_plan("0001110", NAMES))
    with pytest.raises(baechi.InputError, match="not layer-wise"):
        split_spec(chain_plan("0010122", NAMES))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_accelerate_takes_the_device_map_of_the_plan() -> None:
    accelerate: Any = pytest.importorskip("accelerate.utils.modeling")
    text = baechi.export_plan(chain_plan("0001122", NAMES), "device-map")
    device_map = json.loads(text)
    model = Stack()
    accelerate.check_device_map(model, device_map)  # every parameter has a device
    found = {
        name: next(d for key, d in device_map.items() if f"{name}.".startswith(f"{key}."))
        for name, _ in model.named_parameters()
    }
    assert found["embed.weight"] == 0
    assert found["layers.1.bias"] == 0
    assert found["layers.2.weight"] == 1
    assert found["head.bias"] == 2
    del device_map["head"]
    with pytest.raises(ValueError, match="head"):
        accelerate.check_device_map(model, device_map)
