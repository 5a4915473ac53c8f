# SPDX-License-Identifier: Apache-2.0
"""Inception-V3 (Szegedy et al. 2015), an image classifier of parallel branches (Paper 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from models.tensorflow import batches

Stage = Callable[[Any], Any]


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are those of the published model."""

    image: int = 299  # pixels of a side, at least 75
    classes: int = 1000
    dropout: float = 0.0
    width: float = 1.0  # of every layer, as a share of the published one's
    coarse: tuple[int, ...] = (32, 64, 64)  # pooled channels of the blocks with 5x5
    middle: tuple[int, ...] = (128, 160, 160, 192)  # inner channels of the blocks with 7x7
    fine: int = 2  # the last blocks

    def channels(self, published: int) -> int:
        """Return the channels of a layer."""
        return max(2, round(published * self.width))

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(image=75, classes=5, width=1 / 32, coarse=(32,), middle=(128,), fine=1)


def build(config: Config) -> keras.Model:
    """Images to logits."""
    c = config.channels
    x = images = keras.Input((config.image, config.image, 3))
    for stage in (
        _conv(c(32), 3, 2, "valid"),
        _conv(c(32), 3, 1, "valid"),
        _conv(c(64), 3),
        layers.MaxPooling2D(3, 2),
        _conv(c(80), 1, 1, "valid"),
        _conv(c(192), 3, 1, "valid"),
        layers.MaxPooling2D(3, 2),
        *(_coarse(c, pooled) for pooled in config.coarse),
        _fork(
            _conv(c(384), 3, 2, "valid"),
            _chain(_conv(c(64), 1), _conv(c(96), 3), _conv(c(96), 3, 2, "valid")),
            layers.MaxPooling2D(3, 2),
        ),
        *(_middle(c, inner) for inner in config.middle),
        _fork(
            _chain(_conv(c(192), 1), _conv(c(320), 3, 2, "valid")),
            _chain(
                _conv(c(192), 1),
                _conv(c(192), (1, 7)),
                _conv(c(192), (7, 1)),
                _conv(c(192), 3, 2, "valid"),
            ),
            layers.MaxPooling2D(3, 2),
        ),
        *(_fine(c) for _ in range(config.fine)),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(config.dropout),
        layers.Dense(config.classes, name="head"),
    ):
        x = stage(x)
    return keras.Model(images, x, name="inception_v3")


def _conv(channels: int, kernel: Any, stride: int = 1, padding: str = "same") -> Stage:
    def apply(x: Any) -> Any:
        x = layers.Conv2D(channels, kernel, stride, padding, use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization(scale=False)(x))

    return apply


def _chain(*stages: Stage) -> Stage:
    def apply(x: Any) -> Any:
        for stage in stages:
            x = stage(x)
        return x

    return apply


def _fork(*branches: Stage) -> Stage:
    return lambda x: layers.Concatenate()([branch(x) for branch in branches])


def _pooled(channels: int) -> Stage:
    return _chain(layers.AveragePooling2D(3, 1, "same"), _conv(channels, 1))


def _coarse(c: Callable[[int], int], pooled: int) -> Stage:
    return _fork(
        _conv(c(64), 1),
        _chain(_conv(c(48), 1), _conv(c(64), 5)),
        _chain(_conv(c(64), 1), _conv(c(96), 3), _conv(c(96), 3)),
        _pooled(c(pooled)),
    )


def _middle(c: Callable[[int], int], inner: int) -> Stage:
    i, o = c(inner), c(192)
    row, column = (1, 7), (7, 1)
    return _fork(
        _conv(o, 1),
        _chain(_conv(i, 1), _conv(i, row), _conv(o, column)),
        _chain(_conv(i, 1), _conv(i, column), _conv(i, row), _conv(i, column), _conv(o, row)),
        _pooled(o),
    )


def _fine(c: Callable[[int], int]) -> Stage:
    def split() -> Stage:
        return _fork(_conv(c(384), (1, 3)), _conv(c(384), (3, 1)))

    return _fork(
        _conv(c(320), 1),
        _chain(_conv(c(384), 1), split()),
        _chain(_conv(c(448), 1), _conv(c(384), 3), split()),
        _pooled(c(192)),
    )


def inputs(config: Config, batch: int) -> tuple[Any, Any]:
    """Return images and classes."""
    return batches.images(batch, config.image, config.classes)
