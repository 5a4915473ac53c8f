# SPDX-License-Identifier: Apache-2.0
"""Inception-V3 (Szegedy et al. 2015), an image classifier of parallel branches (Paper 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are those of the published model."""

    image: int = 299  # pixels of a side: at least 75
    classes: int = 1000
    dropout: float = 0.5
    width: float = 1.0  # of every layer, as a share of the published one's

    def channels(self, published: int) -> int:
        """Return the channels of a layer."""
        return max(4, round(published * self.width))

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(image=75, classes=10, dropout=0.0, width=1 / 16)


class Conv(nn.Module):
    """Convolution, normalisation, activation."""

    def __init__(
        self,
        inside: int,
        outside: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outside, eps=0.001)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.norm(self.conv(x)))


class Fork(nn.Module):
    """Several convolutions of one input, side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _row(channels: int, outside: int) -> Conv:
    return Conv(channels, outside, (1, 7), padding=(0, 3))


def _column(channels: int, outside: int) -> Conv:
    return Conv(channels, outside, (7, 1), padding=(3, 0))


class InceptionV3(nn.Module):
    """Images to classes; with labels, to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        c = config.channels
        self.stem = nn.Sequential(
            Conv(3, c(32), 3, 2),
            Conv(c(32), c(32), 3),
            Conv(c(32), c(64), 3, 1, 1),
            nn.MaxPool2d(3, 2),
            Conv(c(64), c(80), 1),
            Conv(c(80), c(192), 3),
            nn.MaxPool2d(3, 2),
        )
        channels = c(192)
        coarse = []
        for pooled in (32, 64, 64):
            coarse.append(self._coarse(channels, pooled))
            channels = c(64) + c(64) + c(96) + c(pooled)
        self.coarse = nn.Sequential(*coarse)
        self.first_reduction = Fork(
            Conv(channels, c(384), 3, 2),
            nn.Sequential(
                Conv(channels, c(64), 1), Conv(c(64), c(96), 3, 1, 1), Conv(c(96), c(96), 3, 2)
            ),
            nn.MaxPool2d(3, 2),
        )
        channels += c(384) + c(96)
        middle = []
        for inner in (128, 160, 160, 192):
            middle.append(self._middle(channels, inner))
            channels = 4 * c(192)
        self.middle = nn.Sequential(*middle)
        self.second_reduction = Fork(
            nn.Sequential(Conv(channels, c(192), 1), Conv(c(192), c(320), 3, 2)),
            nn.Sequential(
                Conv(channels, c(192), 1),
                _row(c(192), c(192)),
                _column(c(192), c(192)),
                Conv(c(192), c(192), 3, 2),
            ),
            nn.MaxPool2d(3, 2),
        )
        channels += c(320) + c(192)
        fine = []
        for _ in range(2):
            fine.append(self._fine(channels))
            channels = c(320) + 4 * c(384) + c(192)
        self.fine = nn.Sequential(*fine)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(channels, config.classes)

    def _coarse(self, channels: int, pooled: int) -> Fork:
        c = self.config.channels
        return Fork(
            Conv(channels, c(64), 1),
            nn.Sequential(Conv(channels, c(48), 1), Conv(c(48), c(64), 5, 1, 2)),
            nn.Sequential(
                Conv(channels, c(64), 1), Conv(c(64), c(96), 3, 1, 1), Conv(c(96), c(96), 3, 1, 1)
            ),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(channels, c(pooled), 1)),
        )

    def _middle(self, channels: int, inner: int) -> Fork:
        c = self.config.channels
        i, o = c(inner), c(192)
        return Fork(
            Conv(channels, o, 1),
            nn.Sequential(Conv(channels, i, 1), _row(i, i), _column(i, o)),
            nn.Sequential(
                Conv(channels, i, 1), _column(i, i), _row(i, i), _column(i, i), _row(i, o)
            ),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(channels, o, 1)),
        )

    def _fine(self, channels: int) -> Fork:
        c = self.config.channels

        def split() -> Fork:
            return Fork(
                Conv(c(384), c(384), (1, 3), padding=(0, 1)),
                Conv(c(384), c(384), (3, 1), padding=(1, 0)),
            )

        return Fork(
            Conv(channels, c(320), 1),
            nn.Sequential(Conv(channels, c(384), 1), split()),
            nn.Sequential(Conv(channels, c(448), 1), Conv(c(448), c(384), 3, 1, 1), split()),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(channels, c(192), 1)),
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.middle(self.first_reduction(self.coarse(self.stem(images))))
        x = self.pool(self.fine(self.second_reduction(x))).flatten(1)
        logits = self.head(self.dropout(x))
        if labels is None:
            return logits
        return functional.cross_entropy(logits, labels, label_smoothing=0.1)


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return a batch with labels."""
    return batches.on(
        device,
        images=batches.images(batch, config.image),
        labels=batches.tokens((batch,), config.classes),
    )
