# SPDX-License-Identifier: Apache-2.0
"""A partition: cuts a joint graph in its forward and its backward, which runs some calls again.

The backward reads what the forward has saved. What it would read of a call that runs again, or of a
view of one, it makes itself, of what that call reads. A random call saves its generator's state for
its second run.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import is_backward, is_call, is_random, is_view
from baechi.torch.program.second_runs import AGAIN, RunFrom, SaveAndRun
from baechi.torch.run.away import KEY
from baechi.torch.run.undefined import is_tangent

_HERE = torch.device("cpu")  # stands for the device of a call
_STATE = "a generator's state"  # the value of a node that is one


def partition(
    joint: fx.GraphModule, returned: int, again: Collection[fx.Node] = ()
) -> tuple[fx.GraphModule, fx.GraphModule, list[int]]:
    """Return forward and backward of a marked joint graph, and what the backward reads.

    That are places in what the forward gives behind what it returns; tangents follow. Numbers stand
    first in the backward and last in the forward, as AOTAutograd's runtime wants them.

    Args:
        joint: Its outputs are what the forward returns, then gradients.
        returned: How many of them the forward returns.
        again: Calls of the forward that run again in the backward.

    """
    return _Partition(joint, returned, again).result()


class _Partition:
    def __init__(self, joint: fx.GraphModule, returned: int, again: Collection[fx.Node]) -> None:
        self.joint, self.again = joint, frozenset(again)
        outputs = joint.graph.output_node().args[0]
        self.returned, self.gradients = list(outputs[:returned]), list(outputs[returned:])
        self.backward = backward_of(joint.graph, returned)
        self.saved: dict[fx.Node, None] = {}
        self.twice: dict[fx.Node, None] = {}
        for node in joint.graph.nodes:
            if node in self.backward:
                self.need(node.all_input_nodes)
        self.need(node for node in self.gradients if isinstance(node, fx.Node))
        self.saved = dict.fromkeys(sorted(self.saved, key=_is_number))
        twice = self.twice
        self.random = [n for n in joint.graph.nodes if n in twice and is_random(n)]

    def need(self, nodes: Collection[fx.Node] | Iterator[fx.Node]) -> None:
        """Note what is saved, and what runs again, for a reader in the backward."""
        for node in nodes:
            if node in self.backward or node.op == "get_attr":
                continue
            if not self.is_remade(node):
                self.saved[node] = None
            elif node not in self.twice:
                self.need(node.all_input_nodes)
                self.twice[node] = None

    def is_remade(self, node: fx.Node) -> bool:
        """Whether a call runs again, or a node shows what such a call makes."""
        while node not in self.again and is_view(node):
            node = node.all_input_nodes[0]
        return node in self.again

    def result(self) -> tuple[fx.GraphModule, fx.GraphModule, list[int]]:
        place = {node: i for i, node in enumerate(self.saved)}
        read = [place[node] for node in self.numbers_first()]
        read += range(len(self.saved), len(self.saved) + len(self.random))
        forward, backward = self.forward_graph(), self.backward_graph()
        return fx.GraphModule(self.joint, forward), fx.GraphModule(self.joint, backward), read

    def numbers_first(self) -> list[fx.Node]:
        return sorted(self.saved, key=_is_number, reverse=True)

    def forward_graph(self) -> fx.Graph:
        graph, copies, states = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
        for node in self.joint.graph.nodes:
            if node in self.backward or node.op == "output":
                continue
            copies[node] = copy = graph.node_copy(node, copies.__getitem__)
            if node in self.random:
                value, copy.meta["val"] = copy.meta["val"], (copy.meta["val"], _STATE)
                copy.args, copy.target = (_HERE, *copy.args), SaveAndRun(node.target)
                state = graph.call_function(operator.getitem, (copy, 1))
                state.meta["val"] = _STATE
                states.append(state)
                copies[node] = graph.call_function(operator.getitem, (copy, 0))
                copies[node].meta["val"] = value
        returned = [copies[n] if isinstance(n, fx.Node) else n for n in self.returned]
        graph.output([*returned, *(copies[node] for node in self.saved), *states])
        graph.eliminate_dead_code()
        return graph

    def backward_graph(self) -> fx.Graph:
        graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.numbers_first():
            made[node] = graph.placeholder(node.name)
            made[node].meta = dict(node.meta)
        states = {node: graph.placeholder(f"{node.name}_state") for node in self.random}
        for state in states.values():
            state.meta["val"] = _STATE
        for node in self.joint.graph.nodes:
            if node.op == "get_attr" or (node.op == "placeholder" and node in self.backward):
                made[node] = graph.node_copy(node)

        def value(node: fx.Node) -> fx.Node:
            if node not in made:  # it runs again, right before its first reader
                for read in node.all_input_nodes:
                    value(read)
                made[node] = twin = graph.node_copy(node, made.__getitem__)
                if KEY in node.meta:
                    twin.meta[KEY] = f"{node.meta[KEY]}@{AGAIN}"
                if node in states:
                    twin.args = (_HERE, states[node], *twin.args)
                    twin.target = RunFrom(node.target)
            return made[node]

        for node in self.joint.graph.nodes:
            if node in self.backward and node not in made:
                for read in node.all_input_nodes:
                    value(read)
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output([value(n) if isinstance(n, fx.Node) else n for n in self.gradients])
        graph.eliminate_dead_code()
        return graph


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

    The model says so by `torch.utils.checkpoint`, which keeps what others read of a region.
    """
    found = []
    for node in graph.nodes:
        region = _region(node)
        planned = node.meta.get(KEY) in keys
        schema = getattr(node.target, "_schema", None)
        changes = schema is not None and schema.is_mutable
        if not is_call(node) or is_backward(node) or changes:
            continue
        if not (planned or region is not None):
            continue
        if planned or all(_region(reader) == region for reader in _readers(node)):
            found.append(node)
    return found


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


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
