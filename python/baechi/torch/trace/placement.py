# SPDX-License-Identifier: Apache-2.0
"""Where the calls of exported graphs run under the placement of a model (Paper 4.3).

A placement names module calls and torch functions, or the calls of one graph. Any other graph of
the model, of another mode or of other arguments, follows it by what its calls are a part of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from baechi.torch.record.recorded_step import Capture
from baechi.torch.trace.blocks import blocks_in
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.graph import ExportedGraph, Node
from baechi.torch.trace.operators import module_devices
from baechi.torch.trace.schedule import Schedule, devices_of, planned_order, scheduled
from baechi.torch.weights.homes import named_weights, weight_of


@dataclass
class Operators:
    """A placement of an exported graph's own operators, where that is what was planned."""

    device_of: dict[str, int]  # by key of a node
    graph: Exported

    def by_call(self) -> dict[tuple[str | None, str, int], int]:
        """Return the devices by what also names an operator in a graph of another mode."""
        return {name: self.device_of[key] for name, key in self.keys_by_call().items()}

    def keys_by_call(self) -> dict[tuple[str | None, str, int], str]:
        """Return the keys of the operators by the same."""
        nodes = self.graph.graph.nodes
        return {name: n.key for name, n in named_calls(nodes) if n.key in self.device_of}


def named_calls(nodes: list[Node]) -> list[tuple[tuple[str | None, str, int], Node]]:
    """Return the calls by recorded operator, what is called, and how often it was before there."""
    count: dict[tuple[str | None, str], int] = {}
    result = []
    for node in nodes:
        if node.kind != "call":
            continue
        name = (node.owner, str(node.target))
        number = count[name] = count.get(name, -1) + 1
        result.append(((*name, number), node))
    return result


@dataclass
class GraphPlacement:
    """What decides where the calls of a graph run, and when."""

    device_of: Mapping[str, int]  # by key of a recorded operator
    operators: Operators | None = None
    push: bool = True  # a tensor leaves as soon as it is made, unless from or to the CPU
    starts: Mapping[str, int] | None = None  # planned, by key; None: the order of the program
    physical: Sequence[Any] = ()  # of the devices; for random generators
    again: Collection[str] = ()  # planned operators that run again in the backward

    def __post_init__(self) -> None:
        self._by_call = {} if self.operators is None else self.operators.by_call()
        self._keys = {} if self.operators is None else self.operators.keys_by_call()

    def scheduled(
        self, graph: ExportedGraph, weights: Mapping[str, int], *, trains: bool = True
    ) -> Schedule:
        """Return the steps of a graph.

        Args:
            graph: The nodes.
            weights: The device of each that it names.
            trains: There is a backward behind it, where operators may run again.

        Raises:
            NotExportedError: One of those cannot in this graph.

        """
        devices = devices_of(graph, weights, self._planned(graph))
        order, blocks = self._order(graph, devices), None
        if self.again and trains:
            blocks, order = blocks_in(
                graph,
                devices,
                self._operator_in(graph),
                self.again,
                order,
                self._generator_on(devices),
            )
        return scheduled(graph, devices, order, early=self._early(devices), blocks=blocks)

    def _operator_in(self, graph: ExportedGraph) -> Callable[[Node], str | None]:
        """Return what says which planned operator a call is a part of."""
        if self.operators is None:
            known = self.device_of.keys()
            return lambda node: node.owner if node.owner in known else None
        names = {node.index: name for name, node in named_calls(graph.nodes)}
        return lambda node: self._keys.get(names[node.index])

    def _generator_on(self, devices: list[int | None]) -> Callable[[Node], Any]:
        """Return what says whose random numbers a call draws."""

        def generator(node: Node) -> Any:
            where = devices[node.index]
            return None if where is None or not self.physical else self.physical[where]

        return generator

    def _early(self, devices: list[int | None]) -> set[int]:
        """Return the devices that send and receive early: a copy from or to the CPU holds it up."""
        if not self.push:
            return set()
        known = self.physical
        used = {device for device in devices if device is not None}
        return {d for d in used if not known or known[d].type not in ("cpu", "meta")}

    def _planned(self, graph: ExportedGraph) -> Callable[[Node], int | None]:
        names = {node.index: name for name, node in named_calls(graph.nodes)}

        def planned(node: Node) -> int | None:
            found = self._by_call.get(names[node.index])
            if found is not None:
                return found
            return None if node.owner is None else self.device_of.get(node.owner)

        return planned

    def _order(self, graph: ExportedGraph, devices: list[int | None]) -> list[int]:
        starts = self.starts
        if starts is None:
            return list(range(len(graph.nodes)))

        def start_of(node: Node) -> int | None:
            return starts.get(node.key, starts.get(node.owner or ""))

        return planned_order(graph, start_of, self._generator_on(devices))


def weights_in(
    model: nn.Module, graph: ExportedGraph, device_of_weight: Mapping[int, int]
) -> dict[str, int]:
    """Return the devices of the weights that a graph names: tied ones have several names.

    Args:
        model: Whose weights they are.
        graph: The nodes.
        device_of_weight: By id of the parameter or buffer.

    """
    return {
        node.target: device_of_weight[id(weight_of(model, node.target))]
        for node in graph.nodes
        if node.kind == "weight"
    }


def operators_of(
    captured: Capture,
    device_of: Mapping[str, str],
    exported: Sequence[Exported],
    index: Mapping[str, int],
) -> tuple[Operators | None, Mapping[str, str]]:
    """Return the placement of a graph's own calls, if it is one, and what it means for modules."""
    for graph in exported:
        keys = {node.key for node in graph.graph.nodes}
        own = {key: device for key, device in device_of.items() if key in keys}
        if len(own) > sum(op.key in device_of for op in captured.ops):
            places = {key: index[device] for key, device in own.items() if device in index}
            return Operators(places, graph), module_devices(graph, captured, own)
    return None, device_of


def ids_by_name(model: nn.Module) -> dict[str, int]:
    """Return what tells parameters and buffers apart, tied ones once."""
    return {name: id(tensor) for name, tensor in named_weights(model)}
