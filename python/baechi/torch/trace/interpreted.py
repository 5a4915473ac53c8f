# SPDX-License-Identifier: Apache-2.0
"""Runs an exported graph call by call on one device, as a recorder wants to see it (Paper 4.1)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from baechi.torch.trace.blocks import Blocks
from baechi.torch.trace.graph import ExportedGraph, Node, Ref
from baechi.torch.trace.segments import Segment

Call = Callable[[Node, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
# Runs a block: what it is, what computes it from its arguments, and these.
RunBlock = Callable[[Segment, Callable[..., tuple[Any, ...]], list[Any]], Sequence[Any]]


class _Interpreter:
    """Runs nodes one by one."""

    def __init__(
        self,
        graph: ExportedGraph,
        weights: Mapping[str, torch.Tensor],
        device: torch.device,
        call: Call,
        made: Callable[[Node, Any], None] | None,
    ) -> None:
        self._graph = graph
        self._weights = weights
        self._device = device
        self._call = call
        self._made = made

    def value(self, node: Node, values: Mapping[int, Any], inputs: Sequence[Any]) -> Any:
        """Return the value of a node."""
        if node.kind == "weight":
            value = self._weights[node.target]
        elif node.kind == "constant":
            value = node.target.to(self._device)
        elif node.kind == "input":
            value = inputs[node.target]
        else:
            args = self._real(node.args, values)
            kwargs = {k: self._real(v, values) for k, v in node.kwargs.items()}
            kwargs.pop("pin_memory", None)
            plain = node.is_host or node.part_of is not None
            with contextlib.ExitStack() as stack:
                for context in node.contexts:
                    stack.enter_context(context(self._device))
                run = node.target if plain else functools.partial(self._call, node, node.target)
                value = run(*args, **kwargs) if plain else run(args, kwargs)
        if self._made is not None:
            self._made(node, value)
        return value

    def _real(self, value: Any, values: Mapping[int, Any]) -> Any:
        if isinstance(value, Ref):
            return values[value.node]
        if isinstance(value, torch.device):
            return self._device
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(v, values) for v in value)
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return slice(*(self._real(part, values) for part in parts))
        return value

    def inside(self, segment: Segment, *taken: Any) -> tuple[Any, ...]:
        """Run a block from what it reads to what it makes."""
        values = dict(zip(segment.reads, taken, strict=True))
        nodes = [self._graph.nodes[n] for n in segment.nodes]
        last = {read: node.index for node in nodes for read in node.reads}
        for node in nodes:
            for read in node.reads:
                if read not in values:  # a weight or a constant
                    values[read] = self.value(self._graph.nodes[read], values, ())
            values[node.index] = self.value(node, values, ())
            for read in node.reads:
                if last[read] == node.index and read not in segment.makes:
                    values.pop(read, None)
        return tuple(values[m] for m in segment.makes)


def interpreted(
    graph: ExportedGraph,
    weights: Mapping[str, torch.Tensor],
    device: torch.device,
    inputs: list[torch.Tensor],
    call: Call,
    *,
    order: Sequence[int] | None = None,
    made: Callable[[Node, Any], None] | None = None,
    blocks: Blocks | None = None,
    block: RunBlock | None = None,
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
        blocks: Calls that run as one, and are side by side in that order.
        block: Runs one of these.

    """
    blocks = blocks or Blocks()
    values: dict[int, Any] = {}
    left = {n: len(users) for n, users in graph.users.items()}
    interpreter = _Interpreter(graph, weights, device, call, made)
    over: set[int] = set()  # nodes of blocks that ran
    for index in range(len(graph.nodes)) if order is None else order:
        node, segment = graph.nodes[index], blocks.segments.get(index)
        if index in over:
            continue
        if segment is None:
            values[index] = interpreter.value(node, values, inputs)
            nodes: Sequence[int] = (index,)
        else:
            assert block is not None
            run = functools.partial(interpreter.inside, segment)
            found = block(segment, run, [values[read] for read in segment.reads])
            values.update(zip(segment.makes, found, strict=True))
            nodes = segment.nodes
            over.update(nodes)
            del found
        for n in nodes:
            for read in graph.nodes[n].reads:
                left[read] -= 1
                if left[read] == 0 and read not in graph.outputs:
                    values.pop(read, None)
    return [values[o] for o in graph.outputs]
