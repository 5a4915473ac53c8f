# SPDX-License-Identifier: Apache-2.0
"""Records what `torch.autograd.grad` runs in a forward: each operator's part where that runs."""

from __future__ import annotations

import functools
from typing import Any

import torch

from baechi.torch.base.nested import dense_in, tensors_in
from baechi.torch.record.autograd_graph import told_before
from baechi.torch.record.held_tensors import TensorObjects
from baechi.torch.record.operator_runs import OperatorRuns
from baechi.torch.record.recorded_step import Op, TensorObject, rounded
from baechi.torch.record.storages import Storages


class InnerBackwards:
    """The operators beside a call of `torch.autograd.grad`, for what it runs of others."""

    def __init__(
        self,
        runs: OperatorRuns,
        storages: Storages,
        objects: TensorObjects,
    ) -> None:
        self._runs = runs
        self._storages = storages
        self._objects = objects
        self._seen = objects.seen
        self._handed: list[TensorObject] = []  # gradients that autograd holds while a node runs
        self._first: list[TensorObject] = []  # those that the call begins with, and holds
        self._keys: dict[str, int] = {}  # how often each was made
        self._givers: dict[Any, list[int]] = {}  # operators, by the node that they give to

    def run(self, index: int, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `torch.autograd.grad`, which is the operator with this number."""
        outputs = list(tensors_in(args[:1] or kwargs.get("outputs")))
        roots = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
        self._runs.ops[index].inner = self._base_of(roots[0]) if roots else None
        inputs: Any = args[1] if len(args) > 1 else kwargs.get("inputs")
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        outer, self._first, self._givers = (self._first, self._givers), [], {}
        try:
            with told_before(roots, functools.partial(self._begins, index)):
                slopes = call(*args, **kwargs)
            for slope, by in zip(slopes, inputs, strict=True):
                if slope is not None and getattr(by, "grad_fn", None) is not None:
                    self._arrives(index, slope, self._base_of(by.grad_fn))
            return slopes
        finally:
            self._continue_as(index)
            for gradient in self._first:
                gradient.until = max(op.end for op in self._runs.ops[index + 1 :])
            self._first, self._givers = outer

    def _arrives(self, index: int, slope: torch.Tensor, base: int | None) -> None:
        """Take note that a slope goes to where what it is by was made."""
        tensor = self._storages.tensor_of(slope, None)
        writers = self._storages.tensors[tensor].writers
        if base is None or not writers or self._runs.ops[writers[-1]].inner == base:
            return
        reader = self._op_for(index, base)
        number = self._objects.see(slope, reader)
        if number is not None:
            seen = self._seen[number]
            seen.reader = reader
            seen.given.append(writers[-1])  # behind whom it is sent
            for op in self._runs.ops[index + 1 :]:  # what a node was given there is the same copy
                if op.inner == base:
                    op.takes = [n for n in op.takes if self._seen[n].tensor != tensor]
            self._runs.ops[reader].takes.append(number)

    def _base_of(self, node: Any) -> int | None:
        """Return the operator of the forward that an autograd node, or what made it, is of."""
        index = self._runs.nodes.maker(node)
        inner = None if index is None else self._runs.ops[index].inner
        return index if inner is None else inner

    def _begins(self, index: int, node: Any, gradients: Any) -> None:
        """Take note that a node is about to run with gradients."""
        base = self._base_of(node)
        if self._runs.now is None or base is None:
            return
        op = self._runs.ops[self._op_for(index, base)]
        op.grads |= torch.is_grad_enabled()
        givers = self._givers.pop(node, [])
        for target in {target for target, _ in node.next_functions if target is not None}:
            self._givers.setdefault(target, []).append(self._runs.now)
        for gradient in dense_in(gradients):
            tensor = self._storages.tensor_of(gradient, None)
            now = self._runs.now
            writers = [w for w in self._storages.tensors[tensor].writers if w != now]
            if writers and all(self._seen[number].tensor != tensor for number in op.takes):
                op.takes.append(len(self._seen))
                size = rounded(gradient.numel() * gradient.element_size())
                handed = self._handed_by(givers, tensor, writers[-1], now)
                given = writers[-1:] if handed is None else [self._seen[handed].reader or 0]
                self._handed.append(TensorObject(tensor, size, given, reader=now, handed=handed))
                self._seen.append(self._handed[-1])
                if writers[-1] == index:
                    self._first.append(self._handed[-1])

    def _handed_by(self, givers: list[int], tensor: int, writer: int, now: int) -> int | None:
        """Return what an operator was handed itself that gives a tensor, or a view of it, on."""
        if writer in givers:
            return None
        taken = (
            n for giver in reversed(givers) if giver != now for n in self._runs.ops[giver].takes
        )
        mine = (n for n in taken if self._seen[n].tensor == tensor)
        return next((n for n in mine if self._seen[n].reader is not None), None)

    def _op_for(self, index: int, base: int) -> int:
        """Return the operator for what is run of the backward of another."""
        ops, now = self._runs.ops, self._runs.now
        if now is None or now == index or ops[now].inner != base:
            grad = ops[index]
            key = f"{grad.key}>{ops[base].key}"
            number = self._keys[key] = self._keys.get(key, 0) + 1
            key = key if number == 1 else f"{key}#{number}"
            ops.append(Op(key, grad.kind, None, grad.scope, inner=base))
            self._continue_as(len(ops) - 1)
        return len(ops) - 1

    def _continue_as(self, index: int) -> None:
        """Book what runs next to another operator."""
        now = self._runs.now
        if now is not None and now != index:
            self._runs.end()
            for gradient in self._handed:
                gradient.until = self._runs.ops[now].end
            self._handed.clear()
            self._runs.go_on(index)
            self._runs.measure()
