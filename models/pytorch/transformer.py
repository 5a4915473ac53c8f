# SPDX-License-Identifier: Apache-2.0
"""Transformer base (Vaswani et al. 2017), machine translation by attention only (Paper 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are the paper's."""

    vocabulary: int = 30_000
    width: int = 512
    feed_forward: int = 2048
    heads: int = 8
    layers: int = 6  # of the encoder, and of the decoder
    length: int = 50  # of source and target
    dropout: float = 0.1
    shared_embedding: bool = False  # one matrix for source, target and output; the paper has three

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(
            vocabulary=40, width=16, feed_forward=32, heads=2, layers=2, length=6, dropout=0.0
        )


class Attention(nn.Module):
    """Queries, keys and values are projections of their own, so each can be placed."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, *, causal: bool = False
    ) -> torch.Tensor:
        mixed = functional.scaled_dot_product_attention(
            self._split(self.query(x)),
            self._split(self.key(memory)),
            self._split(self.value(memory)),
            is_causal=causal,
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers, one after the other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wide = nn.Linear(config.width, config.feed_forward)
        self.narrow = nn.Linear(config.feed_forward, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(functional.relu(self.wide(x)))


class Residual(nn.Module):
    """What a sublayer adds: dropout, sum, normalisation."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.dropout(change))


class EncoderLayer(nn.Module):
    """Attention to the source, feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.residuals[0](x, self.attention(x, x))
        return self.residuals[1](x, self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Attention to the words before, attention to the source, feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.source_attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = self.residuals[0](x, self.attention(x, x, causal=True))
        x = self.residuals[1](x, self.source_attention(x, memory))
        return self.residuals[2](x, self.feed_forward(x))


class Embedding(nn.Module):
    """Words and where they stand."""

    positions: torch.Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.words.weight, std=config.width**-0.5)
        self.scale = math.sqrt(config.width)
        self.dropout = nn.Dropout(config.dropout)
        rate = torch.exp(torch.arange(0, config.width, 2) * (-math.log(10_000.0) / config.width))
        angle = torch.arange(config.length).unsqueeze(1) * rate
        positions = torch.stack([angle.sin(), angle.cos()], 2).flatten(1)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.words(words) * self.scale + self.positions[: words.shape[1]])


class Transformer(nn.Module):
    """Sentences to logits; with labels, to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.shared = config.shared_embedding
        self.embedding = Embedding(config)
        if not self.shared:
            self.target_embedding = Embedding(config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.classifier = nn.Linear(config.width, config.vocabulary, bias=False)
        if self.shared:
            self.classifier.weight = self.embedding.words.weight

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        memory = self.embedding(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embedding(target) if self.shared else self.target_embedding(target)
        for layer in self.decoder:
            x = layer(x, memory)
        logits = self.classifier(x)
        if labels is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return pairs of sentences, and the targets one word later."""
    target = batches.tokens((batch, config.length + 1), config.vocabulary, 2)
    return batches.on(
        device,
        source=batches.tokens((batch, config.length), config.vocabulary),
        target=target[:, :-1].contiguous(),
        labels=target[:, 1:].contiguous(),
    )
