# SPDX-License-Identifier: Apache-2.0
"""A partition: cuts a joint graph in its forward and its backward."""

from __future__ import annotations

from typing import Any

from torch import fx

from baechi.torch.capture.checkpoints import backward_of


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
