# SPDX-License-Identifier: Apache-2.0
"""What a graph's forward keeps for its backward, for as long as autograd would.

Autograd frees what a call has saved when the backward has run it. A graph is one node of autograd:
where its backward runs by some of its outputs alone, what only others need stays for a later run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

_FREED = object()
_AGAIN = (
    "Trying to backward through the graph a second time: its values were freed by the first; give "
    "backward(retain_graph=True) there"
)


class Kept:
    """Saved values and arguments of one run; those that others have, too, are watched."""

    def __init__(
        self,
        saved: Sequence[Any],
        args: Sequence[Any],
        outputs: Sequence[Any],
        shown: Mapping[int, int],
        number: int = 0,
    ) -> None:
        """Keep what a forward has saved.

        Args:
            saved: For the backward, in its order.
            args: What the forward was called with; None for what it has changed.
            outputs: What it returned. They are held without the node, which holds this.
            shown: Which of what it saved show arguments or outputs, or are copies of them: their
                places among both. Views made below autograd have versions of their own.
            number: Which call it was.

        """
        self.number = number
        ours = {id(value): value.detach() for value in outputs if isinstance(value, torch.Tensor)}
        others = [*args, *(ours.get(id(value)) for value in outputs)]
        self._saved = [ours.get(id(value), value) for value in saved]
        self._watched = {
            i: (others[place], others[place]._version)
            for i, place in shown.items()
            if isinstance(others[place], torch.Tensor)
        }
        self._args: list[Any] | None = list(args)
        self._before = [a._version if isinstance(a, torch.Tensor) else 0 for a in args]

    def take(self, read: Sequence[int], later: Collection[int], *, again: bool) -> list[Any]:
        """Return saved values by their positions.

        Args:
            read: The positions.
            later: Of what a later run may read although this one is not to be run again.
            again: The same may run again: nothing is freed.

        """
        values = [self._saved[i] for i in read]
        if any(value is _FREED for value in values):
            raise RuntimeError(_AGAIN)
        for i in read:
            if i in self._watched:
                _check_unchanged(*self._watched[i])
        if not again:
            self._saved = [v if i in later else _FREED for i, v in enumerate(self._saved)]
            if not later:
                self._args = None
            self._watched = {i: one for i, one in self._watched.items() if i in later}
        return values

    @property
    def args(self) -> list[Any]:
        """What the forward was called with."""
        if self._args is None:
            raise RuntimeError(_AGAIN)
        for value, version in zip(self._args, self._before, strict=True):
            if isinstance(value, torch.Tensor):
                _check_unchanged(value, version)
        return self._args


def _check_unchanged(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} on {tensor.device} is at version "
            f"{tensor._version}; expected version {version} instead"
        )
