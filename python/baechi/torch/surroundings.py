# SPDX-License-Identifier: Apache-2.0
"""What around a model decides whether a graph of it is right (Paper 4.3, tier 2 of the Assigner).

A graph has the modes and the settings that the model had when it was traced, and knows no hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi.torch import _private
from baechi.torch.capture import call_arguments
from baechi.torch.exported import Call, Exported, export, modes_of, structure_of
from baechi.torch.exported_graph import NotExportedError

_PLAIN = (type(None), bool, int, float, complex, str)
_OF_PLACED = ("forward", "_apply")  # a placed module has its own
_OWN = frozenset([*vars(nn.Module()), *_OF_PLACED])
_MANY = 1000  # members of a container that are looked at
_DEPTH = 3


def check_surroundings(modules: Iterable[nn.Module], device_types: Iterable[str]) -> None:
    """Raise NotExportedError where a graph would not do what the model's own code does.

    Args:
        modules: Those inside the model; its own hooks run around the graph.
        device_types: Where it runs.

    """
    if torch.is_autocast_enabled("cpu") or any(map(torch.is_autocast_enabled, device_types)):
        raise NotExportedError("under autocast precisions follow the eager code")
    if _private.has_global_module_hooks():
        raise NotExportedError("all modules have hooks")
    for module in modules:
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        ):
            raise NotExportedError("modules inside it have hooks")


def _setting(value: Any, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (nn.Module, torch.Tensor)) or depth == 0:
        return id(value)
    if isinstance(value, (list, tuple, set, Mapping)):
        if len(value) > _MANY:
            return id(value), len(value)
        members = value.items() if isinstance(value, Mapping) else value
        return type(value), [_setting(member, depth - 1) for member in members]
    inside = getattr(value, "__dict__", None)
    if inside is None or isinstance(value, type) or callable(value):
        return id(value)
    return id(value), [(name, _setting(v, depth - 1)) for name, v in inside.items()]


def settings_of(model: nn.Module) -> list[Any]:
    """Return the attributes of all modules that a forward may read, for a comparison."""
    return [
        (path, name, _setting(value, _DEPTH))
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OWN
    ]


@dataclass
class ExampleGraph:
    """The graph of a model for its example inputs, or why there is none."""

    exported: Exported | None = None
    reason: str = ""
    settings: list[Any] = field(default_factory=list)  # of the model when it was made
    refused: dict[Any, str] = field(default_factory=dict)  # by structure and modes


def graph_of_example(
    model: nn.Module,
    example_inputs: Any,
    units: Any,
    device_types: Iterable[str],
    known: Iterable[Exported] = (),
    *,
    training: bool = True,
) -> ExampleGraph:
    """Return the graph that will run the example inputs: one that is known, or a new one."""
    result = ExampleGraph(settings=settings_of(model))
    try:
        with torch.set_grad_enabled(training):
            check_surroundings(list(model.modules())[1:], device_types)
            result.exported = _known_or_new(result, model, example_inputs, units, known)
    except NotExportedError as reason:
        result.reason = str(reason)
    return result


def _known_or_new(
    result: ExampleGraph,
    model: nn.Module,
    example_inputs: Any,
    units: Any,
    known: Iterable[Exported],
) -> Exported:
    tensors: list[torch.Tensor] = []
    call = Call(*call_arguments(example_inputs))
    structure = structure_of((call.args, call.kwargs), tensors)
    modes = modes_of(list(model.modules()))
    for graph in known:
        if (graph.structure, graph.modes) == (structure, modes) and graph.accepts(tensors):
            return graph
    try:
        graph = export(model, call, units=units)
        if not graph.accepts(tensors):
            raise NotExportedError("its graph does not take the arguments it was made for")
    except NotExportedError as reason:
        result.refused[structure, modes] = str(reason)
        raise
    return graph
