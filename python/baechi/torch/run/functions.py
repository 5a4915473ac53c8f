# SPDX-License-Identifier: Apache-2.0
"""Functions in graphs of dynamo's that no function mode sees: each runs on one device.

These are those with a backward of their own: what the mode brought together inside would leave that
with gradients on other devices than those of what they were given. And assignments to parts of a
tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set
from typing import Any

import torch
from torch import fx

_MOVE = torch.ops.aten._to_copy.default


def bring_together(graph: fx.GraphModule, devices: Set[torch.device]) -> None:
    """Have what no mode has seen read and run on one device of a plan.

    It is that of the first tensor that it is given; what it returns goes to where tracing had it.
    """
    for node in list(graph.graph.nodes):
        if node.target is operator.setitem and (home := _device(node.args[0])) in devices:
            apart = [n for n in node.all_input_nodes if _device(n) in devices - {home}]
            _bring(graph.graph, node, apart, home)
        if node.target is not torch.ops.higher_order.autograd_function_apply:
            continue
        read = {n: device for n in node.args[2:] if (device := _device(n)) in devices}
        if len(set(read.values())) < 2:
            continue
        home = next(iter(read.values()))
        _bring(graph.graph, node, [n for n, device in read.items() if device != home], home)
        for body in node.args[:2]:
            _settle(graph.get_submodule(str(body.target)), home, devices)
        for part in list(node.users):
            if _device(part) in devices and _device(part) != home:
                _send_on(graph.graph, part)
    graph.recompile()


def _bring(graph: fx.Graph, node: fx.Node, apart: Iterable[fx.Node], home: Any) -> None:
    """Have a node read copies on a device of what is on others."""
    with graph.inserting_before(node):
        for given in apart:
            moved = graph.call_function(_MOVE, (given,), {"device": home})
            moved.meta = dict(given.meta)
            node.replace_input_with(given, moved)


def _device(node: Any) -> torch.device | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value.device if isinstance(value, torch.Tensor) else None


def _settle(body: Any, home: torch.device, devices: Set[torch.device]) -> None:
    """Let a graph run on one device: moves between those of the plan go."""

    def here(value: Any) -> Any:
        return home if isinstance(value, torch.device) and value in devices else value

    for node in list(body.graph.nodes):
        if node.target is _MOVE and node.kwargs.get("device") in devices and len(node.kwargs) == 1:
            node.replace_all_uses_with(node.args[0])
            body.graph.erase_node(node)
        else:
            node.args = fx.node.map_aggregate(node.args, here)
            node.kwargs = fx.node.map_aggregate(node.kwargs, here)
    body.recompile()


def _send_on(graph: fx.Graph, part: fx.Node) -> None:
    with graph.inserting_after(part):
        sent = graph.call_function(_MOVE, (part,), {"device": _device(part)})
    sent.meta = dict(part.meta)
    part.replace_all_uses_with(sent, delete_user_cb=lambda user: user is not sent)
