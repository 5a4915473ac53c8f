# SPDX-License-Identifier: Apache-2.0
"""A partition: cuts a joint graph in its forward and its backward, and finds what runs again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import base_of, is_backward, is_call, is_view
from baechi.torch.run.away import KEY
from baechi.torch.run.undefined import is_tangent


def partition(joint: fx.GraphModule, returned: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return forward and backward of a marked joint graph.

    What the forward gives behind what it returns, the backward reads in that order, and then
    tangents.

    Args:
        joint: Its outputs are what the forward returns, then gradients.
        returned: How many of them the forward returns.

    """
    graph = joint.graph
    outputs = list(graph.output_node().args[0])
    behind = backward_of(graph, returned)
    read = [n for node in graph.nodes if node in behind for n in node.all_input_nodes]
    read += [n for n in outputs[returned:] if isinstance(n, fx.Node)]
    saved = dict.fromkeys(n for n in read if n not in behind and n.op != "get_attr")
    forward, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node not in behind and node.op != "output":
            copies[node] = forward.node_copy(node, copies.__getitem__)
    forward.output([_made(n, copies) for n in (*outputs[:returned], *saved)])
    backward, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in saved:
        made[node] = backward.placeholder(node.name)
        made[node].meta = dict(node.meta)
    beginning = [n for n in graph.nodes if n.op == "get_attr"]
    beginning += [n for n in graph.nodes if n.op == "placeholder" and n in behind]
    for node in (*beginning, *(n for n in graph.nodes if n in behind)):
        if node not in made:
            made[node] = backward.node_copy(node, made.__getitem__)
    backward.output([_made(n, made) for n in outputs[returned:]])
    for half in (forward, backward):
        half.eliminate_dead_code()
    return fx.GraphModule(joint, forward), fx.GraphModule(joint, backward)


def _made(value: Any, copies: dict[fx.Node, fx.Node]) -> Any:
    return copies[value] if isinstance(value, fx.Node) else value


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


def calls_again(graph: fx.Graph, keys: Collection[str]) -> list[fx.Node]:
    """Return the calls of a marked joint graph that run again: by the plan, or by the model.

    The model says so by `torch.utils.checkpoint`, which keeps what others read of a region. What
    reads a tensor that is changed in place does not run again.
    """
    found, memo = [], dict[fx.Node, fx.Node]()
    changes = [n for n in graph.nodes if _changes(n)]
    changed = {base_of(read, memo) for node in changes for read in node.all_input_nodes}
    for node in graph.nodes:
        region = _region(node)
        planned = node.meta.get(KEY) in keys
        if not is_call(node) or is_backward(node) or _changes(node):
            continue
        if any(base_of(read, memo) in changed for read in node.all_input_nodes):
            continue
        if not (planned or region is not None):
            continue
        if planned or all(_region(reader) == region for reader in _readers(node)):
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
