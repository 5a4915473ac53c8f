# SPDX-License-Identifier: Apache-2.0
"""Messages that a rank sends are let go of once they have left."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.ranks.messages import Message
from baechi.torch.ranks.outgoing import Outgoing, Sent

NOTHING: Any = Message(False, 0, 0, 0, 1, (), (), torch.uint8)


class Work:
    """A message that leaves when it is told to."""

    def __init__(self, *, leaves: bool = True) -> None:
        self.waiter: int | None = None
        self.may_leave, self.was_waited_for = threading.Event(), threading.Event()
        if leaves:
            self.may_leave.set()

    def wait(self) -> None:
        assert self.may_leave.wait(60)
        self.waiter = threading.get_ident()
        self.was_waited_for.set()


def sent(size: int, of: int | None = None, *, leaves: bool = True) -> tuple[Work, Sent]:
    work = Work(leaves=leaves)
    return work, Sent(work, torch.zeros(of or size, dtype=torch.uint8)[:size], NOTHING)


def test_small_messages_are_waited_for_together() -> None:
    """By whoever takes the rest, where they are few; by the thread behind enough of them."""
    outgoing = Outgoing(is_direct=False)
    works = []
    for _ in range(3):
        work, message = sent(1 << 10)
        outgoing.add(message)
        works.append(work)
    assert [each.work for each in outgoing.rest()] == works
    assert outgoing.held == 0
    works.clear()
    for _ in range(9):
        work, message = sent(1 << 17)
        outgoing.add(message)
        works.append(work)
    assert all(work.was_waited_for.wait(60) for work in works[:8])
    assert threading.get_ident() not in [work.waiter for work in works[:8]]
    assert [each.work for each in outgoing.rest()] == works[8:]


def test_a_small_part_of_a_large_tensor_does_not_keep_all_of_it() -> None:
    outgoing = Outgoing(is_direct=False)
    work, message = sent(16, 1 << 20)
    outgoing.add(message)
    assert work.was_waited_for.wait(60)
    assert outgoing.rest() == []


def test_what_has_left_is_let_go_of_while_the_next_one_leaves() -> None:
    outgoing = Outgoing(is_direct=False)
    _, first = sent(1 << 19)
    last, second = sent(1 << 19, leaves=False)
    outgoing.add(first)
    outgoing.add(second)
    for _ in range(600):
        if outgoing.held == 1 << 19:
            break
        last.was_waited_for.wait(0.1)
    assert outgoing.held == 1 << 19
    last.may_leave.set()
    assert outgoing.rest() == []
    assert outgoing.held == 0


class Lost(Work):
    """A message that does not leave: its receiver has gone."""

    def wait(self) -> None:
        self.was_waited_for.set()
        raise RuntimeError("Connection closed by peer")


def test_a_message_that_is_lost_is_left_for_whoever_takes_the_rest() -> None:
    outgoing = Outgoing(is_direct=False)
    lost = Lost()
    before, first = sent(1 << 19)
    behind, last = sent(1 << 19)
    for message in (first, Sent(lost, torch.zeros(1 << 10, dtype=torch.uint8), NOTHING), last):
        outgoing.add(message)
    del message
    assert all(work.was_waited_for.wait(60) for work in (before, lost, behind))
    left = outgoing.rest()
    assert [each.work for each in left] == [lost]
    assert outgoing.held == 0
    with pytest.raises(RuntimeError, match="closed by peer"):
        left[0].work.wait()
