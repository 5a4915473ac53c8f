# SPDX-License-Identifier: Apache-2.0
"""Tensors that repeat what they hold, as an expanded mask does: what is sent of them (Paper 3.2).

A plain copy writes every repetition out. It would be larger, and kernels that choose by the layout
of their arguments would be others than on one device. A tensor whose gradient is wanted is copied
as it is.
"""

from __future__ import annotations

import torch


def _is_plain(tensor: torch.Tensor) -> bool:
    return 0 not in tensor.stride() or (tensor.requires_grad and torch.is_grad_enabled())


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is sent; `expand` to the shape of `tensor` makes it whole again."""
    if _is_plain(tensor):
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def sent_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of what is sent."""
    count = tensor.numel()
    if not _is_plain(tensor):
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if stride == 0 and size > 1:
                count //= size
    return count * tensor.element_size()
