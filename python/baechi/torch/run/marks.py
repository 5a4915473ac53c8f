# SPDX-License-Identifier: Apache-2.0
"""Marks: the key and the device of every node of a functional graph, in its meta."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import (
    base_of,
    is_call,
    is_move,
    keys_of,
    module_path,
    outside_of,
    shown_by,
)
from baechi.torch.program import Program, calls_of, lower
from baechi.torch.program.instructions import HOST
from baechi.torch.run.away import KEY, TENSOR, Away, readers_of, tensors_of
from baechi.torch.run.placement import Placement

_DEVICE = "baechi_device"  # partitions copy what is in the meta of nodes


def keys_in(graph: fx.Graph) -> dict[fx.Node, str]:
    """Return the keys of the calls of a marked graph."""
    return {n: n.meta[KEY] for n in graph.nodes if n.op == "call_function" and KEY in n.meta}


def devices_of(graph: fx.Graph, placement: Placement) -> dict[fx.Node, int]:
    """Return the device of each node of a marked graph."""
    found = {n: n.meta[_DEVICE] for n in graph.nodes if _DEVICE in n.meta}
    for node in graph.nodes:  # tangents, and what a partition has added
        if node not in found and isinstance(node.meta.get("val"), torch.Tensor):
            found[node] = placement.index_of(node.meta["val"].device)
    return found


def program_of(
    graph: fx.GraphModule,
    placement: Placement,
    promised: Sequence[int | None],
    given: Collection[str] = (),
    *,
    back: bool = False,
) -> Program:
    """Return the program of a marked graph, whose outputs come back on promised devices.

    Inputs that are given come to every device that reads them. ``back``: it is a backward.
    """
    names = keys_in(graph.graph)
    calls = calls_of(graph, devices_of(graph.graph, placement), promised=promised, names=names)
    tensors = tensors_of(calls, names, graph.graph.find_nodes(op="placeholder"))
    return lower(
        calls,
        devices=len(placement.devices),
        order=placement.order(names),
        given=given,
        fetching=placement.away.fetching(calls, tensors, names, back=back),
    )


def promised_by(
    graph: fx.GraphModule, placement: Placement, returned: int | None = None
) -> list[int | None]:
    """Return the device that each output comes back on: what tracing said.

    Outputs from ``returned`` on are saved, and stay where they are.
    """
    outputs = graph.graph.output_node().args[0]
    found: list[int | None] = []
    for i, node in enumerate(outputs):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        stays = returned is not None and i >= returned
        if stays or not isinstance(value, torch.Tensor):
            found.append(None)
        else:
            found.append(placement.index_of(value.device))
    return found


def promised_by_joint(
    graph: fx.GraphModule, placement: Placement, returned: int
) -> list[int | None]:
    """Return the device that each output of a marked joint graph comes back on.

    Outputs from ``returned`` on are gradients, and come back where what they are of lies: tracing
    may have them elsewhere, behind a function with a backward of its own.
    """
    found = promised_by(graph, placement)
    given = {n.meta.get("desc"): n for n in graph.graph.find_nodes(op="placeholder")}
    descs = graph.graph.output_node().meta.get("desc", ())
    for i, desc in list(enumerate(descs))[returned:]:
        node = given.get(getattr(desc, "grad_of", None))
        if node is not None and found[i] is not None:
            found[i] = node.meta.get(_DEVICE)
    return found


def mark(
    graph: fx.Graph,
    placement: Placement,
    homes: Mapping[int, int],
    weights: Mapping[int, str],
) -> None:
    """Write key, device and tensor of every node of a functional graph into its meta.

    ``homes`` are the devices of inputs, by their place, where tensors do not tell them, and
    ``weights`` the names of those that are some.
    """
    ids = placement.names_by_id

    def module_of(node: fx.Node) -> str | None:
        return module_path(node, ids)

    keys = keys_of(graph, module_of, outside_of(graph, ids))
    forward_of: dict[Any, int] = {}
    inputs = itertools.count()
    for node in graph.nodes:
        device = None
        if node.op == "placeholder":
            place, value = next(inputs), node.meta.get("val")
            if place in weights:
                node.meta[TENSOR] = weights[place], 0
            if isinstance(value, torch.Tensor):
                device = homes.get(place, placement.index_of(value.device))
        elif node.op == "call_function":
            if node in keys:
                node.meta[KEY] = keys[node]
                node.meta[TENSOR] = keys[node], 0
            if is_call(node):
                device = _device_of(node, keys.get(node), module_of(node), placement, forward_of)
            else:
                shown = node.all_input_nodes
                base = base_of(node) if not is_move(node) else shown[0]
                device = base.meta.get(_DEVICE)
                _mark_tensor(node)
        if device is not None:
            node.meta[_DEVICE] = device
            if node.op == "call_function" and "seq_nr" in node.meta:
                forward_of.setdefault(node.meta["seq_nr"], device)


def put_away(saved: Sequence[fx.Node], away: Away) -> None:
    """Have what a backward reads, and only fetches, be on the store when it begins."""
    for node in saved:
        if away.store is not None and away.is_put(node.meta.get(TENSOR), set(readers_of(node))):
            node.meta[_DEVICE] = away.store


def _mark_tensor(node: fx.Node) -> None:
    """Write into a view, a part of a result or a move what it shows."""
    shown = node.all_input_nodes[0] if is_move(node) else shown_by(node)
    if shown is None or TENSOR not in shown.meta:
        return
    name, part = shown.meta[TENSOR]
    is_part = node.target is operator.getitem and is_call(shown)
    node.meta[TENSOR] = name, int(node.args[1]) if is_part else part


def _device_of(
    node: fx.Node,
    key: str | None,
    path: str | None,
    placement: Placement,
    forward_of: dict[Any, int],
) -> int:
    """Return a call's device: the plan's, its forward call's, its module's, its largest input's."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    on_host = isinstance(value, torch.Tensor) and placement.index_of(value.device) == HOST
    if on_host:
        return HOST
    found = placement.device_of_key.get(key or "")
    if found is None and node.target is not operator.getitem:
        found = forward_of.get(node.meta.get("seq_nr"))
    if found is None and path is not None:
        found = placement.of_module(path)
    if found is None:
        inputs = [n for n in node.all_input_nodes if _DEVICE in n.meta]
        inputs = [n for n in inputs if isinstance(n.meta.get("val"), torch.Tensor)]
        largest = max(inputs, key=lambda n: n.meta["val"].numel(), default=None)
        found = None if largest is None else largest.meta[_DEVICE]
        found = None if found == HOST else found
    if isinstance(value, torch.Tensor) and (
        found is None or placement.devices[found].type != value.device.type
    ):  # kernels are of the kind of device that they were traced on
        found = placement.index_of(value.device)
    return 0 if found is None else found
