# SPDX-License-Identifier: Apache-2.0
"""Backward graphs of which some tangents are undefined: nothing reads those outputs' gradients.

A backward is linear in its tangents. So a call whose tangents are all undefined gives nothing, a
sum passes on what is there, and gradients that nothing reaches are undefined themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import is_tangent, name_of

_SUMS = ("aten::add",)


def without(graph: fx.GraphModule, missing: Collection[int]) -> fx.GraphModule:
    """Return a backward graph without some of its tangents, by their positions among them.

    What a call reads of both kinds is filled with zeros where it is undefined, unless it adds.
    """
    undefined, carried = _undefined(graph.graph, missing)
    new = fx.Graph()
    made: dict[fx.Node, Any] = {}
    for node in graph.graph.nodes:
        if node.op == "output":
            new.output([None if n in undefined else made.get(n, n) for n in _flat(node)])
            continue
        if node in undefined:
            continue
        read = [n for n in node.all_input_nodes if n in carried]
        there = [n for n in read if n not in undefined]
        if len(there) < len(read) and (kept := _summand(node, there)) is not None:
            made[node] = made[kept]
            continue
        filled = {n: _zeros(new, n, there, made) for n in read if n in undefined}
        made[node] = new.node_copy(node, lambda n, f=filled: f[n] if n in f else made[n])
    new.eliminate_dead_code()
    return fx.GraphModule(graph, new)


def reached(graph: fx.GraphModule, missing: Collection[int]) -> list[bool]:
    """Tell which gradients of a backward graph there are without some of its tangents."""
    undefined, _ = _undefined(graph.graph, missing)
    return [node is not None and node not in undefined for node in _flat(graph.graph.output_node())]


def read_later(
    graph: fx.GraphModule, defined: Collection[int], missing: Collection[int]
) -> set[str]:
    """Return the names of what a later backward by the missing tangents may read.

    One that would go again through calls that read what was kept for them is an error in PyTorch,
    so nothing is kept for it.
    """
    tangents = [n for n in graph.graph.nodes if n.op == "placeholder" and is_tangent(n)]
    ran, _ = _reached_by(graph.graph, [tangents[i] for i in defined])
    found: set[str] = set()
    for i in missing:
        later, read = _reached_by(graph.graph, [tangents[i]])
        if not any(read[n] for n in later & ran):
            found.update(name for names in read.values() for name in names)
    return found


def _reached_by(
    graph: fx.Graph, tangents: Collection[fx.Node]
) -> tuple[set[fx.Node], dict[fx.Node, set[str]]]:
    """Return the calls that tangents reach, and the names of what was kept that each reads."""
    _, carried = _undefined(graph, ())
    reached = set(tangents)
    beside: dict[fx.Node, set[str]] = {}  # of what depends on no tangent: the kept that are in it
    read: dict[fx.Node, set[str]] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            beside[node] = set() if is_tangent(node) else {node.name}
            continue
        names = {name for n in node.all_input_nodes for name in beside.get(n, ())}
        if node not in carried:
            beside[node] = names
        elif node.op == "call_function" and any(n in reached for n in node.all_input_nodes):
            reached.add(node)
            read[node] = names
    return reached - set(tangents), read


def _undefined(graph: fx.Graph, missing: Collection[int]) -> tuple[set[fx.Node], set[fx.Node]]:
    """Return what is undefined, and all that depends on tangents."""
    tangents = [n for n in graph.nodes if n.op == "placeholder" and is_tangent(n)]
    undefined, carried = {tangents[i] for i in missing}, set(tangents)
    for node in graph.nodes:
        read = [n for n in node.all_input_nodes if n in carried]
        if node.op == "call_function" and read:
            carried.add(node)
            if all(n in undefined for n in read):
                undefined.add(node)
    return undefined, carried


def _flat(node: fx.Node) -> list[Any]:
    outputs = node.args[0]
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _summand(node: fx.Node, there: list[fx.Node]) -> fx.Node | None:
    """Return the only summand that is there, if it is what the sum would be."""
    if name_of(node) not in _SUMS or len(there) != 1 or node.kwargs:
        return None
    a, b = there[0].meta["val"], node.meta["val"]
    same = a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
    return there[0] if same and a.device == b.device else None


def _zeros(
    graph: fx.Graph, node: fx.Node, there: list[fx.Node], made: dict[fx.Node, Any]
) -> fx.Node:
    value = node.meta["val"]
    sizes = list(value.shape)
    if all(isinstance(size, int) for size in sizes):
        given = {"dtype": value.dtype, "layout": value.layout, "device": value.device}
        zeros = graph.call_function(torch.ops.aten.full.default, (sizes, 0), given)
    else:
        like = next((n for n in there if _alike(n.meta["val"], value)), None)
        if like is None:
            raise NotImplementedError(f"{node.name} has a size that is not known")
        zeros = graph.call_function(torch.ops.aten.zeros_like.default, (made[like],))
    zeros.meta.update(node.meta)
    return zeros


def _alike(a: Any, b: torch.Tensor) -> bool:
    same = isinstance(a, torch.Tensor) and a.dtype == b.dtype
    return same and [str(size) for size in a.shape] == [str(size) for size in b.shape]
