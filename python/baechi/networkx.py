# SPDX-License-Identifier: Apache-2.0
"""Graphs from and to NetworkX (extra ``baechi[networkx]``).

Nodes are operator names with the attributes of ``GraphBuilder.add``; an edge that carries data
has ``port`` (default 0), one that only orders has ``control=True``.
"""

from __future__ import annotations

from typing import Any

import networkx as nx

from baechi._core import Graph, GraphBuilder, InputError

_ATTRIBUTES = {
    "times",
    "kind",
    "permanent",
    "temporary",
    "outputs",
    "colocate",
    "forward",
    "backward",
    "device",
    "per_step",
    "recompute",
    "variable",
    "writes",
    "random",
}


def to_networkx(graph: Graph) -> nx.MultiDiGraph:
    """Return the graph with all its attributes; ``from_networkx`` gives an equal one back."""
    result = nx.MultiDiGraph(
        name=graph.name, memory_mode=graph.memory_mode, batch_size=graph.batch_size
    )
    for index in range(len(graph)):
        op = graph[index]
        result.add_node(op.name, **{name: getattr(op, name) for name in sorted(_ATTRIBUTES)})
    for index in range(len(graph)):
        op = graph[index]
        for producer, port in op.inputs:
            result.add_edge(producer, op.name, port=port)
        for other in op.after:
            result.add_edge(other, op.name, control=True)
    return result


def from_networkx(graph: nx.DiGraph) -> Graph:
    """Build a Graph from a directed acyclic NetworkX graph whose nodes are operator names."""
    if not graph.is_directed():
        raise InputError(
            "the NetworkX graph is undirected: an edge leads from what makes a tensor to what "
            "reads it, so give a networkx.DiGraph"
        )
    try:
        order = list(nx.topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(repr(edge[0]) for edge in nx.find_cycle(graph))
        raise InputError(f"the NetworkX graph has a cycle: {cycle}") from None
    attributes: dict[str, Any] = graph.graph
    builder = GraphBuilder(
        attributes.get("name", ""),
        memory_mode=attributes.get("memory_mode", "dataflow"),
        batch_size=attributes.get("batch_size"),
    )
    # Ids keep the node order where edges allow it. A forward operator may stand after its backward
    # one, and a variable after who writes it, so those are said last.
    forward_of: dict[str, str] = {}
    written: list[tuple[str, str]] = []
    position = {node: i for i, node in enumerate(graph.nodes)}
    ordered = all(position[a] < position[b] for a, b in graph.edges())
    for node in graph.nodes if ordered else order:
        given = dict(graph.nodes[node])
        if not isinstance(node, str):
            raise InputError(f"node {node!r} is not a string: nodes are operator names")
        unknown = sorted(set(given) - _ATTRIBUTES)
        if unknown:
            raise InputError(
                f"node {node!r} has an unknown attribute {unknown[0]!r}; known: "
                f"{', '.join(sorted(_ATTRIBUTES))}"
            )
        if "times" not in given and not given.get("variable", False):
            raise InputError(
                f"node {node!r} has no attribute 'times': nanoseconds by kind of device, such as "
                "{'gpu': 1000}"
            )
        if (forward := given.pop("forward", None)) is not None:
            forward_of[node] = forward
        written += [(node, variable) for variable in given.pop("writes", [])]
        inputs, after = [], []
        for producer, _, edge in graph.in_edges(node, data=True):
            if edge.get("control", False):
                after.append(producer)
            else:
                inputs.append((producer, edge.get("port", 0)))
        builder.add(node, given.pop("times", {}), inputs=inputs, after=after, **given)
    for node, forward in forward_of.items():
        builder.set_forward(node, forward)
    for node, variable in written:
        builder.add_write(node, variable)
    return builder.build()
