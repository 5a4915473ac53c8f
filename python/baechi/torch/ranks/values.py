# SPDX-License-Identifier: Apache-2.0
"""Values that ranks compare: all bits of a tensor as one sum."""

from __future__ import annotations

from typing import Any

import torch

from baechi.torch.capture.loss import tensors_in


def sum_of(tensor: torch.Tensor) -> int:
    """Return the sum of a tensor's values as their bits are, which none of them is left out of."""
    if tensor.numel() == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    plain = plain.contiguous()
    if plain.storage_offset() * plain.element_size() % 8:
        plain = plain.clone()
    line = plain.view(-1).view(torch.uint8)
    words = line.numel() // 8 * 8
    return int(line[:words].view(torch.int64).sum() + line[words:].sum(dtype=torch.int64))


def facts_of(value: Any, *, with_values: bool = True) -> str:
    """Return shapes and types of nested tensors, and the sum of each."""
    return ", ".join(
        f"{tuple(t.shape)} of {t.dtype}".replace("torch.", "")
        + (f" with sum {sum_of(t):x}" if with_values else "")
        for t in tensors_in(value)
    )
