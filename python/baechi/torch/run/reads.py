# SPDX-License-Identifier: Apache-2.0
"""Copies that may still read what somebody could change in place (Paper 4.3).

A copy reads its source on a stream of its own, which nobody waits for who writes there. Memory that
is given up is kept until then, memory that is held is not protected: whoever changes a storage is
ordered behind the copies of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from baechi.torch.base import _private


class _Copied:
    """A storage that was sent: the events of its copies."""

    __slots__ = ("device", "events", "passing", "storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())  # so its address stays its own
        self.device = tensor.device
        self.events: list[Any] = []
        self.passing = True


def _order_behind(copied: _Copied, stream: Any) -> None:
    for event in copied.events:
        stream.wait_event(event)


class Reads:
    """The copies whose sources somebody may still hold."""

    def __init__(self) -> None:
        self._copied: dict[int, _Copied] = {}  # by storage

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._copied)

    def add(self, tensor: torch.Tensor, event: Any) -> None:
        """Take note of a copy that has read `tensor` when the event has passed."""
        key = _private.storage_address(tensor)
        copied = self._copied.get(key)
        if copied is None:
            copied = self._copied[key] = _Copied(tensor)
        copied.events.append(event)
        copied.passing &= tensor.grad_fn is not None and torch.is_grad_enabled()

    def may_read(self, tensor: torch.Tensor) -> bool:
        """Whether copies of a storage were asked for, which may not have run yet."""
        return _private.storage_address(tensor) in self._copied

    def before_change(self, tensor: torch.Tensor, stream: Any) -> None:
        """Order what a stream (None: the caller's) does next to a tensor behind its copies."""
        copied = self._copied.pop(_private.storage_address(tensor), None)
        if copied is not None:
            _order_behind(copied, stream or torch.accelerator.current_stream(copied.device))

    def settle(self, held: Iterable[torch.Tensor]) -> None:
        """Order the current streams behind the copies of what the caller or the model holds now.

        What only passed through the model lives on for its backward. It is waited for if it is
        among `held`, or by `before_change`.
        """
        mine = {_private.storage_address(tensor) for tensor in held}
        for key, copied in list(self._copied.items()):
            if copied.storage.expired():
                del self._copied[key]
            elif key in mine or not copied.passing:
                del self._copied[key]
                _order_behind(copied, torch.accelerator.current_stream(copied.device))
