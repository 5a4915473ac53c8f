# SPDX-License-Identifier: Apache-2.0
"""The operators of a recorded step, in the order in which they begin, and which of them runs."""

from __future__ import annotations

from bisect import bisect_right

from baechi.torch.base import _private_autograd
from baechi.torch.record.recorded_step import KernelRun, Op
from baechi.torch.record.storages import Storages


class OperatorRuns:
    """Books what runs in the forward to one operator at a time."""

    def __init__(self, storages: Storages, trace: list[KernelRun | int]) -> None:
        self.ops: list[Op] = []
        self.now: int | None = None  # the one that runs
        self._storages = storages
        self._trace = trace
        self._first_numbers: list[int] = []  # of the autograd nodes of each

    def begin(self, op: Op) -> int:
        """Take in an operator, and have it run."""
        self.add(op)
        self.now = len(self.ops) - 1
        return self.now

    def add(self, op: Op) -> None:
        """Take in an operator whose autograd nodes are made from now on."""
        self.ops.append(op)
        self._first_numbers.append(_private_autograd.next_sequence_number())

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

    def of_number(self, number: int) -> int | None:
        """Return the operator that made the autograd node with a sequence number."""
        index = bisect_right(self._first_numbers, number) - 1
        return index if index >= 0 else None
