# SPDX-License-Identifier: Apache-2.0
"""The operators of a recorded step, in the order in which they begin, and which of them runs."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from baechi.torch.base import _private_autograd
from baechi.torch.record.recorded_step import KernelRun, Op
from baechi.torch.record.storages import Storages


class MadeNodes:
    """Which operator made an autograd node, by the node's sequence number."""

    def __init__(self) -> None:
        self._first: list[int] = []  # numbers, that count up
        self._ops: list[int | None] = []  # who makes the nodes from there on

    def by(self, op: int | None) -> None:
        """Have an operator, or None, make the nodes from now on."""
        self._first.append(_private_autograd.next_sequence_number())
        self._ops.append(op)

    def maker(self, node: Any) -> int | None:
        """Return the operator that made a node; None for the accumulation of a leaf.

        A view by attribute (`x.mT`) is no operator's. It is where its base was made; that of a
        weight counts as the next operator's, which has the weight.
        """
        at = self._at(node)
        if at < 0 or self._ops[at] is not None:
            return self._ops[at] if at >= 0 else None
        bases = (base for base, _ in node.next_functions if base is not None)
        before = next((op for op in map(self.maker, bases) if op is not None), None)
        behind = self._ops[at + 1 :] or self._ops[at - 1 :]
        return behind[0] if before is None else before

    def before(self, node: Any) -> int | None:
        """Return the operator behind which a view by attribute was made; None for other nodes."""
        at = self._at(node)
        return self._ops[at - 1] if at > 0 and self._ops[at] is None else None

    def _at(self, node: Any) -> int:
        """Return the run that made a node; negative where none did."""
        number = _private_autograd.sequence_number(node)
        if number >= _private_autograd.next_sequence_number():
            return -1
        return bisect_right(self._first, number) - 1


class OperatorRuns:
    """Books what runs in the forward to one operator at a time."""

    def __init__(self, storages: Storages, trace: list[KernelRun | int]) -> None:
        self.ops: list[Op] = []
        self.now: int | None = None  # the one that runs
        self._storages = storages
        self._trace = trace
        self.nodes = MadeNodes()

    def begin(self, op: Op) -> int:
        """Take in an operator, and have it run."""
        self.ops.append(op)
        return self.go_on(len(self.ops) - 1)

    def go_on(self, index: int) -> int:
        """Have an operator run that was taken in."""
        self.now = index
        self.nodes.by(index)
        return index

    def measure(self) -> None:
        """Count from now on what the running operator makes."""
        if self.now is not None:
            self._storages.open_segment(self.now)

    def end(self) -> None:
        """Say that the running operator has ended."""
        if self.now is not None:
            op = self.ops[self.now]
            self._storages.close_segment(op.forward)
            op.end = len(self._trace)
            self.now = None
            self.nodes.by(None)
