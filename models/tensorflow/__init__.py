# SPDX-License-Identifier: Apache-2.0
"""Keras 3 models in plain Keras, from sizes, without weights.

>>> entry = MODELS["gnmt"]
>>> model = entry.compiled(entry.small())
>>> x, y = entry.inputs(entry.small(), 2)
>>> model.fit(x, y)

All classify: each gives logits, and labels are class numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from models.tensorflow import gnmt, inception_v3, mlp, transformer


@dataclass(frozen=True)
class Entry:
    """A model: how to build it, what to feed it, and how it is trained."""

    config: Callable[..., Any]  # full size by default
    small: Callable[[], Any]
    build: Callable[[Any], keras.Model]
    inputs: Callable[[Any, int], tuple[Any, Any]]  # x and y of (config, batch)
    batches: tuple[int, ...]  # at full size
    optimizer: str

    def compiled(self, config: Any, **options: Any) -> keras.Model:
        """Return the model, ready for fit; the same weights every time."""
        keras.utils.set_random_seed(1)
        model = self.build(config)
        model(self.inputs(config, 1)[0])  # makes the weights
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **{"optimizer": self.optimizer, "jit_compile": False, **options},
        )
        return model


def _entry(module: Any, batches: tuple[int, ...], optimizer: str = "adam") -> Entry:
    return Entry(
        module.Config, module.Config.small, module.build, module.inputs, batches, optimizer
    )


MODELS = {
    "mlp": _entry(mlp, (128,)),
    "inception-v3": _entry(inception_v3, (32, 64), "rmsprop"),
    "gnmt": _entry(gnmt, (128, 256)),
    "transformer": _entry(transformer, (64, 128)),
}
