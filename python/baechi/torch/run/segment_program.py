# SPDX-License-Identifier: Apache-2.0
"""Each segment of a graph as one straight Python function (tier 2, micro-batches)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.run.program import Source, call_text
from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.trace.segments import Segment
from baechi.torch.weights.homes import table_of


def function_of(
    graph: ExportedGraph, segment: Segment, model: nn.Module, devices: list[LogicalDevice]
) -> Any:
    """Return what runs a segment: from what it reads to what it makes.

    Its attribute `from_list` takes what it reads as a list, which it empties: nobody else need hold
    a value behind the last call that reads it.
    """
    source = Source()
    where = None if segment.device is None else devices[segment.device].torch_device

    constants: dict[int, torch.Tensor] = {}

    def local(read: int) -> str:
        node = graph.nodes[read]
        if node.kind == "constant":
            if read not in constants:
                constants[read] = node.target if where is None else node.target.to(where)
            return source.name(constants[read], "constant")
        return f"v{read}"

    last: dict[int, int] = {}
    for n in segment.nodes:
        last.update(dict.fromkeys(graph.nodes[n].reads, n))
    for weight in segment.weights:
        table, attribute = table_of(model, graph.nodes[weight].target)
        source.lines.append(f"v{weight} = {source.name(table, 'weights')}[{attribute!r}]")
    for n in segment.nodes:
        node = graph.nodes[n]
        on = source.name(where or torch.device("cpu"), "device") if node.contexts else ""
        around = [f"{source.name(c, 'context')}({on})" for c in node.contexts]
        indent = "    " if around else ""
        if around:
            source.lines.append(f"with {', '.join(around)}:")
        source.lines.append(f"{indent}v{n} = {call_text(source, node, local, where)}")
        done = [r for r in dict.fromkeys(node.reads) if last[r] == n and r not in segment.makes]
        done = [r for r in done if graph.nodes[r].kind != "constant"]
        if done:
            source.lines.append(indent + " = ".join(f"v{r}" for r in done) + " = None")
    parameters = ", ".join(f"v{r}" for r in segment.reads)
    returned = "(" + "".join(f"v{m}, " for m in segment.makes) + ")"
    function: Any = source.compiled("segment", parameters, returned)
    if segment.reads:
        source.lines[:0] = [f"({parameters},) = taken", "taken.clear()"]
    function.from_list = source.compiled("segment_from_list", "taken", returned)
    return function
