# SPDX-License-Identifier: Apache-2.0
"""The storages of a recorded step, and how much memory they are while they live (Paper 4.1).

A segment is the run of an operator in one direction: what it has at most beyond what it leaves is
its temporary memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from baechi.torch.base import _private
from baechi.torch.base.nested import dense_in
from baechi.torch.record.recorded_step import KernelRun, Tensor, Work, rounded


class Storages:
    """The storages that a step uses, by number; when one is let go of, the trace says so."""

    def __init__(self, trace: list[KernelRun | int], bytes_of: Callable[[Any], int]) -> None:
        self._bytes_of = bytes_of
        self.tensors: list[Tensor] = []
        self._trace = trace
        self._ids: dict[int, int] = {}  # tensor by storage address, while the storage lives
        self._watches: dict[int, Any] = {}
        self._live = 0
        self._segment: tuple[int, int, int] | None = None  # op, live at its start, peak
        self._segment_made: list[int] = []
        self._sizes: dict[int, int] = {}

    def known(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's storage if it is known."""
        return self._ids.get(_private.storage_address(tensor))

    def tensor_of(self, tensor: torch.Tensor, producer: int | None) -> int:
        """Return the graph's tensor that `tensor` is, or is a view of."""
        storage = tensor.untyped_storage()
        address = int(storage._cdata)
        known = self._ids.get(address)
        if known is not None:
            return known
        index = self.add(rounded(self._bytes_of(storage)), producer)
        self._ids[address] = index

        def freed(_: Any, address: int = address, index: int = index) -> None:
            if index in self._sizes:
                self.free(index)
            del self._watches[index]
            if self._ids.get(address) == index:
                del self._ids[address]

        self._watches[index] = weakref.ref(storage, freed)
        return index

    def add(self, size: int, producer: int | None) -> int:
        """Return a new tensor."""
        index = len(self.tensors)
        self.tensors.append(Tensor(size, producer, writers=[] if producer is None else [producer]))
        self._live += size
        self._sizes[index] = size
        if self._segment is not None:
            self._segment_made.append(index)
            op, start, peak = self._segment
            self._segment = (op, start, max(peak, self._live))
        return index

    def bytes_read(self, tensors: Iterator[torch.Tensor]) -> dict[int, int]:
        """Return how much of each known storage some tensors are; equal views count once."""
        views: dict[int, dict[Any, int]] = {}
        for tensor in tensors:
            known = self.known(tensor)
            if known is not None:
                place = (tensor.storage_offset(), tuple(tensor.shape))
                size = rounded(tensor.numel() * tensor.element_size())
                views.setdefault(known, {})[place] = size
        return {known: sum(sizes.values()) for known, sizes in views.items()}

    def free(self, tensor: int) -> None:
        """Say that a tensor's memory is given back."""
        self._live -= self._sizes.pop(tensor)
        self._trace.append(tensor)

    def added_in_place(self, args: Any) -> None:
        """Take the sum of two gradients for what it is when nothing is watched: in place."""
        for tensor in dense_in(args):
            known = self.known(tensor)
            if known in self._sizes and _private.only_autograd_holds(tensor):
                self.free(known)
                return

    def open_segment(self, op: int) -> None:
        """Begin to measure what an operator makes."""
        self._segment = (op, self._live, self._live)
        self._segment_made = []

    def close_segment(self, work: Work) -> None:
        """Say how much memory the open segment had beyond what it left."""
        if self._segment is None:
            return
        _, start, peak = self._segment
        kept = sum(self._sizes.get(i, 0) for i in self._segment_made)
        work.temporary = max(work.temporary, peak - start - kept)
        self._segment = None

    def segment_op(self) -> int | None:
        """Return the operator whose segment is open."""
        return None if self._segment is None else self._segment[0]

    def finished(self) -> None:
        """Watch no more storages."""
        self._watches.clear()
