# SPDX-License-Identifier: Apache-2.0
"""Records what is computed again in the backward, as `torch.utils.checkpoint` does (Paper 4.1).

Placed, it runs where it ran in the forward: operators of one checkpoint may be on several devices.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from baechi.torch.base.nested import tensors_in
from baechi.torch.base.repeats import sent_bytes
from baechi.torch.record.operator_runs import MadeNodes
from baechi.torch.record.recorded_step import Again, KernelRun, Op, TensorObject, rounded


class RunAgain:
    """The operators that run again, and the tensors that go between them."""

    def __init__(
        self,
        weight_of: Callable[[torch.Tensor], str | None],
        tensor_of: Callable[[torch.Tensor, int | None], int],
    ) -> None:
        self._weight_of = weight_of
        self._tensor_of = tensor_of  # a tensor's storage
        self.runs: list[Again] = []
        self.op: int | None = None  # that runs now
        self.handing = False  # what is no operator only hands tensors from run to run
        self._by_key: dict[str, int] = {}
        self._trace: Sequence[KernelRun | int] = ()
        self._seen: dict[int, tuple[Any, TensorObject]] = {}  # by id of the tensor: reference
        self.nodes = MadeNodes()

    @contextlib.contextmanager
    def computing(self, ops: Sequence[Op], trace: Sequence[KernelRun | int]) -> Iterator[None]:
        """Take in what runs in a ``with`` block."""
        if len(self._by_key) != len(ops):
            self._by_key = {op.key: index for index, op in enumerate(ops)}
        self._trace = trace
        first = len(self.runs)
        before, self.op = self.op, None
        try:
            yield
        finally:
            self.op = before
            for run in self.runs[first:]:
                run.until = len(trace)

    def run(self, key: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an operator again."""
        index = self._by_key.get(key)
        if index is None or self.op is not None:
            return call(*args, **kwargs)
        run = Again(index, len(self._trace), takes=self._see((args, kwargs)))
        run.planned = self.handing
        self.runs.append(run)
        self.nodes.by(index)
        self.op = index
        try:
            out = call(*args, **kwargs)
            run.makes = self._see(out)
            return out
        finally:
            run.end = len(self._trace)
            self.op = None
            self.nodes.by(None)

    def _see(self, value: Any) -> list[TensorObject]:
        return [
            self._seen_of(tensor) for tensor in tensors_in(value) if not self._weight_of(tensor)
        ]

    def _seen_of(self, tensor: torch.Tensor) -> TensorObject:
        known = self._seen.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        seen = TensorObject(self._tensor_of(tensor, None), rounded(sent_bytes(tensor)))

        def gone(_: Any) -> None:
            seen.until = len(self._trace)

        self._seen[id(tensor)] = (weakref.ref(tensor, gone), seen)
        return seen


class RecordingOf(Protocol):
    """Who records a step in which operators run again as a plan says."""

    ops: list[Op]
    trace: list[KernelRun | int]
    again: RunAgain

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that the running operator keeps a tensor."""

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hand back what it kept."""


class RecordedRuns:
    """Records second runs of operators; what they will read counts as kept by their first run."""

    def __init__(self, recording: RecordingOf) -> None:
        self._recording = recording
        self.hooks = recording.pack
        self.keep = self.hold = recording.pack
        self.give = recording.unpack

    def compute(self, call: Callable[..., Any], args: Any, kwargs: Any, _: Any) -> Any:
        """Run an operator for the first time."""
        return call(*args, **kwargs)

    def compute_again(
        self, key: str, call: Callable[..., Any], args: Any, kwargs: Any, _: Any
    ) -> Any:
        """Record that it runs again."""
        return self._recording.again.run(key, call, args, kwargs)

    def behind(self, run: Callable[[], None]) -> None:
        """Record what a backward has run again."""
        again = self._recording.again
        with again.computing(self._recording.ops, self._recording.trace):
            again.handing = True
            try:
                run()
            finally:
                again.handing = False

    def sent(self, tensor: torch.Tensor, _: Any) -> Callable[[], torch.Tensor]:
        """Return what returns it: all is on one device."""
        return lambda: tensor

    def made(self, tensor: torch.Tensor, _: Any) -> None:
        """Take note of nothing."""

    def read(self, tensor: torch.Tensor, _: Any) -> torch.Tensor:
        """Return what is there."""
        return tensor
