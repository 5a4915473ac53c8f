# SPDX-License-Identifier: Apache-2.0
"""A two-tower multimodal model as CLIP is (Radford et al. 2021): images and texts, side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches
from models.pytorch.vit import Block, Patches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are those of CLIP ViT-B/32."""

    image: int = 224  # pixels of a side
    patch: int = 32
    image_width: int = 768
    image_heads: int = 12
    text_width: int = 512
    text_heads: int = 8
    layers: int = 12  # of each tower
    vocabulary: int = 49_408
    length: int = 77
    shared: int = 512  # width of the space where both meet

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(
            image=16,
            patch=8,
            image_width=16,
            image_heads=2,
            text_width=16,
            text_heads=2,
            layers=2,
            vocabulary=40,
            length=6,
            shared=8,
        )


class ImageTower(nn.Module):
    """Images to points."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.image_width
        self.patches = Patches(config.image, config.patch, width, bias=False)
        self.norm_before = nn.LayerNorm(width)
        self.blocks = nn.Sequential(
            *(Block(width, config.image_heads) for _ in range(config.layers))
        )
        self.norm_after = nn.LayerNorm(width)
        self.projection = nn.Linear(width, config.shared, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.norm_before(self.patches(images)))
        return self.projection(self.norm_after(x[:, 0]))


class TextTower(nn.Module):
    """Texts to points: what is read from the last word."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.text_width
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Parameter(torch.randn(config.length, width) * 0.01)
        self.blocks = nn.Sequential(
            *(Block(width, config.text_heads, causal=True) for _ in range(config.layers))
        )
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, config.shared, bias=False)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.words(texts) + self.positions)
        return self.projection(self.norm(x[:, -1]))


class TwoTower(nn.Module):
    """Images and their texts to how well each fits each; with labels, to the contrastive loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.image_tower = ImageTower(config)
        self.text_tower = TextTower(config)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(
        self, images: torch.Tensor, texts: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        image_points = functional.normalize(self.image_tower(images), dim=1)
        text_points = functional.normalize(self.text_tower(texts), dim=1)
        similarity = self.scale.exp() * image_points @ text_points.t()
        if labels is None:
            return similarity
        by_image = functional.cross_entropy(similarity, labels)
        return (by_image + functional.cross_entropy(similarity.t(), labels)) / 2


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return images and texts; the label of each image is the text that belongs to it."""
    return batches.on(
        device,
        images=batches.images(batch, config.image),
        texts=batches.tokens((batch, config.length), config.vocabulary),
        labels=torch.arange(batch),
    )
