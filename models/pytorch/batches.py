# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs: the same numbers every time, on any device, the meta device included."""

from __future__ import annotations

import torch


def tokens(shape: tuple[int, ...], vocabulary: int, seed: int = 1) -> torch.Tensor:
    """Return random identifiers; 0 is left free for padding."""
    return torch.randint(1, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def images(batch: int, side: int, seed: int = 1) -> torch.Tensor:
    """Return random images with three channels."""
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))


def on(device: str | torch.device, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inputs of a model, by name, on a device."""
    return {name: tensor.to(device) for name, tensor in inputs.items()}
