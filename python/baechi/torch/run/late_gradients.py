# SPDX-License-Identifier: Apache-2.0
"""Where the backward of a segment is cut in two: at its one product with weights.

The gradient that arrives at the product is kept, with what autograd saved there. From these the
gradients of the weights can be taken at any later time, by the same kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from baechi.torch.record.autograd_graph import PRODUCTS


class Product(NamedTuple):
    """A product with weights in autograd's graph of a segment."""

    edge: Any  # where its gradient arrives
    weights: list[torch.Tensor]  # whose gradients come through it
    at_once: list[torch.Tensor]  # the others


def product_in(ends: Sequence[Any], trained: list[torch.Tensor]) -> Product | None:
    """Return the product below these edges; None if there are several, or weights read twice."""
    products: list[Any] = []
    beside = _leaves((edge.node for edge in ends), products)
    if len(products) != 1:
        return None
    inside: list[Any] = []
    below = _leaves((node for node, _ in products[0].next_functions), inside)
    if inside or beside & below:
        return None
    weights = [weight for weight in trained if id(weight) in below]
    if not weights:
        return None
    at_once = [weight for weight in trained if id(weight) not in below]
    return Product(GradientEdge(products[0], 0), weights, at_once)


def _leaves(roots: Iterable[Any], products: list[Any]) -> set[int]:
    """Return the leaves at or below nodes, by id, but for those below products; collect these."""
    waiting = [node for node in roots if node is not None]
    seen = set(waiting)
    leaves = set()
    while waiting:
        node = waiting.pop()
        if node.name() in PRODUCTS:
            products.append(node)
            continue
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        waiting += following
    return leaves
