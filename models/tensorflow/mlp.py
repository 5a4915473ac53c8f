# SPDX-License-Identifier: Apache-2.0
"""Layers one after the other, with what makes training stateful: dropout and batch norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from models.tensorflow import batches


@dataclass(frozen=True)
class Config:
    """Sizes."""

    inputs: int = 784
    hidden: int = 4096
    layers: int = 4
    classes: int = 10
    dropout: float = 0.2

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(inputs=6, hidden=8, layers=2, classes=3)


def build(config: Config) -> keras.Model:
    """Vectors to logits."""
    x = inputs_ = keras.Input((config.inputs,))
    for index in range(config.layers):
        x = keras.layers.Dense(config.hidden, name=f"hidden_{index}")(x)
        x = keras.layers.BatchNormalization(name=f"norm_{index}")(x)
        x = keras.layers.ReLU(name=f"relu_{index}")(x)
        x = keras.layers.Dropout(config.dropout, name=f"dropout_{index}")(x)
    return keras.Model(inputs_, keras.layers.Dense(config.classes, name="head")(x), name="mlp")


def inputs(config: Config, batch: int) -> tuple[Any, Any]:
    """Return vectors and classes."""
    return batches.vectors(batch, config.inputs, config.classes)
