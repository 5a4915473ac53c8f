# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits by bitsandbytes and torchao, which stay, and adapters, which are trained."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from models.bank.entry import Entry, noise

WIDTH = 32


def nf4(layer: nn.Linear) -> Any:
    """Return a layer with four bits per weight, by bitsandbytes."""
    module = importlib.import_module("bitsandbytes")
    made = module.nn.Linear4bit(*layer.weight.shape, compute_dtype=torch.float32, quant_type="nf4")
    made.load_state_dict(layer.state_dict())
    return made.to("cpu")


def int8(layer: nn.Linear) -> Any:
    """Return a layer with eight bits per weight, by torchao."""
    module = importlib.import_module("torchao.quantization")
    return _by_torchao(layer, module.Int8WeightOnlyConfig())


def int4(layer: nn.Linear) -> Any:
    """Return a layer with four bits per weight and a scale for sixteen, by torchao."""
    module = importlib.import_module("torchao.quantization")
    group = module.granularity.PerGroup(16)
    return _by_torchao(
        layer, module.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group)
    )


def _by_torchao(layer: nn.Linear, config: Any) -> Any:
    whole = nn.Sequential(layer)
    importlib.import_module("torchao.quantization").quantize_(whole, config)
    return whole[0]


class Adapted(nn.Module):
    """A layer that stays as it is, and two small ones beside it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, width = base.requires_grad_(False), base.in_features
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Layers(nn.Module):
    """Adapted layers, each of which a checkpoint may run again."""

    def __init__(self, few_bits: Callable[[nn.Linear], nn.Module], *, again: bool) -> None:
        super().__init__()
        layers = [Adapted(few_bits(nn.Linear(WIDTH, WIDTH))) for _ in range(3)]
        self.layers, self.again = nn.ModuleList(layers), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.again else layer(x))
        return x


def _entry(name: str, few_bits: Any, needs: str, *, again: bool = False) -> Entry:
    return Entry(
        name,
        "few bits",
        lambda: Layers(few_bits, again=again),
        lambda batch, seed: noise(batch, WIDTH, seed=seed),
        needs=needs,
        single=True,
    )


ENTRIES = [
    _entry("nf4-lora", nf4, "bitsandbytes"),
    _entry("nf4-lora-checkpointed", nf4, "bitsandbytes", again=True),
    _entry("int8-lora", int8, "torchao"),
    _entry("int4-lora-checkpointed", int4, "torchao", again=True),
]
