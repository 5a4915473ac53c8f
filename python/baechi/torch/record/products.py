# SPDX-License-Identifier: Apache-2.0
"""Operators whose backward is that of one product with weights: it can run as two.

A linear layer and a convolution have a gradient by their inputs, which the operators before them
wait for, and one by their weights, which nobody waits for. Each takes a kernel of its own, so
taking them apart costs nothing. What else an operator does backward goes with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from baechi.torch.base import _private_autograd
from baechi.torch.base.nested import dense_in
from baechi.torch.record.autograd_graph import PRODUCTS
from baechi.torch.record.recorded_step import Halves, Op, Work

CONVOLUTION = torch.ops.aten.convolution_backward.default
_ACCUMULATION = "torch::autograd::AccumulateGrad"
_MASK = 10  # the argument of CONVOLUTION that says which gradients are wanted


def both_wanted(func: Any, args: Any) -> bool:
    """Whether a kernel is of a convolution, and makes both gradients at once."""
    return func is CONVOLUTION and args[_MASK][0] and any(args[_MASK][1:])


def taken_apart(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the arguments of a convolution's kernel for either gradient."""
    _, *weights = args[_MASK]
    behind = args[_MASK + 1 :]
    return (
        (*args[:_MASK], [True, *(False for _ in weights)], *behind),
        (*args[:_MASK], [False, *weights], *behind),
    )


class Products:
    """The kernels of a step's backward, by the products that they are of."""

    def __init__(self, weight_of: Callable[[torch.Tensor], str | None]) -> None:
        self._weight_of = weight_of
        self._numbers: dict[int, set[int]] = {}  # of the products' nodes, by operator
        self._halves: dict[int, Halves] = {}
        self._of_weights: set[int] = set()  # operators whose product reads a weight
        self._mixed: set[int] = set()  # those that read weights elsewhere, too
        self.is_by_weights = False  # the last kernel

    def add(self, index: int, func: Any, args: Any, out: Any, work: Work) -> None:
        """Take in a kernel of an operator's backward."""
        halves = self._halves.setdefault(index, Halves(Work(), Work()))
        self.is_by_weights = False
        node = _private_autograd.current_autograd_node()
        name = "" if node is None else node.name()
        reads_weight = any(self._weight_of(t) is not None for t in dense_in(args))
        if name == _ACCUMULATION:
            self.is_by_weights = True
            return  # its work is counted with the gradients that are there
        if name not in PRODUCTS:
            if reads_weight:
                self._mixed.add(index)
            halves.by_inputs.add(work)
            return
        self._numbers.setdefault(index, set()).add(_private_autograd.sequence_number(node))
        if func is CONVOLUTION:
            if not (both_wanted(func, args) and reads_weight):
                return
            self._of_weights.add(index)
            for half, parts in zip(
                (halves.by_inputs, halves.by_weights), _parts(args, out), strict=True
            ):
                half.add(Work(work.flops // 2, sum(map(_size, parts)), 1))
        elif reads_weight:
            self._of_weights.add(index)
            halves.by_inputs.add(work)
        else:
            self.is_by_weights = True
            halves.by_weights.add(work)

    def note(self, ops: list[Op], again: Iterable[int]) -> None:
        """Say of operators that their backward is in two; not of those that are computed again."""
        inner = [op.inner for op in ops if op.inner is not None]
        for index in self._of_weights - self._mixed.union(again, inner):
            halves, op = self._halves[index], ops[index]
            if len(self._numbers[index]) == 1 and halves.by_weights.kernels and op.inner is None:
                op.halves = halves


def _parts(args: Any, out: Any) -> tuple[list[Any], list[Any]]:
    gradient, values, weight = args[:3]
    return [gradient, weight, out[0]], [gradient, values, *out[1:]]


def _size(tensor: Any) -> int:
    return 0 if tensor is None else int(tensor.numel() * tensor.element_size())
