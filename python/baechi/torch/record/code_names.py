# SPDX-License-Identifier: Apache-2.0
"""What a model's code reads that is neither argument nor attribute: globals, closures, classes.

The code of the model's classes is looked through, and that of the functions and classes it names,
but for Python's, NumPy's and PyTorch's own. Of other installed packages only the `forward` of
modules is.
"""

from __future__ import annotations

import argparse
import dis
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from baechi.torch.record.replayed import Replayed

_SIZES = ("sympy", "mpmath")  # what PyTorch computes with while it traces
_LIBRARIES = frozenset([*sys.stdlib_module_names, "torch", "numpy", "baechi", *_SIZES])
_VALUES = (bool, int, float, complex, str, list, tuple, set, dict, torch.Tensor, Replayed)
_HOLDERS = ("numpy", "collections", "itertools", "random", "builtins", "queue")  # of data
_MANY = 1000  # members of a container that are looked at
_RECORDS = (SimpleNamespace, argparse.Namespace)
_CACHING = functools._lru_cache_wrapper


def of_library(module: str | None) -> bool:
    """Whether a Python module is not the user's, but Python's, NumPy's, PyTorch's or ours."""
    return module is None or module.partition(".")[0] in _LIBRARIES


@functools.cache
def installed(module: str) -> bool:
    """Whether a Python module is part of an installed package."""
    file = str(getattr(sys.modules.get(module), "__file__", None))
    return "site-packages" in file or "dist-packages" in file


def cache_in(value: Any) -> Any:
    """Return the function with a cache that a value in a namespace is or stands for, or None."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.partial):
        value = value.func
    return value if isinstance(value, _CACHING) else None


def with_function(value: Any, function: Callable[..., Any]) -> Any:
    """Return what a value in a namespace would be with another function in it."""
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(function)
    if isinstance(value, property):
        return property(function, value.fset, value.fdel, value.__doc__)
    if isinstance(value, functools.partial):
        return functools.partial(function, *value.args, **value.keywords)
    return function


@dataclass(frozen=True)
class Names:
    """Some names of a namespace: a module's globals, a class, or one variable of a closure."""

    where: str  # for messages
    owner: dict[str, Any] | type | CellType
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def values(self) -> tuple[Any, ...]:
        """Return what they are now; raises KeyError if one is no more."""
        if isinstance(self.owner, CellType):
            try:
                return (self.owner.cell_contents,)
            except ValueError:  # it was deleted
                raise KeyError(self.names[0]) from None
        table = vars(self.owner) if isinstance(self.owner, type) else self.owner
        return tuple([table[name] for name in self.names])

    def put(self, values: tuple[Any, ...]) -> None:
        """Give the names other values."""
        for name, value in zip(self.names, values, strict=True):
            if isinstance(self.owner, CellType):
                self.owner.cell_contents = value
            elif isinstance(self.owner, dict):
                self.owner[name] = value
            else:
                setattr(self.owner, name, value)


@functools.lru_cache(maxsize=1 << 14)
def _globals_of(code: CodeType) -> tuple[tuple[str, str | None], ...]:
    """Return the globals that code names, each with the attribute that is taken of it, if any."""
    found: dict[tuple[str, str | None], None] = {}
    before: str | None = None
    for instruction in dis.get_instructions(code):
        if before is not None:
            taken = (
                instruction.argval if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") else None
            )
            found[before, taken] = None
            before = None
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME"):
            before = str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(dict.fromkeys(_globals_of(constant)))
    return tuple(found)


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """Return the functions behind what stands in a class or a namespace."""
    for attribute in ("__func__", "fget", "func", "__wrapped__"):
        inner = getattr(value, attribute, None) if not isinstance(value, type) else None
        if isinstance(inner, FunctionType):
            yield inner
    if isinstance(value, FunctionType):
        yield value


