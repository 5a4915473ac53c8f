# SPDX-License-Identifier: Apache-2.0
"""Messages that a rank sends: each holds its memory until it has left."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from baechi.torch.ranks.messages import Message

_TOGETHER = 1 << 20  # bytes in memory of messages that are waited for together


class Sent(NamedTuple):
    """A message on its way."""

    work: Any
    flat: torch.Tensor  # its bytes
    message: Message


class Outgoing:
    """Messages on their way out.

    gloo tells that one has left only to who waits for it, so a thread does, for one after another.
    Small ones are waited for together, since each would have the thread stop the one that computes.
    NCCL and XCCL tell whoever asks.
    """

    def __init__(self, is_direct: bool) -> None:
        self._is_direct = is_direct
        self._queue: SimpleQueue[list[Sent] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._state = _State()
        self._small: list[Sent] = []  # that nobody waits for yet
        self._small_bytes = 0

    @property
    def held(self) -> int:
        """Bytes of what has not left yet."""
        return self._state.held

    def add(self, sent: Sent) -> None:
        """Hold a message until it has left."""
        state = self._state
        with state.changed:
            state.held += sent.flat.numel()
            state.most = max(state.most, state.held)
            if self._is_direct:
                state.kept.append(sent)
                state.drop_complete()
                return
        self._small.append(sent)
        self._small_bytes += sent.flat.untyped_storage().nbytes()  # it may be a part of a large one
        del sent
        if self._small_bytes >= _TOGETHER:
            self._have_waited_for()

    def _have_waited_for(self) -> None:
        """Have the thread wait for all that nobody waits for yet."""
        with self._state.changed:
            self._state.waited_for += 1
        if self._thread is None:
            given = self._queue, self._state
            self._thread = threading.Thread(target=_wait_for_all, args=given, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._queue.put, None).atexit = False
        self._queue.put(self._small)
        self._small, self._small_bytes = [], 0

    def rest(self) -> list[Sent]:
        """Wait for what the thread waits for; return what is left to wait for."""
        with self._state.changed:
            self._state.changed.wait_for(lambda: self._state.waited_for == 0)
            self._state.kept += self._small
            self._small, self._small_bytes = [], 0
            return self._state.take_kept()

    def most(self) -> int:
        """Return the most bytes that were held since this was asked last."""
        with self._state.changed:
            most, self._state.most = self._state.most, self._state.held
        return most


class _State:
    """What the thread that waits and the one that sends both know."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waited_for = 0
        self.held = self.most = 0
        self.kept: list[Sent] = []  # for whoever takes the rest

    def drop_complete(self) -> None:
        while self.kept and self.kept[0].work.is_completed():
            self.held -= self.kept.pop(0).flat.numel()

    def take_kept(self) -> list[Sent]:
        kept, self.kept = self.kept, []
        self.held -= sum(sent.flat.numel() for sent in kept)
        return kept

    def has_left(self, sent: Sent) -> None:
        with self.changed:
            self.held -= sent.flat.numel()

    def was_waited_for(self, lost: list[Sent]) -> None:
        with self.changed:
            self.kept += lost
            self.waited_for -= 1
            if not self.waited_for:
                self.changed.notify_all()


def _wait_for_all(queue: SimpleQueue[list[Sent] | None], state: _State) -> None:
    while True:
        together = queue.get()
        if together is None:
            return
        lost = []
        for sent in _taken(together):
            try:
                sent.work.wait()
                state.has_left(sent)
            except RuntimeError:  # whoever takes the rest waits once more, and says so
                lost.append(sent)
            del sent  # and its memory, before the next one is waited for
        state.was_waited_for(lost)


def _taken(sent: list[Sent]) -> Iterator[Sent]:
    """Yield them in turn; who has taken one has it alone."""
    sent.reverse()
    while sent:
        yield sent.pop()
