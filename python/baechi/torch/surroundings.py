# SPDX-License-Identifier: Apache-2.0
"""What around a model decides whether a graph of it is right (Paper 4.3, tier 2 of the Assigner).

A graph has the modes and the settings that the model had when it was traced, and knows no hooks.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def _first_difference(before: list[Any], now: list[Any]) -> str:
    for path, name, _ in (v for v in now if v not in before):
        return f"{path}.{name}" if path else str(name)
    return "..."


def _look_into(value: Any, depth: int, found: dict[int, Any]) -> bool:
    """Find the containers that `_setting` looks into; False where they hold a tensor."""
    if isinstance(value, torch.Tensor):
        return False
    if depth == 0 or id(value) in found or isinstance(value, (*_PLAIN, nn.Module)):
        return True
    inside = value
    if not isinstance(value, (list, tuple, set, Mapping)):
        inside = getattr(value, "__dict__", None)
        if inside is None or isinstance(value, type) or callable(value):
            return True
    elif len(value) > _MANY:
        return True
    members = inside.values() if isinstance(inside, Mapping) else inside
    plain = all(_look_into(member, depth - 1, found) for member in members)
    if plain:
        found[id(value)] = inside
    return plain


def _nothing(_: Any) -> Iterable[Any]:
    return ()


def _values(container: Mapping[Any, Any]) -> Iterable[Any]:
    return container.values()


class Attributes:
    """Tells apart the settings that a model had, as attributes of its modules are changed."""

    def __init__(self, model: nn.Module, settings: list[Any] | None, most: int) -> None:
        self._model = model
        self._variants = [settings_of(model) if settings is None else settings]
        self._most = most
        self._variant: int | None = 0
        self._varying = ""
        self._places: list[tuple[Any, Callable[[Any], Iterable[Any]]]] = []  # and what is in them
        self._counts: list[int] = []
        self._values: list[Any] = []  # no tensors, which would be kept for it

    def variant(self) -> int:
        """Return the number of the present settings: those that come back have the same.

        Raises:
            NotExportedError: There were too many.

        """
        if not self._same():
            settings = settings_of(self._model)
            if settings not in self._variants and len(self._variants) < self._most:
                self._variants.append(settings)
            known = settings in self._variants
            self._variant = self._variants.index(settings) if known else None
            self._varying = _first_difference(self._variants[-1], settings)
            self._look()
        if self._variant is None:
            raise NotExportedError(f"its attribute {self._varying!r} varies too much")
        return self._variant

    def accept(self) -> None:
        """Take what changed since `variant` for no other settings: the forward changed it."""
        if not self._same():
            self._look()

    def _same(self) -> bool:
        if [len(place) for place, _ in self._places] != self._counts:
            return False
        try:
            return bool(self._counts) and all(map(operator.is_, self._now(), self._values))
        except KeyError:  # one was deleted, another is new
            return False

    def _now(self) -> Iterator[Any]:
        return itertools.chain.from_iterable([values(place) for place, values in self._places])

    def _look(self) -> None:
        self._places.clear()
        found: dict[int, Any] = {}
        for module in self._model.modules():
            own = vars(module)
            names = [n for n in own if n not in _OWN and _look_into(own[n], _DEPTH, found)]
            several: Any = operator.itemgetter(*names, *names[:1]) if names else _nothing
            self._places.append((own, several))
        for inside in found.values():
            self._places.append((inside, _values if isinstance(inside, Mapping) else iter))
        self._counts = [len(place) for place, _ in self._places]
        self._values = list(self._now())


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