class _Reading:
    """Collects names while code is looked through."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[str, Any, dict[str, None]]] = {}  # by id of the owner
        self._seen: dict[int, Any] = {}  # by id; held, so that no id is used again
        self._waiting: list[Callable[[], None]] = []
        self._caches: dict[tuple[int, str], Names] = {}

    def names(self) -> list[Names]:
        """Return what was found once all has been looked through."""
        while self._waiting:
            self._waiting.pop()()
        return [Names(where, owner, tuple(names)) for where, owner, names in self._found.values()]

    def caches(self) -> list[Names]:
        """Return the names of functions that keep what they return (`functools.lru_cache`)."""
        self.names()
        return list(self._caches.values())

    def note_cache(self, where: str, owner: Any, name: str, value: Any) -> None:
        """Take note of a function if it keeps what it returns."""
        if cache_in(value) is not None:
            self._caches[id(owner), name] = Names(where, owner, (name,))

    def take(self, value: Any) -> None:
        """Look into the code that a value stands for."""
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, type):
            if not of_library(value.__module__):
                self._waiting.append(functools.partial(self._class, value))
            return
        if isinstance(value, functools.partial):
            self.take(value.func)
        if type(value) in (dict, list, tuple) and len(value) <= _MANY:
            for member in value.values() if isinstance(value, dict) else value:
                if callable(member) or type(member) in (dict, list, tuple):
                    self.take(member)
        for function in _functions_in(value):
            self._waiting.append(functools.partial(self._function, function))
        self.take(type(value))

    def _class(self, cls: type) -> None:
        for base in cls.__mro__:
            self.take(base)
        if installed(cls.__module__):
            self.take(vars(cls).get("forward"))
            return
        for name, value in vars(cls).items():
            self.take(value)
            self.note_cache(cls.__qualname__, cls, name, value)
            if not name.startswith("__") and _is_data(value):
                self._note(cls.__qualname__, cls, name)

    def _function(self, function: FunctionType) -> None:
        cells = function.__closure__ or ()
        namespace = function.__globals__
        around = of_library(namespace.get("__name__"))  # the user's, as decorators are
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            self._cell(name, cell, code_only=around)
        if around:
            return
        for name, attribute in _globals_of(function.__code__):
            value = namespace.get(name)
            if not isinstance(value, ModuleType):
                self._global(namespace, name)
            elif attribute is not None and not of_library(value.__name__):
                self._global(vars(value), attribute)

    def _cell(self, name: str, cell: CellType, *, code_only: bool) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # nothing was assigned yet
            return
        if name != "__class__":
            self.take(value)
            self.note_cache("a closure", cell, name, value)
            if not code_only and _is_data(value):
                self._note("a closure", cell, name)

    def _global(self, namespace: dict[str, Any], name: str) -> None:
        if name in namespace:
            self.note_cache(str(namespace.get("__name__")), namespace, name, namespace[name])
            if not installed(str(namespace.get("__name__"))):
                self.take(namespace[name])
            if _is_data(namespace[name]):
                self._note(str(namespace.get("__name__")), namespace, name)

    def _note(self, where: str, owner: Any, name: str) -> None:
        self._found.setdefault(id(owner), (where, owner, {}))[2][name] = None


def _is_data(value: Any) -> bool:
    """Whether a value is more than code: a number, a container, or an object of the user's."""
    if value is None or isinstance(value, (*_VALUES, *_RECORDS)):
        return True
    if isinstance(value, (type, ModuleType, nn.Module)) or hasattr(type(value), "__get__"):
        return False
    of = type(value).__module__
    return not of_library(of) or (
        of.partition(".")[0] in _HOLDERS and not isinstance(value, BuiltinFunctionType)
    )


def _read(model: nn.Module) -> _Reading:
    reading = _Reading()
    for path, module in model.named_modules():
        reading.take(type(module))
        for name, value in vars(module).items():
            reading.take(value)
            reading.note_cache(path, vars(module), name, value)
    return reading


def names_of(model: nn.Module) -> list[Names]:
    """Return the names that hold data and that the code of a model reads or sets."""
    return _read(model).names()


def caches_of(model: nn.Module) -> list[Names]:
    """Return the names of functions of the model's code that keep what they return."""
    return _read(model).caches()
