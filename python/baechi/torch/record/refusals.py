# SPDX-License-Identifier: Apache-2.0
"""What is said of a model that cannot be recorded."""

from __future__ import annotations

NESTED = (
    "the model makes a nested tensor, which cannot be followed: pad its parts to one length, with "
    "a mask (torch.nested.to_padded_tensor), and place that"
)
_CONTROL_FLOW = (
    "torch.cond, while_loop, scan and their like cannot be followed: use Python's if and for"
)


def cause_of(error: Exception) -> str:
    """Return why a step failed, in a clause."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, NotImplementedError) and "HigherOrderOperator" in lines[0]:
        return _CONTROL_FLOW
    return f"{type(error).__name__}: {lines[0]}"
