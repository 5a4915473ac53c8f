# SPDX-License-Identifier: Apache-2.0
"""Vision Transformer (Dosovitskiy et al. 2020): an image as a sentence of patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are those of ViT-B/16."""

    image: int = 224  # pixels of a side
    patch: int = 16
    width: int = 768
    heads: int = 12
    layers: int = 12
    classes: int = 1000

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(image=16, patch=8, width=16, heads=2, layers=2, classes=10)


class Attention(nn.Module):
    """Queries, keys and values by one projection."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.projections(x).view(*x.shape[:2], 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added after."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.narrow(functional.gelu(self.wide(self.feed_forward_norm(x))))


class Patches(nn.Module):
    """An image as patches, a class token before them, and where each stands."""

    def __init__(self, image: int, patch: int, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch, bias=bias)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.cut(images).flatten(2).transpose(1, 2)
        tokens = self.token.expand(patches.shape[0], -1, -1)
        return torch.cat([tokens, patches], 1) + self.positions


class Vit(nn.Module):
    """Images to classes; with labels, to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patches = Patches(config.image, config.patch, config.width)
        self.blocks = nn.Sequential(
            *(Block(config.width, config.heads) for _ in range(config.layers))
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.patches(images)))[:, 0])
        return logits if labels is None else functional.cross_entropy(logits, labels)


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return images with labels."""
    return batches.on(
        device,
        images=batches.images(batch, config.image),
        labels=batches.tokens((batch,), config.classes),
    )
