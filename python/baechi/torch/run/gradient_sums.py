# SPDX-License-Identifier: Apache-2.0
"""Sums of the gradients that come for a value one by one: in place where nobody else can see it.

A gradient that autograd returns may be that of several values, or a part of a larger one, and a
copy of it may be on its way. Only memory that was made for the sum is added to: that of an earlier
sum, or of what came from another device.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch


class GradientSums:
    """One sum per key; whoever calls chooses the stream."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[torch.Tensor, bool]] = {}  # whether it is our own

    def add(self, key: Hashable, gradient: torch.Tensor, *, own: bool = False) -> None:
        """Add a gradient; `own`: nobody else has its memory."""
        known, known_is_own = self._known.pop(key, (None, False))
        if known is None:
            self._known[key] = gradient, own
            return
        with torch.no_grad():
            if known_is_own and _can_take(known, gradient):
                total = known.add_(gradient)
            elif own and _can_take(gradient, known):
                total = gradient.add_(known)
            else:
                total = known + gradient
        self._known[key] = total, True

    def get(self, key: Hashable) -> torch.Tensor | None:
        """Return a sum; None where nothing came."""
        return self._known.get(key, (None, False))[0]

    def pop(self, key: Hashable) -> torch.Tensor | None:
        """Return a sum, and forget it; None where nothing came."""
        return self._known.pop(key, (None, False))[0]


def _can_take(total: torch.Tensor, gradient: torch.Tensor) -> bool:
    """Whether a tensor can be added to another in place, with the same result."""
    plain = total.layout is gradient.layout is torch.strided
    alike = total.dtype is gradient.dtype and total.shape == gradient.shape
    return plain and alike and 0 not in total.stride()
