# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as Mixtral is: every word visits two of the feed-forward layers of a block.

An expert takes a fixed number of words, those that want it most, so that shapes do not depend on
the data and the experts can run side by side. What exceeds it passes by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from models.pytorch import llama
from models.pytorch.llama import GatedLayer, LanguageModel, inputs

__all__ = ["Config", "Mixtral", "inputs"]


@dataclass(frozen=True)
class Config(llama.Config):
    """Sizes; the defaults are Mixtral 8x7B's, on sequences of 512 words."""

    vocabulary: int = 32_000
    rotary_base: float = 1_000_000.0
    experts: int = 8
    visits: int = 2  # experts that a word goes to
    slack: float = 1.25  # places of an expert, as a multiple of its share of the words

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(
            vocabulary=40,
            width=16,
            feed_forward=24,
            heads=2,
            key_heads=1,
            layers=2,
            length=8,
            experts=4,
        )


class Experts(nn.Module):
    """A router and the feed-forward layers that it chooses from."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.visits, self.slack = config.visits, config.slack
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.experts = nn.ModuleList(
            GatedLayer(config.width, config.feed_forward) for _ in range(config.experts)
        )

    def places(self, words: int) -> int:
        """Return how many words an expert takes."""
        share = self.visits * words / len(self.experts)
        return min(words, math.ceil(self.slack * share))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x.flatten(0, 1)
        best, chosen = self.router(words).topk(self.visits, 1)
        weights = torch.zeros_like(words[:, : len(self.experts)])
        weights = weights.scatter(1, chosen, torch.softmax(best, 1))
        taken, where = weights.topk(self.places(words.shape[0]), 0)
        parts = [
            expert(words.index_select(0, where[:, i])) * taken[:, i : i + 1]
            for i, expert in enumerate(self.experts)
        ]
        places = where.t().flatten()
        return torch.zeros_like(words).index_add(0, places, torch.cat(parts)).view_as(x)


class Mixtral(LanguageModel):
    """The language model with experts in each block."""

    def feed_forward(self, config: llama.Config) -> nn.Module:
        """Return the experts of a block."""
        assert isinstance(config, Config)
        return Experts(config)
