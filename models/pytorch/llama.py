# SPDX-License-Identifier: Apache-2.0
"""A decoder-only language model as Llama 3 is: rotary positions, grouped keys, gated layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are Llama 3 8B's, on sequences of 512 words."""

    vocabulary: int = 128_256
    width: int = 4096
    feed_forward: int = 14_336
    heads: int = 32
    key_heads: int = 8  # keys and values have fewer heads
    layers: int = 32
    length: int = 512
    rotary_base: float = 500_000.0

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(
            vocabulary=40, width=16, feed_forward=24, heads=2, key_heads=1, layers=2, length=8
        )


class Rotary(nn.Module):
    """Turns pairs of features by an angle that grows with the position."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        size = config.width // config.heads
        rate = config.rotary_base ** -(torch.arange(0, size, 2) / size)
        angle = torch.arange(config.length).unsqueeze(1) * torch.cat([rate, rate])
        self.register_buffer("cosines", angle.cos(), persistent=False)
        self.register_buffer("sines", angle.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[2]
        left, right = x.chunk(2, 3)
        turned = torch.cat([-right, left], 3)
        return x * self.cosines[:length] + turned * self.sines[:length]


class Attention(nn.Module):
    """Causal attention; several heads of queries share one of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = config.width // config.heads
        keys = config.key_heads * self.size
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, keys, bias=False)
        self.value = nn.Linear(config.width, keys, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.size).transpose(1, 2)

    def forward(self, x: torch.Tensor, rotary: nn.Module) -> torch.Tensor:
        mixed = functional.scaled_dot_product_attention(
            rotary(self._split(self.query(x))),
            rotary(self._split(self.key(x))),
            self._split(self.value(x)),
            is_causal=True,
            enable_gqa=True,
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


class GatedLayer(nn.Module):
    """SwiGLU: one projection decides how much of another passes."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added after."""

    def __init__(self, config: Config, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.feed_forward = feed_forward

    def forward(self, x: torch.Tensor, rotary: nn.Module) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    """Words to logits; with labels, to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(
            Block(config, self.feed_forward(config)) for _ in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.classifier = nn.Linear(config.width, config.vocabulary, bias=False)

    def feed_forward(self, config: Config) -> nn.Module:
        """Return the feed-forward layer of a block."""
        return GatedLayer(config.width, config.feed_forward)

    def forward(self, words: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x, self.rotary)
        logits = self.classifier(self.norm(x))
        if labels is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Llama(LanguageModel):
    """The model with an ordinary feed-forward layer in each block."""


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return sequences, and the same one word later."""
    words = batches.tokens((batch, config.length + 1), config.vocabulary)
    return batches.on(device, words=words[:, :-1].contiguous(), labels=words[:, 1:].contiguous())
