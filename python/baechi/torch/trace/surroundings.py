# SPDX-License-Identifier: Apache-2.0
"""What around a model decides whether a graph of it is right (Paper 4.3, tier 2 of the Assigner).

A graph has the modes and the settings that the model had when it was traced, and knows no hooks.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi.progress import stage
from baechi.torch.base import _private
from baechi.torch.record.capture import call_arguments
from baechi.torch.record.code_names import Names, names_of
from baechi.torch.record.python_state import (
    DEPTH,
    OWN,
    container_of,
    content_of,
    has_content,
    members_of,
    settings_of,
)
from baechi.torch.trace.autocast import autocast_around
from baechi.torch.trace.call_structure import Call, modes_of, structure_of
from baechi.torch.trace.exported import Exported, export
from baechi.torch.trace.graph import NotExportedError


def check_surroundings(
    modules: Iterable[nn.Module], device_types: Collection[str], *, in_steps: bool = False
) -> torch.dtype | None:
    """Return what autocast around the model casts to; None: it is off.

    Args:
        modules: Those inside the model; its own hooks run around the graph.
        device_types: Where it runs.
        in_steps: Who runs the graph switches autocast as it was around the trace.

    Raises:
        NotExportedError: A graph would not do what the model's own code does.

    """
    dtype = None
    if in_steps:
        dtype = autocast_around(device_types)
    elif any(map(torch.is_autocast_enabled, ["cpu", *device_types])):
        raise NotExportedError("under autocast precisions follow the eager code")
    if _private.has_global_module_hooks():
        raise NotExportedError("all modules have hooks")
    if any(map(has_hooks, modules)):
        raise NotExportedError("modules inside it have hooks")
    return dtype


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks would run around a call of a module, or around its backward."""
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(module, name, None) for name in names)


def _first_difference(before: list[Any], now: list[Any]) -> str:
    known: dict[str, Any] = dict(before)
    for what, value in now:
        if what not in known or known[what] != value:
            return str(what)
    return "attribute '...'"


def _look_into(value: Any, depth: int, found: dict[int, Any]) -> None:
    """Find the containers that `_setting` looks into."""
    inside = None if depth == 0 or id(value) in found else container_of(value)
    if inside is None:
        return
    found[id(value)] = inside
    for member in members_of(inside):
        _look_into(member, depth - 1, found)


def _nothing(_: Any) -> Iterable[Any]:
    return ()


_Place = tuple[Any, Callable[[Any], Iterable[Any]]]  # and what is in it


def _inside(places: list[_Place]) -> Iterator[Any]:
    return itertools.chain.from_iterable([values(place) for place, values in places])


class _Content:
    """What a tensor or an array was; it need not live for that."""

    __slots__ = ("content", "get")

    def __init__(self, value: Any) -> None:
        self.get = weakref.ref(value)
        self.content = content_of(value)


def _without_content(value: Any) -> Any:
    return _Content(value) if has_content(value) else value


def _is_still(was: Any, value: Any) -> bool:
    if type(was) is _Content:
        return was.get() is value and was.content == content_of(value)
    return was is value


class Attributes:
    """Tells apart the settings that a model had, as attributes of its modules are changed."""

    def __init__(self, model: nn.Module, settings: list[Any] | None, most: int) -> None:
        self._model = model
        self._variants = [settings_of(model) if settings is None else settings]
        self._most = most
        self._variant: int | None = 0
        self._varying = ""
        self._plain: list[_Place] = []
        self._mixed: list[_Place] = []  # with tensors or arrays, which must not be kept for it
        self._counts: list[int] = []
        self._values: list[Any] = []  # what is in the plain ones, then in the mixed ones

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
            self._varying = "" if known else _first_difference(self._variants[-1], settings)
            self._look()
        if self._variant is None:
            raise NotExportedError(f"its {self._varying} varies too much")
        return self._variant

    def accept(self) -> None:
        """Take the settings for those of the last `variant`: a forward changed them."""
        if not self._same():
            if self._variant is not None:
                self._variants[self._variant] = settings_of(self._model)
            self._look()

    def _same(self) -> bool:
        if [len(place) for place, _ in (*self._plain, *self._mixed)] != self._counts:
            return False
        values = iter(self._values)
        try:
            return (
                bool(self._counts)
                and all(map(operator.is_, _inside(self._plain), values))
                and all(map(_is_still, values, _inside(self._mixed)))
            )
        except KeyError:  # one was deleted, another is new
            return False

    def _look(self) -> None:
        self._plain.clear()
        self._mixed.clear()
        found: dict[int, Any] = {}
        for module in self._model.modules():
            own = vars(module)
            names = [n for n in own if n not in OWN]
            for name in names:
                _look_into(own[name], DEPTH, found)
            several: Any = operator.itemgetter(*names, *names[:1]) if names else _nothing
            self._place(own, several)
        for read in names_of(self._model):
            for value in read.values():
                _look_into(value, DEPTH, found)
            self._place(read, Names.values)
        for inside in found.values():
            self._place(inside, members_of)
        self._counts = [len(place) for place, _ in (*self._plain, *self._mixed)]
        self._values = [*_inside(self._plain), *map(_without_content, _inside(self._mixed))]

    def _place(self, place: Any, values: Callable[[Any], Iterable[Any]]) -> None:
        mixed = any(map(has_content, values(place)))
        (self._mixed if mixed else self._plain).append((place, values))


@dataclass
class ExampleGraph:
    """The graph of a model for its example inputs, or why there is none."""

    exported: Exported | None = None
    reason: str = ""
    settings: list[Any] = field(default_factory=list)  # of the model when it was made
    refused: dict[Any, str] = field(default_factory=dict)  # by structure and modes


@stage("tracing")
def graph_of_example(
    model: nn.Module,
    example_inputs: Any,
    units: Any,
    device_types: Collection[str],
    known: Iterable[Exported] = (),
    *,
    training: bool = True,
    in_steps: bool = False,
) -> ExampleGraph:
    """Return the graph that will run the example inputs: one that is known, or a new one."""
    result = ExampleGraph(settings=settings_of(model))
    try:
        with torch.set_grad_enabled(training):
            inside = list(model.modules())[1:]
            autocast = check_surroundings(inside, device_types, in_steps=in_steps)
            result.exported = _known_or_new(result, model, example_inputs, units, known, autocast)
    except NotExportedError as reason:
        result.reason = str(reason)
    return result


def _known_or_new(
    result: ExampleGraph,
    model: nn.Module,
    example_inputs: Any,
    units: Any,
    known: Iterable[Exported],
    autocast: torch.dtype | None,
) -> Exported:
    tensors: list[torch.Tensor] = []
    call = Call(*call_arguments(example_inputs))
    structure = structure_of((call.args, call.kwargs), tensors)
    modes = modes_of(list(model.modules()), autocast)
    for graph in known:
        if (graph.structure, graph.modes) == (structure, modes) and graph.accepts(tensors):
            return graph
    try:
        graph = export(model, call, units=units, autocast=autocast)
        if not graph.accepts(tensors):
            raise NotExportedError("its graph does not take the arguments it was made for")
    except NotExportedError as reason:
        result.refused[structure, modes] = str(reason)
        raise
    return graph
