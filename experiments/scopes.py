# SPDX-License-Identifier: Apache-2.0
"""Placements by the names of operators: experts' ones, and equal numbers of layers per device.

Gradients, clipping and optimizer updates follow what they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import baechi

_DERIVED = re.compile(r"^(?:gradients/|clip/|optimizer/|\w+/update_)")


def home(name: str) -> str:
    """The name of the operator or variable that a gradient or an update belongs to."""
    return _DERIVED.sub("", name)


def _place(
    graph: baechi.Graph, devices: Sequence[str], index_of: Callable[[str], int | None]
) -> dict[str, str]:
    """Device by operator, from the device index that a name stands for.

    What has no such index is where its forward operator is, else where the operator before it is;
    the first member of a colocation group decides for all of it.
    """
    index: dict[str, int] = {}
    of_group: dict[str, int] = {}
    last = 0
    for name in graph.names:
        operator = graph[name]
        groups = operator.colocate
        chosen = next((of_group[group] for group in groups if group in of_group), None)
        if chosen is None and operator.forward is not None:
            chosen = index.get(operator.forward)
        if chosen is None:
            chosen = index_of(home(name))
        if chosen is None:
            chosen = last
        elif not operator.backward:
            last = chosen
        index[name] = chosen
        for group in groups:
            of_group.setdefault(group, chosen)
    return {name: devices[chosen] for name, chosen in index.items()}


def by_rules(
    graph: baechi.Graph, devices: Sequence[str], rules: Mapping[str, int]
) -> dict[str, str]:
    """An expert's placement: the first pattern that a name begins with says the device's index.

    An index counts from the back if it is negative, and around if there are too few devices.
    """
    patterns = [(re.compile(pattern), number) for pattern, number in rules.items()]

    def index_of(name: str) -> int | None:
        for pattern, number in patterns:
            if pattern.match(name):
                return number % len(devices)
        return None

    return _place(graph, devices, index_of)


def layers(graph: baechi.Graph, pattern: str) -> list[str]:
    """The layers that the pattern finds in the names of forward operators, in their order."""
    found: dict[str, None] = {}
    expression = re.compile(pattern)
    for name in graph.names:
        if match := expression.match(home(name)):
            found.setdefault(match.group())
    return list(found)


def equal_layers(graph: baechi.Graph, devices: Sequence[str], pattern: str) -> dict[str, str]:
    """As many layers on each device as on any other, in order; the rest with the layer before."""
    order = layers(graph, pattern)
    if not order:
        raise ValueError(f"no operator of '{graph.name}' is in a layer {pattern!r}")
    number = {layer: i * len(devices) // len(order) for i, layer in enumerate(order)}
    expression = re.compile(pattern)

    def index_of(name: str) -> int | None:
        match = expression.match(name)
        return number[match.group()] if match else None

    return _place(graph, devices, index_of)


def by_module(
    graph: baechi.Graph,
    devices: Sequence[str],
    module_of: Mapping[str, str],
    device_map: Mapping[str, int],
) -> dict[str, str]:
    """A Hugging Face device map (device index by module) as a placement of operators.

    ``module_of`` has the modules of the operators with weights; others are in the module that
    their scope names, if the map has it or one around it.
    """

    def lookup(path: str) -> int | None:
        while path:
            if path in device_map:
                return device_map[path]
            path = path.rpartition(".")[0]
        return device_map.get("")

    def index_of(name: str) -> int | None:
        return lookup(module_of.get(name, name.replace("/", ".")))

    return _place(graph, devices, index_of)
