# SPDX-License-Identifier: Apache-2.0
"""Says on standard error how far an experiment has come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


def each(
    things: Sequence[Thing], name: Callable[[Thing], object] = str, *, of: str = ""
) -> Iterator[Thing]:
    """Yield every thing, and say which one is at hand, of how many, and for how long it took."""
    for number, thing in enumerate(things, 1):
        start = time.perf_counter()
        yield thing
        seconds = time.perf_counter() - start
        words = f"{of}: {name(thing)}" if of else str(name(thing))
        print(f"    {number}/{len(things)} {words} ({seconds:.1f} s)", file=sys.stderr, flush=True)
