# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs: the same numbers every time."""

from __future__ import annotations

from typing import Any

import numpy as np


def tokens(shape: tuple[int, ...], vocabulary: int, seed: int = 1) -> Any:
    """Return random identifiers; 0 is left free for padding."""
    return np.random.default_rng(seed).integers(1, vocabulary, shape, dtype=np.int32)


def sentences(batch: int, length: int, vocabulary: int) -> tuple[Any, Any]:
    """Return pairs of sentences, and as labels the targets one word later."""
    target = tokens((batch, length + 1), vocabulary, 2)
    return (tokens((batch, length), vocabulary), target[:, :-1]), target[:, 1:]


def images(batch: int, side: int, classes: int, seed: int = 1) -> tuple[Any, Any]:
    """Return random images with three channels, channels last, and their classes."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, side, side, 3), dtype=np.float32)
    return x, random.integers(0, classes, (batch,), dtype=np.int32)


def vectors(batch: int, width: int, classes: int, seed: int = 1) -> tuple[Any, Any]:
    """Return random vectors and their classes."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, width), dtype=np.float32)
    return x, random.integers(0, classes, (batch,), dtype=np.int32)
