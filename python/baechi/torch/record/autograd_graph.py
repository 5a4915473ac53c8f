# SPDX-License-Identifier: Apache-2.0
"""The autograd graph of a recorded step: which node hands which gradient to which (Paper 4.1).

The dispatcher sees the kernels of a backward, but not the gradients that a node passes on as they
are, nor who waits for what. Hooks on the nodes do.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from baechi.torch.base import _private_autograd

# Of products with weights, whose two gradients can be taken apart.
PRODUCTS = frozenset(["AddmmBackward0", "MmBackward0", "ConvolutionBackward0"])


@dataclass(frozen=True)
class Gradient:
    """What a node hands to input `slot` of node `target`."""

    target: int
    slot: int
    tensor: int | None = None  # its storage; None when there is no gradient
    bytes: int = 0  # of its values, rounded as an allocator does
    addable: bool = True  # the engine may add to it in place when nothing else holds its storage
    lazy: bool = False  # conjugated or negated by a bit: an addition writes it out first
    held: bool = False  # once sent, until the backward ends: it refers to its storage several times

    @property
    def place(self) -> tuple[int, int]:
        """The buffer that it is for."""
        return self.target, self.slot


@dataclass
class AutogradNode:
    """A node of autograd that ran, in the order of `Capture.nodes`."""

    op: int | None  # the operator that made it; None for the accumulation of a leaf
    weight: str | None = None  # whose gradient it accumulates
    leaf: int | None = None  # the storage of the tensor whose, in a backward inside the backward
    backward: int = 0  # which one it is of; others than 0 run inside a node of an earlier one
    at: int = -1  # events of the trace before its end; -1 until it has run
    received: dict[int, int] = field(default_factory=dict)  # storage by slot
    gives: list[Gradient] = field(default_factory=list)
    behind: int | None = None  # of a view by attribute, which counts to its base: who ran last
    is_product: bool = False  # with weights: its two gradients can be taken apart

    @property
    def order(self) -> int | None:
        """When it was made: twice its operator, or behind the one that ran last."""
        if self.behind is not None:
            return 2 * self.behind + 1
        return None if self.op is None else 2 * self.op


class NodeRecorder:
    """Watches the nodes under a tensor while its backward runs."""

    def __init__(
        self,
        op_of: Callable[[Any], int | None],
        behind: Callable[[Any], int | None],
        weight_of: Callable[[torch.Tensor], str | None],
        place_of: Callable[[torch.Tensor], int | None],
        now: Callable[[], int],
        begins: Callable[[Any], None],
    ) -> None:
        self._op_of = op_of  # of a node
        self._behind = behind  # as in AutogradNode
        self._weight_of = weight_of
        self._place_of = place_of  # a tensor's storage
        self._now = now
        self._told = begins  # of the gradients that a node is given, before it runs
        self.nodes: list[AutogradNode] = []  # that ran, in this order
        self.between = False  # no node runs: gradients are being summed
        self._backwards = 0  # inside the backward
        self._found: list[AutogradNode] = []
        self._index: dict[Any, int] = {}
        self._edges: list[list[tuple[int, int] | None]] = []

    def watch(self, root: torch.Tensor, *, inner: bool = False) -> None:
        """Put hooks on every node under `root`; `inner`: of a backward inside the backward."""
        start = root.grad_fn
        index = self._index
        if start is None or self._key(start) in index:
            return
        self._backwards += inner
        index[self._key(start)] = len(index)
        waiting: list[Any] = [start]
        while waiting:
            node = waiting.pop()
            mine = index[self._key(node)]
            edges: list[tuple[int, int] | None] = []
            for following, slot in node.next_functions:
                if following is None:
                    edges.append(None)
                    continue
                key = self._key(following)
                if key not in index:
                    index[key] = len(index)
                    waiting.append(following)
                edges.append((index[key], slot))
            self._add(mine, node, edges, inner)

    def finished(self) -> list[AutogradNode]:
        """Return the nodes that ran, in the order in which they did."""
        order = {id(node): position for position, node in enumerate(self.nodes)}
        for node in self.nodes:
            node.gives = [
                replace(g, target=order[id(self._found[g.target])])
                for g in node.gives
                if id(self._found[g.target]) in order
            ]
        return self.nodes

    @property
    def places(self) -> dict[int, int]:
        """Return where a node that ran is among them, by its sequence number."""
        order = {id(node): position for position, node in enumerate(self.nodes)}
        return {
            key: order[id(self._found[index])]
            for key, index in self._index.items()
            if isinstance(key, int) and id(self._found[index]) in order
        }

    def _key(self, node: Any) -> Any:
        variable = getattr(node, "variable", None)
        if variable is not None:  # all leaves have the same number
            return node.metadata.setdefault("baechi", object())
        return _private_autograd.sequence_number(node)

    def _add(self, index: int, node: Any, edges: list[tuple[int, int] | None], inner: bool) -> None:
        variable = getattr(node, "variable", None)
        weight = None if variable is None else self._weight_of(variable)
        op = self._op_of(node) if variable is None else None
        while len(self._found) <= index:
            self._found.append(AutogradNode(None))
            self._edges.append([])
        leaf = self._place_of(variable) if inner and variable is not None else None
        leaf = None if weight is not None else leaf
        behind = self._behind(node) if variable is None else None
        product = node.name() in PRODUCTS
        self._found[index] = AutogradNode(
            op, weight, leaf, self._backwards, behind=behind, is_product=product
        )
        self._edges[index] = edges

        def done(given: Any, received: Any, index: int = index) -> None:
            self._done(index, given, received)

        node.register_prehook(self._begins)
        node.register_hook(done)

    def _begins(self, gradients: Any) -> None:
        self.between = False
        self._told(gradients)

    def _done(self, index: int, given: Any, received: Any) -> None:
        node = self._found[index]
        if node.at >= 0:  # the weight's gradient was accumulated in another backward, too
            node = self._found[index] = replace(node, received={}, gives=[])
        node.at = self._now()
        self.between = True
        if not isinstance(received, (tuple, list)):
            received = (received,)
        for slot, tensor in enumerate(map(_stored, received)):
            place = None if tensor is None else self._place_of(tensor)
            if place is not None:
                node.received[slot] = place
        node.gives = []
        for edge, tensor in zip(self._edges[index], map(_stored, given), strict=False):
            if edge is None:
                continue
            if tensor is None:
                node.gives.append(Gradient(*edge))
                continue
            size = tensor.numel() * tensor.element_size()
            place, addable = self._place_of(tensor), _is_addable(tensor)
            lazy, held = tensor.is_conj() or tensor.is_neg(), _is_view_by_value(tensor)
            node.gives.append(Gradient(*edge, place, size, addable, lazy, held))
        self.nodes.append(node)


@contextlib.contextmanager
def told_before(roots: Iterable[Any], begins: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `begins` with each node at or under `roots`, and its gradients, before it runs."""
    waiting = list(roots)
    found = set(waiting)
    while waiting:
        following = {node for node, _ in waiting.pop().next_functions if node is not None}
        waiting += following - found
        found |= following
    handles = [node.register_prehook(functools.partial(begins, node)) for node in found]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _stored(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return what of a gradient needs memory: of a sparse one the values."""
    if gradient is None or gradient.layout is not torch.sparse_coo:
        return gradient
    return gradient._values()


def _is_addable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no view and lies in memory without gaps and without overlap.

    A view holds the tensor that it is a view of, so the engine is never the only one.
    """
    if tensor._base is not None:
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _is_view_by_value(tensor: torch.Tensor) -> bool:
    """Whether a view has other values than what it is a view of: a part of complex numbers, say.

    Autograd knows how to make such a view again, and holds what it is of for that, too: it is not
    to be told from one that is held elsewhere (`run.sent_gradients`).
    """
    base = tensor._base
    if base is None:
        return False
    lazy = tensor.is_conj() != base.is_conj() or tensor.is_neg() != base.is_neg()
    return lazy or tensor.is_complex() != base.is_complex()
