# SPDX-License-Identifier: Apache-2.0
"""Autocast around a model: a graph that was traced under it runs under it.

What autocast casts is no call of a graph: PyTorch does it below what is traced. So whoever runs a
graph switches autocast as it was around the trace, and off for the backward, whose kernels take the
types that the forward chose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from baechi.torch.trace.graph import NotExportedError

_HOST = "cpu"


def autocast_around(kinds: Collection[str]) -> torch.dtype | None:
    """Return what autocast casts to now on devices of these kinds; None: it is off.

    Raises:
        NotExportedError: It is not the same for all of them.

    """
    found = {kind: _type_on(kind) for kind in sorted(kinds)}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{kind}: {_said(dtype)}" for kind, dtype in found.items())
        raise NotExportedError(f"autocast is not the same for all kinds of its devices ({said})")
    dtype = next(iter(found.values()), None)
    if dtype is None and _type_on(_HOST) is not None:
        kind = next(iter(found), "")
        raise NotExportedError(
            f"autocast is on for {_HOST!r} and its devices are of kind {kind!r}: enter "
            f"torch.autocast({kind!r})"
        )
    return dtype


def _type_on(kind: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _said(dtype: torch.dtype | None) -> str:
    return "off" if dtype is None else str(dtype).removeprefix("torch.")


def traced_under(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Have autocast be so on the host, whatever is around; nothing is kept of what it casts."""
    if dtype is None:
        return torch.autocast(_HOST, enabled=False)
    return torch.autocast(_HOST, dtype=dtype, cache_enabled=False)


@contextlib.contextmanager
def nothing_kept() -> Iterator[None]:
    """Have autocast keep nothing of what it casts."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class Autocast:
    """How autocast is while a graph runs on devices of some kinds."""

    def __init__(self, dtype: torch.dtype | None, kinds: Iterable[str]) -> None:
        self._dtype = dtype
        self._kinds = sorted({_HOST, *kinds})  # what is on no device of the plan is on the host

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which it is as around the trace."""
        return self._switched(self._dtype)

    def backward(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which it is off."""
        return self._switched(None)

    def _switched(self, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
        others = [kind for kind in self._kinds if _type_on(kind) != dtype]
        if not others:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        cache = torch.is_autocast_cache_enabled()
        for kind in others:
            how: Any = {"enabled": False} if dtype is None else {"dtype": dtype}
            stack.enter_context(torch.autocast(kind, **how, cache_enabled=cache))
        return stack
