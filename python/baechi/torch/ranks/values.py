# SPDX-License-Identifier: Apache-2.0
"""Values that ranks compare: all bits of a tensor, in their order, as one number."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from baechi.torch.capture.loss import tensors_in
from baechi.torch.where.homes import plain_parts


def sum_of(tensor: torch.Tensor) -> int:
    """Return a check sum of a tensor's values, which come to the host for it."""
    found = 0
    for part in plain_parts(tensor.detach()):
        if part.numel() and not part.is_meta and part.layout is torch.strided:
            plain = part.cpu().resolve_conj().resolve_neg().contiguous()
            found = zlib.crc32(plain.view(-1).view(torch.uint8).numpy(), found)
    return found


def facts_of(value: Any, *, with_values: bool = True) -> str:
    """Return shapes and types of nested tensors, and the sum of each."""
    return ", ".join(
        f"{tuple(t.shape)} of {t.dtype}".replace("torch.", "")
        + (f" with sum {sum_of(t):x}" if with_values else "")
        for t in tensors_in(value)
    )
