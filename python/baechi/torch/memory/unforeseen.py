# SPDX-License-Identifier: Apache-2.0
"""The room that a plan leaves where peaks are foreseen less well (beyond the paper).

Measured peaks of such models were above the predicted ones by up to these shares of them:
docs/reference/pytorch.md says in which trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from baechi.torch.record.recorded_step import Capture

_SECOND = 0.05, "gradients of gradients"
_FUNCTIONS = 0.1, "derivatives by torch.func"
_REENTRANT = 0.07, "checkpoint(..., use_reentrant=True)"


@dataclass(frozen=True)
class Unforeseen:
    """What a peak may be more than predicted, as a share of that, and the reason."""

    share: float = 0.0
    why: str = ""

    def of(self, peak: int) -> int:
        """Return the bytes to leave beside a predicted peak."""
        return math.ceil(peak * self.share)

    def __str__(self) -> str:
        return f"{self.share:.0%} more, as memory of {self.why} is foreseen less well"


def unforeseen(captured: Capture) -> Unforeseen:
    """Return what to leave for a recorded step."""
    if not captured.training:
        return Unforeseen()
    if any(op.inner is not None for op in captured.ops):
        return Unforeseen(*_SECOND)
    if any(op.kind in ("vmap", "grad", "jacrev", "jacfwd", "hessian") for op in captured.ops):
        return Unforeseen(*_FUNCTIONS)
    if any(node.backward for node in captured.nodes):
        return Unforeseen(*_REENTRANT)
    return Unforeseen()
