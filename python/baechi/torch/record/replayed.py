# SPDX-License-Identifier: Apache-2.0
"""An iterator of the user's while steps are recorded, which must not use it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any


class Replayed:
    """An iterator that can go back to where it was: it takes the place of one that cannot."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator
        self.taken = 0
        self.used = False
        self._again: deque[Any] = deque()
        self._given: list[Any] | None = None  # since it was asked to remember

    def __iter__(self) -> Replayed:
        return self

    def __next__(self) -> Any:
        value = self._again.popleft() if self._again else next(self.iterator)
        self.taken += 1
        self.used = True
        if self._given is not None:
            self._given.append(value)
        return value

    def remember(self) -> None:
        """Keep what is taken, for `go_back`."""
        self._given = []

    def go_back(self) -> None:
        """Be where it was when it began to remember."""
        given = self._given or []
        self._again.extendleft(reversed(given))
        self.taken -= len(given)
        self._given = None
