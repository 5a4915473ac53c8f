# SPDX-License-Identifier: Apache-2.0
"""Values that ranks compare: all bits of a tensor, in their order, as one number."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from baechi.torch.capture.loss import tensors_in


def sum_of(tensor: torch.Tensor) -> int:
    """Return a check sum of a tensor's values, which come to the host for it."""
    if tensor.numel() == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.view(-1).view(torch.uint8).numpy())


def facts_of(value: Any, *, with_values: bool = True) -> str:
    """Return shapes and types of nested tensors, and the sum of each."""
    return ", ".join(
        f"{tuple(t.shape)} of {t.dtype}".replace("torch.", "")
        + (f" with sum {sum_of(t):x}" if with_values else "")
        for t in tensors_in(value)
    )
