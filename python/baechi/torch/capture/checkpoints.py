# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a model: the calls of its `torch.utils.checkpoint`, which stand twice in a graph.

Dynamo marks them. What a second run reads is alive, or a second run, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import base_of, is_backward, is_call, is_move, is_tangent, is_view

AGAIN = "again"


def backward_of(graph: fx.Graph, returned: int) -> set[fx.Node]:
    """Return the nodes of a joint graph that are of its backward."""
    forward = {n for n in graph.output_node().args[0][:returned] if isinstance(n, fx.Node)}
    behind: set[fx.Node] = set()
    for node in graph.nodes:
        is_given = node.op == "placeholder" and is_tangent(node)
        if is_given or is_backward(node) or not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
    for node in reversed(graph.nodes):
        if node in forward:
            forward.update(node.all_input_nodes)
    return {node for node in behind if node.op != "output" and node not in forward}


def calls_again(
    graph: fx.Graph, planned: Callable[[fx.Node], bool] = lambda _: False
) -> list[fx.Node]:
    """Return the calls of a joint graph that run again: by a plan, or by the model.

    The model says so by `torch.utils.checkpoint`, which keeps what others read of a region. What
    reads a tensor that is changed in place does not run again.
    """
    found = []
    changes = [n for n in graph.nodes if _changes(n)]
    changed = {base_of(read) for node in changes for read in node.all_input_nodes}
    for node in graph.nodes:
        region, by_plan = _region(node), planned(node)
        if not is_call(node) or is_backward(node) or _changes(node):
            continue
        if any(base_of(read) in changed for read in node.all_input_nodes):
            continue
        if not (by_plan or region is not None):
            continue
        if by_plan or all(_region(reader) == region for reader in _readers(node)):
            found.append(node)
    return found


def _changes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _region(node: fx.Node) -> Any:
    """Return the number of the checkpoint that a call is in, if that has it run again."""
    policy = node.meta.get("recompute")
    again = torch.utils.checkpoint.CheckpointPolicy
    if policy in (again.MUST_RECOMPUTE, again.PREFER_RECOMPUTE):
        return node.meta.get("ac_graph_id", 0)
    return None


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what reads a call's memory in the forward."""
    for reader in node.users:
        if reader.op == "call_function" and is_view(reader):
            yield from _readers(reader)
        elif not is_backward(reader):
            yield reader


def twins_of(
    graph: fx.Graph, again: Collection[fx.Node], backward: Collection[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Have the nodes of the backward read second runs of some calls; return these by the first.

    Each stands before its first reader, with views and moves of it that are read.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    remade = set(again)
    for node in place:
        shows = node not in backward and (is_view(node) or is_move(node))
        if shows and not remade.isdisjoint(node.all_input_nodes):
            remade.add(node)
    twins: dict[fx.Node, fx.Node] = {}

    def reading(arguments: Any) -> Any:
        return fx.map_arg(arguments, lambda node: twins.get(node, node))

    for reader in [node for node in place if node in backward]:
        needed, todo = set[fx.Node](), [*reader.all_input_nodes]
        while todo:
            node = todo.pop()
            if node in remade and node not in twins and node not in needed:
                needed.add(node)
                todo += node.all_input_nodes
        with graph.inserting_before(reader):
            for node in sorted(needed, key=place.__getitem__):
                args, kwargs = reading((node.args, node.kwargs))
                twin = graph.create_node(node.op, node.target, args, kwargs, f"{node.name}_{AGAIN}")
                twin.meta = {**node.meta, "partitioner_tag": "is_backward"}
                twins[node] = twin
        reader.args, reader.kwargs = reading((reader.args, reader.kwargs))
    return twins
