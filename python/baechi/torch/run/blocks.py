# SPDX-License-Identifier: Apache-2.0
"""Blocks of a graph on their devices: each runs as one, and again in the backward if planned so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.runs_again import Operation
from baechi.torch.base.second_runs import may_hook, run_block
from baechi.torch.run.placed_runs import PlacedRuns
from baechi.torch.run.segment_program import function_of
from baechi.torch.trace.blocks import Blocks
from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.trace.segments import Segment
from baechi.torch.weights.homes import table_of

Sources = tuple[Any, ...]  # what will make the arguments again; None: they are held
RunBlock = Callable[..., tuple[Any, ...]]  # of sources and arguments


def name_of(graph: ExportedGraph, segment: Segment) -> str:
    """Return how errors call a segment."""
    return next(iter(segment.operators), graph.nodes[segment.nodes[0]].key)


def block_of(
    graph: ExportedGraph,
    segment: Segment,
    blocks: Blocks,
    model: nn.Module,
    devices: list[LogicalDevice],
    runs: PlacedRuns,
) -> RunBlock:
    """Return what runs a block: what it makes, and behind that what will make it again."""
    call = function_of(graph, segment, model, devices)
    name, again = name_of(graph, segment), segment.index in blocks.repeated
    assert segment.device is not None
    device, nothing = devices[segment.device], (None,) * len(segment.makes) * again
    tables = [table_of(model, graph.nodes[index].target) for index in segment.weights]

    def run(sources: Sources, *taken: Any) -> tuple[Any, ...]:
        if not (torch.is_grad_enabled() and may_hook(runs)):
            return (*runs.compute(call, taken, {}, device), *nothing)
        known = [None if source is None else source.at(device) for source in sources]
        if not again and all(source is None for source in known):
            return (*runs.compute(call, taken, {}, device), *nothing)
        weights = tuple(table[attribute] for table, attribute in tables)
        operation = Operation(name, call, None, weights=weights)
        made, second = run_block(runs, operation, taken, known, device, again=again)
        return (*made, *second)

    return run
