# SPDX-License-Identifier: Apache-2.0
"""Where a backward begins in the middle: with gradients that nobody holds longer than it does.

`torch.autograd.grad` holds the gradients that it is given until it returns, which is as long as the
backward of all that lies behind. What is given here are tensors without memory of their own; the
node that a gradient is for takes it from a list when it runs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch


class Begin(torch.autograd.Function):
    """Where autograd begins in a segment: it holds no memory until a gradient comes."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> Any:  # noqa: ARG004
        """Return the value as what has a node, which is where its gradient will be."""
        ctx.came = None
        ctx.set_materialize_grads(False)
        return value.data

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Keep what came."""
        (ctx.came,) = gradients
        return None, None


class Begun:
    """What the backward pass of a segment needs: nodes of autograd, and what keeps them."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[tuple[int, Any]] = []  # the values that came, by their node
        self.ends: list[tuple[int, Any]] = []  # those that were made, by their edge

    def take(self) -> list[torch.Tensor | None]:
        """Return the gradients of the values that came, and hold them no more."""
        came = [node.came for _, node in self.starts]
        for _, node in self.starts:
            node.came = None
        return came


@contextlib.contextmanager
def begin_with(
    ends: Sequence[Any], wanted: Collection[Any], gradients: list[torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """Yield what to give to `torch.autograd` for these edges; `gradients` is emptied.

    Args:
        ends: Where the backward begins.
        wanted: The nodes whose gradients are asked for; weights may be asked for beside them.
        gradients: Those of `ends`, which only the caller holds.

    """
    waiting: dict[Any, dict[int, torch.Tensor]] = {}  # by the number of a node's output
    begins: list[torch.Tensor] = []
    nodes = [edge.node for edge in ends]
    as_given = _reached(nodes) | _twice(ends) | set(wanted)
    for edge, gradient in zip(ends, gradients, strict=True):
        if edge.node in as_given or hasattr(edge.node, "variable"):
            begins.append(gradient)
            continue
        waiting.setdefault(edge.node, {})[edge.output_nr] = gradient
        begins.append(gradient.new_empty(()).expand(gradient.shape))
    gradients.clear()
    del gradient
    handles = [node.register_prehook(_given(taken)) for node, taken in waiting.items()]
    try:
        yield begins
    finally:
        for handle in handles:
            handle.remove()


def _given(taken: dict[int, torch.Tensor]) -> Any:
    def give(arrived: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(taken.pop(i, gradient) for i, gradient in enumerate(arrived))

    return give


def _twice(ends: Sequence[Any]) -> set[Any]:
    """Return the nodes with an output that two gradients are for: autograd adds them up."""
    count = Counter((edge.node, edge.output_nr) for edge in ends)
    return {node for (node, _), times in count.items() if times > 1}


def _reached(nodes: Sequence[Any]) -> set[Any]:
    """Return those of some nodes that others of them lead to: what comes from these is added."""
    several = set(nodes)
    if len(several) == 1:
        return set()
    waiting, seen = list(several), set()
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return several & seen
