# SPDX-License-Identifier: Apache-2.0
"""Finds out which rank is lost, once one was waited for in vain.

Who waited in vain leaves a note where all processes can read it. Whoever leaves none, soon behind,
is lost or hangs: the others wait for it, or for one who does.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from baechi.torch.base import _private

_PATIENCE = 1.0  # seconds in which those that wait find out as well
_number = 0  # of those that every process makes, in the same order


class Inquest:
    """What processes that run together ask when one of them does not answer."""

    def __init__(self, number: int, count: int) -> None:
        global _number
        _number += 1
        self._prefix = f"baechi/lost/{_number}"
        self._number = number
        self._count = count

    def silent(self, waited: str) -> list[int]:
        """Return who leaves no note, by number; nobody where that cannot be found out."""
        store = _private.store_of_processes()
        found: list[list[int]] = []
        if store is None:
            return []
        # The store may be with the one who is lost, and not answer either.
        asking = threading.Thread(target=self._ask, args=(store, waited, found), daemon=True)
        asking.start()
        asking.join(_PATIENCE + 0.5)
        return [] if asking.is_alive() or not found else found[0]

    def _ask(self, store: Any, waited: str, found: list[list[int]]) -> None:
        try:
            store.set(f"{self._prefix}/{self._number}", waited)
            missing = [n for n in range(self._count) if n != self._number]
            deadline = time.monotonic() + _PATIENCE
            while missing and time.monotonic() < deadline:
                missing = [n for n in missing if not store.check([f"{self._prefix}/{n}"])]
                time.sleep(0.02)
            found.append(missing)
        except RuntimeError:  # the store is gone
            return
