# SPDX-License-Identifier: Apache-2.0
"""U-Net (Ronneberger et al. 2015), image segmentation: down, up again, and connections across."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are those of the published model, padded so that sizes stay."""

    image: int = 512  # pixels of a side; divisible by 2^levels
    levels: int = 4  # how often the image is halved
    channels: int = 64
    classes: int = 2

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(image=16, levels=2, channels=4)


class DoubleConv(nn.Sequential):
    """Twice: convolution, normalisation, activation."""

    def __init__(self, inside: int, outside: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inside, outside):
            layers += [
                nn.Conv2d(channels, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)


class Unet(nn.Module):
    """Images to classes of pixels; with labels, to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = [config.channels << level for level in range(config.levels + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = DoubleConv(3, config.channels)
        self.halve = nn.MaxPool2d(2)
        self.down = nn.ModuleList(DoubleConv(narrow, wide) for narrow, wide in pairs)
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, 2) for narrow, wide in reversed(pairs)
        )
        self.up = nn.ModuleList(DoubleConv(wide, narrow) for narrow, wide in reversed(pairs))
        self.head = nn.Conv2d(config.channels, config.classes, 1)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.first(images)
        across = []
        for down in self.down:
            across.append(x)
            x = down(self.halve(x))
        for rise, up in zip(self.rise, self.up, strict=True):
            x = up(torch.cat([across.pop(), rise(x)], 1))
        logits = self.head(x)
        return logits if labels is None else functional.cross_entropy(logits, labels)


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return images and the class of every pixel."""
    pixels = (batch, config.image, config.image)
    return batches.on(
        device,
        images=batches.images(batch, config.image),
        labels=batches.tokens(pixels, config.classes + 1, 2) - 1,
    )
