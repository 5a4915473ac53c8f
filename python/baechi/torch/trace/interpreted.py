# SPDX-License-Identifier: Apache-2.0
"""Runs an exported graph call by call on one device, as a recorder wants to see it (Paper 4.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from baechi.torch.trace.graph import ExportedGraph, Node, Ref, refs_in


def interpreted(
    graph: ExportedGraph,
    weights: Mapping[str, torch.Tensor],
    device: torch.device,
    inputs: list[torch.Tensor],
    call: Callable[[Node, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
    *,
    order: Sequence[int] | None = None,
    made: Callable[[Node, Any], None] | None = None,
) -> list[torch.Tensor]:
    """Run the graph on one device.

    Args:
        graph: The nodes.
        weights: By the names that the graph has for them.
        device: Where.
        inputs: The arguments of the model.
        call: Runs a call.
        order: Of the nodes; by default that of the program.
        made: Is told of the value of every node.

    """
    values: dict[int, Any] = {}
    left = {n: len(users) for n, users in graph.users.items()}

    def real(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.node]
        if isinstance(value, torch.device):
            return device
        if isinstance(value, (list, tuple)):
            return type(value)(real(v) for v in value)
        if isinstance(value, slice):
            return slice(real(value.start), real(value.stop), real(value.step))
        return value

    for index in range(len(graph.nodes)) if order is None else order:
        node = graph.nodes[index]
        if node.kind == "weight":
            values[node.index] = weights[node.target]
        elif node.kind == "constant":
            values[node.index] = node.target.to(device)
        elif node.kind == "input":
            values[node.index] = inputs[node.target]
        else:
            args, kwargs = real(node.args), {k: real(v) for k, v in node.kwargs.items()}
            kwargs.pop("pin_memory", None)
            plain = node.is_host or node.part_of is not None
            with contextlib.ExitStack() as stack:
                for context in node.contexts:
                    stack.enter_context(context(device))
                values[node.index] = (
                    node.target(*args, **kwargs) if plain else call(node, node.target, args, kwargs)
                )
            del args, kwargs
        if made is not None:
            made(node, values[node.index])
        for read in set(refs_in((node.args, node.kwargs))):
            left[read] -= 1
            if left[read] == 0 and read not in graph.outputs:
                del values[read]
    outputs = [values[o] for o in graph.outputs]
    values.clear()  # `real` refers to itself, and would keep them until they are collected
    return outputs
