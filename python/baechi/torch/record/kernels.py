# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher shows of a recorded step: the kernels, and the storages that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baechi._core import InputError
from baechi.torch.base import _private
from baechi.torch.base.function_rules import changed_arguments
from baechi.torch.base.nested import dense_in
from baechi.torch.record import refusals
from baechi.torch.record.autograd_graph import NodeRecorder
from baechi.torch.record.known_weights import KnownWeights
from baechi.torch.record.operator_runs import OperatorRuns
from baechi.torch.record.products import Products
from baechi.torch.record.recomputed import RunAgain
from baechi.torch.record.recorded_step import KernelRun, Op, Work
from baechi.torch.record.storages import Storages

# What is no kernel but runs several, whose temporary memory would not be seen.
_RUNS_OTHERS = frozenset(
    [torch.ops.aten.masked_scatter_backward.default, torch.ops.aten._euclidean_dist.default]
)


class DispatcherSide(TorchDispatchMode):
    """Runs what is dispatched, and tells of it."""

    def __init__(self, dispatched: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()
        self._dispatched = dispatched  # a function, its arguments, those by name, what it returned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RUNS_OTHERS:
            with self:
                return _private.as_its_parts(func, *args, **kwargs)
        out = func(*args, **kwargs)
        self._dispatched(func, args, kwargs, out)
        return out


class Kernels:
    """Books kernels to operators: what they read, make and change, and what they take."""

    def __init__(
        self,
        trace: list[KernelRun | int],
        runs: OperatorRuns,
        storages: Storages,
        weights: KnownWeights,
        autograd: NodeRecorder,
        again: RunAgain,
    ) -> None:
        self._trace = trace
        self._runs = runs
        self._storages = storages
        self._weights = weights
        self._autograd = autograd
        self._again = again
        self._formulas = _private.flop_formulas()
        self.products = Products(weights.name_of)
        self.backward: Callable[[], int | None] | None = (
            None  # whose backward runs, after the forward
        )

    def add(self, func: Any, args: Any, kwargs: Any, out: Any, inside: int) -> None:
        """Take in one that has run.

        Args:
            func: An aten operator.
            args: Its arguments.
            kwargs: Those by name.
            out: What it returned.
            inside: Bytes that it had for itself, where they are known.

        """
        backward = self.backward is not None
        index = self._op()
        if index is None:
            return
        op = self._runs.ops[index]
        if not backward:
            op.random = op.random or torch.Tag.nondeterministic_seeded in func.tags
            self._read(op, args, kwargs)
        adds = func is torch.ops.aten.add.Tensor
        sums = backward and self._autograd.between and (adds or _writes_out(func, args))
        if sums and adds and self._again.op is None:
            self._storages.added_in_place(args)
        maker = None if backward else index
        first_made = len(self._storages.tensors)
        outs = list(dense_in(out))
        self._made(op, maker, outs)
        if not backward:
            self._written(op, index, func, args, kwargs)
        own = self._storages.add(inside, maker) if inside > 0 else None
        made = tuple(range(first_made, len(self._storages.tensors)))
        reads = self._storages.bytes_read(_arguments(args, kwargs))
        known = tuple((t, size) for t, size in sorted(reads.items()) if t < first_made)
        again = self._again.op if backward else None
        runs = index if again is None else again
        self._trace.append(KernelRun(runs, backward, known, made, sums, again is not None))
        if own is not None:
            self._storages.free(own)
        if func.is_view or (not made and not func._schema.is_mutable):
            return
        touched = [*outs, *_arguments(args, kwargs)]
        work = Work(bytes=sum(t.numel() * t.element_size() for t in touched), kernels=1)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            work.flops = int(formula(*args, **kwargs, out_val=out))
        (op.backward if backward else op.forward).add(work)
        if backward:
            self.products.add(index, func, args, out, work)

    def _op(self) -> int | None:
        """Return whose kernel it is; in the backward, measure that operator from now on."""
        if self.backward is None:
            return self._runs.now
        running = self._storages.segment_op()
        index = self.backward()
        if index is None:
            return running  # it belongs to what ran last
        if running != index:
            self.close()
            self._storages.open_segment(index)
        return index

    def close(self) -> None:
        """Say that the operator whose backward was measured last has ended."""
        running = self._storages.segment_op()
        if running is not None:
            self._storages.close_segment(self._runs.ops[running].backward)

    def _made(self, op: Op, maker: int | None, outs: list[torch.Tensor]) -> None:
        first = len(self._storages.tensors)
        for tensor in outs:
            if tensor.is_nested:
                raise InputError(refusals.NESTED)
            if tensor in self._weights:
                continue
            number = self._storages.tensor_of(tensor, maker)
            if maker is not None and number >= first and number not in op.made:
                op.made.append(number)

    def _read(self, op: Op, args: Any, kwargs: Any) -> None:
        for tensor in _arguments(args, kwargs):
            weight = self._weights.name_of(tensor)
            if weight is not None:
                if weight not in op.weights:
                    op.weights.append(weight)
                continue
            number = self._storages.tensor_of(tensor, None)
            known = self._storages.tensors[number]
            if tensor.requires_grad:
                known.requires_grad = True
            if number not in op.reads and number not in op.made:
                op.reads[number] = known.writers[-1] if known.writers else None

    def _written(self, op: Op, index: int, func: Any, args: Any, kwargs: Any) -> None:
        for tensor in changed_arguments(func, args, kwargs):
            op.changes_weights |= tensor in self._weights
            number = self._storages.known(tensor)
            if number is None or number in op.made:
                continue
            if number not in op.changed:
                op.changed.append(number)
                self._storages.tensors[number].writers.append(index)


def _arguments(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    return dense_in((args, tuple(kwargs.values())))


def _writes_out(func: Any, args: Any) -> bool:
    """Whether a kernel is a copy of numbers that are conjugated or negated by a bit."""
    return func is torch.ops.aten.clone.default and bool(args[0].is_conj() or args[0].is_neg())
