# SPDX-License-Identifier: Apache-2.0
"""What an operator runs in, as its second run has it again: training modes and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


def modes_of(module: nn.Module) -> list[bool]:
    """Return whether each part of a module trains."""
    return [part.training for part in module.modules()]


@contextlib.contextmanager
def in_modes(modules: list[nn.Module], modes: list[bool]) -> Iterator[None]:
    """Have modules train or not as they did."""
    changed = [m for m, training in zip(modules, modes, strict=True) if m.training != training]
    for module in changed:
        module.training = not module.training
    try:
        yield
    finally:
        for module in changed:
            module.training = not module.training


def autocast_of(kinds: Iterator[str]) -> list[tuple[str, bool, torch.dtype, bool]]:
    """Return what autocast is for kinds of devices."""
    cache = torch.is_autocast_cache_enabled()
    return [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), cache)
        for kind in sorted({*kinds, "cpu"} - {"meta"})
    ]
