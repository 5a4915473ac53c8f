# SPDX-License-Identifier: Apache-2.0
"""csrc/sent_gradients.cc in Python: gradients that copies may read while others hold them.

Autograd asks only the host who holds a gradient before it adds to it in place or makes it `.grad`,
and `record_stream` keeps memory from being used again, not from being written. So what is sent is
referred to from here until nobody else holds it; what others hold at the end of the backward, their
streams change behind the copies.
"""

from __future__ import annotations

import collections
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from baechi.torch.base import _private, _private_autograd


def _order_others_behind(read: Any, maker: Any) -> None:
    maker.wait_event(read)
    torch.accelerator.current_stream(maker.device).wait_event(read)


@dataclass
class _Sent:
    """What was sent of one storage, and the events of its copies with the streams that made it."""

    gradients: dict[int, torch.Tensor] = field(default_factory=dict)  # by id
    reads: list[tuple[Any, Any]] = field(default_factory=list)

    def held_elsewhere(self) -> bool:
        mine = list(self.gradients.values())
        bases = [gradient._base for gradient in mine if gradient._base is not None]
        tensors = {id(tensor): tensor for tensor in (*mine, *bases)}
        views = collections.Counter(map(id, bases))
        counts = {key: _private.references(tensor) for key, tensor in tensors.items()}
        return any(
            own > 1 + views[key] or storage > len(tensors) for key, (own, storage) in counts.items()
        )


class SentGradients:
    """Those of one backward, whose callback is the only owner: nothing outlives one that fails."""

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}  # by storage

    @classmethod
    def sent(cls, gradient: torch.Tensor, reads: Any, maker: Any) -> None:
        """Take note of a gradient, when its copy is submitted to the stream `reads`.

        Args:
            gradient: What the node that autograd runs now was given.
            reads: The stream of the copy.
            maker: The stream that the gradient's device computes on.

        """
        read, backward = reads.record_event(), _private_autograd.current_backward()
        if backward < 0:  # the node was called by hand: there is no end of a backward
            _order_others_behind(read, maker)
            return
        mine = _all.get(backward)
        if mine is None:
            mine = _all[backward] = cls()
            _private_autograd.call_after_backward(mine._settle)
        mine._drop_unheld()
        known = mine._sent.setdefault(_private.storage_address(gradient), _Sent())
        known.gradients[id(gradient)] = gradient
        known.reads.append((read, maker))

    def _drop_unheld(self) -> None:
        self._sent = {key: sent for key, sent in self._sent.items() if sent.held_elsewhere()}

    def _settle(self) -> None:
        self._drop_unheld()
        for sent in self._sent.values():
            for read, maker in sent.reads:
                _order_others_behind(read, maker)
        self._sent.clear()

    def __del__(self) -> None:
        """Order others also behind the copies of a backward that failed."""
        self._settle()


_all: weakref.WeakValueDictionary[int, SentGradients] = weakref.WeakValueDictionary()  # by backward
