# SPDX-License-Identifier: Apache-2.0
"""PyTorch models in plain PyTorch, from sizes, without weights.

>>> entry = MODELS["gnmt"]
>>> model = entry.build(entry.small())
>>> loss = model(**entry.inputs(entry.small(), 2))

A model called with labels returns its loss, so that the loss is part of what is placed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from models.pytorch import gnmt, inception_v3, llama, mixtral, transformer, two_tower, unet, vit


@dataclass(frozen=True)
class Entry:
    """A model: how to build it, what to feed it, and how it is trained."""

    config: Callable[..., Any]  # full size by default
    small: Callable[[], Any]
    build: Callable[[Any], nn.Module]
    inputs: Callable[..., dict[str, torch.Tensor]]  # of (config, batch, device="cpu")
    batches: tuple[int, ...]  # at full size
    optimizer: str  # as `baechi.torch.place` names it

    def on_meta(self, config: Any, batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        """Return the model and its inputs without memory: shapes only."""
        with torch.device("meta"):
            model = self.build(config)
        return model, self.inputs(config, batch, "meta")


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """Return the loss: a model called with labels returns nothing else."""
    return output


def _entry(module: Any, build: Any, batches: tuple[int, ...], optimizer: str = "adam") -> Entry:
    return Entry(module.Config, module.Config.small, build, module.inputs, batches, optimizer)


MODELS = {
    "inception-v3": _entry(inception_v3, inception_v3.InceptionV3, (32, 64), "rmsprop"),
    "gnmt": _entry(gnmt, gnmt.Gnmt, (128, 256)),
    "transformer": _entry(transformer, transformer.Transformer, (64, 128)),
    "llama": _entry(llama, llama.Llama, (1,)),
    "mixtral": _entry(mixtral, mixtral.Mixtral, (1,)),
    "vit": _entry(vit, vit.Vit, (32,)),
    "two-tower": _entry(two_tower, two_tower.TwoTower, (64,)),
    "unet": _entry(unet, unet.Unet, (4,)),
}
