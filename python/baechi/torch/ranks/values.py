# SPDX-License-Identifier: Apache-2.0
"""Values that ranks compare: all bits of a tensor, and their order, as one number."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from baechi.torch.capture.loss import tensors_in

_FACTOR = 0x1E3779B97F4A7C15
_WORDS = 1 << 16  # that are summed up at once, within a processor's cache


@functools.cache
def _places(device: torch.device) -> torch.Tensor:
    """Return an odd number for each place, in no pattern."""
    places = torch.arange(1, _WORDS + 1, device=device) * _FACTOR  # wraps
    return (places ^ (places >> 31)) | 1


def sum_of(tensor: torch.Tensor) -> int:
    """Return a sum of a tensor's values as their bits are, each times a number of its place."""
    if tensor.numel() == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    plain = plain.contiguous()
    if plain.storage_offset() * plain.element_size() % 8:
        plain = plain.clone()
    line = plain.view(-1).view(torch.uint8)
    places, total = _places(line.device), torch.zeros((), dtype=torch.int64, device=line.device)
    for piece in line.split(8 * _WORDS):
        missing = -piece.numel() % 8
        words = (functional.pad(piece, (0, missing)) if missing else piece).view(torch.int64)
        total = 31 * total + ((words ^ (words >> 32)) * places[: words.numel()]).sum()
    return int(total) % 2**64


def facts_of(value: Any, *, with_values: bool = True) -> str:
    """Return shapes and types of nested tensors, and the sum of each."""
    return ", ".join(
        f"{tuple(t.shape)} of {t.dtype}".replace("torch.", "")
        + (f" with sum {sum_of(t):x}" if with_values else "")
        for t in tensors_in(value)
    )
