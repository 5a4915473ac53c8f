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
        copies: Mapping[int, int],
    ) -> None:
        """Keep what a forward has saved.

        Args:
            saved: For the backward, in its order.
            args: What the forward was called with; None for what it has changed.
            outputs: What it returned. They are held without the node, which holds this.
            copies: Which of what it saved are copies of arguments, by their places.

        """
        ours = {id(value) for value in outputs}
        watched = ours | {id(value) for value in args}
        self._versions: dict[int, int] = {}
        self._saved: list[Any] = []
        for value in saved:
            if isinstance(value, torch.Tensor) and id(value) in watched:
                held = value.detach() if id(value) in ours else value
                self._versions[len(self._saved)] = held._version
                self._saved.append(held)
            else:
                self._saved.append(value)
        self._copies = copies
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
        for i, value in zip(read, values, strict=True):
            if i in self._versions:
                _check_unchanged(value, self._versions[i])
            elif (place := self._copies.get(i)) is not None and self._args is not None:
                self._check_argument(place)
        if not again:
            self._saved = [v if i in later else _FREED for i, v in enumerate(self._saved)]
            if not later:
                self._args = None
        return values

    @property
    def args(self) -> list[Any]:
        """What the forward was called with."""
        if self._args is None:
            raise RuntimeError(_AGAIN)
        for place in range(len(self._args)):
            self._check_argument(place)
        return self._args

    def _check_argument(self, place: int) -> None:
        value = None if self._args is None else self._args[place]
        if isinstance(value, torch.Tensor):
            _check_unchanged(value, self._before[place])


def _check_unchanged(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} on {tensor.device} is at version "
            f"{tensor._version}; expected version {version} instead"
        )
