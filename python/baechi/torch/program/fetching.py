# SPDX-License-Identifier: Apache-2.0
"""Fetching: what a store keeps, and when each reader's copy of it is asked for.

Beyond the paper.

A store is a device that runs no call of the plan. What is away lies there: it was put, or it is
a weight whose home it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fetch:
    """One copy that a device gets from the store, for one reader or several.

    It is asked for right ``behind`` a call; None: at once, or, if it is ``late``, right before the
    first reader.
    """

    moment: int  # in the plan
    behind: Hashable | None = None
    late: bool = False
    number: int = 0


@dataclass(frozen=True)
class PutEnd:
    """When a put has ended, and what is put is on its device no more: behind a call.

    Where the call is in no program, that is at the end.
    """

    moment: int
    behind: Hashable | None


@dataclass(frozen=True)
class Fetching:
    """The fetches of a program, by the storage that is read and the call that reads it.

    Reader None is the caller, who keeps a copy. What has its home on the store is fetched late for
    readers that are not named, unless it is ``kept``: those have a copy already. ``puts`` say of
    storages until when they are on their devices.
    """

    store: int | None = None
    by_reader: Mapping[tuple[str, Hashable | None], Fetch] = field(default_factory=dict)
    kept: frozenset[tuple[str, Hashable | None]] = frozenset()
    puts: Mapping[str, PutEnd] = field(default_factory=dict)

    def of(self, storage: str, home: int | None, device: int, reader: Hashable) -> Fetch | None:
        """Return how a reader on a device gets what lies in a storage; None: as anywhere else."""
        if self.store is None or device == self.store:
            return None
        found = self.by_reader.get((storage, reader))
        if found is None and home == self.store and (storage, reader) not in self.kept:
            return Fetch(_LAST, reader, late=True)
        return found


_LAST = 1 << 62
