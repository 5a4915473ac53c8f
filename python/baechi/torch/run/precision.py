# SPDX-License-Identifier: Apache-2.0
"""Autocast that a forward switches for the device it was called on holds for all its devices.

A model that was called on the CPU and asks `x.device` for the kind of autocast means the operators,
wherever they run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

_State = tuple[bool, torch.dtype]


class InnerAutocast:
    """Knows what a forward has switched for its caller's device, and switches it for others."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._kinds = {device.type for device in devices} - {"meta"}
        self._home = ""
        self._others: list[str] = []
        self._before: _State | None = None

    def begin(self, home: torch.device | None) -> None:
        """Take note of how it is when a model is called."""
        self._home = "" if home is None or home.type == "meta" else home.type
        self._others = sorted(self._kinds - {self._home}) if self._home else []
        self._before = self._state() if self._others else None

    def _state(self) -> _State:
        return torch.is_autocast_enabled(self._home), torch.get_autocast_dtype(self._home)

    def switched(self) -> contextlib.AbstractContextManager[object] | None:
        """Return a context in which the other kinds are as the caller's; None: it is so already."""
        if self._before is None:
            return None
        enabled, dtype = now = self._state()
        if now == self._before or all(
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) == now
            for kind in self._others
        ):
            return None
        stack = contextlib.ExitStack()
        for kind in self._others:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        return stack
