# SPDX-License-Identifier: Apache-2.0
"""Leaves process groups while the interpreter is whole.

A thread of gloo holds the tensors of a message for a moment longer than whoever waits for it. Where
it is the last to hold them, it needs the interpreter to let go of them, and aborts the process if
the interpreter has begun to end. So the groups are left, and their threads with them, before that.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from torch import distributed


class Leaves(Protocol):
    """What has groups to leave."""

    def leave(self) -> None:
        """Leave them; nothing runs over them any more."""


_members: weakref.WeakSet[Leaves] = weakref.WeakSet()


def leave_at_exit(member: Leaves) -> None:
    """Have it leave its groups when the process ends, if it is still there."""
    _members.add(member)


def destroy(groups: Iterable[Any]) -> None:
    """Leave groups, unless whoever made the first of all has left them."""
    for group in groups:
        with contextlib.suppress(ValueError):  # torch.distributed knows it no more
            distributed.destroy_process_group(group)


@atexit.register
def _leave() -> None:
    for member in list(_members):
        member.leave()
