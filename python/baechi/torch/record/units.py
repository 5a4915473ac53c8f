# SPDX-License-Identifier: Apache-2.0
"""Which modules become one operator, as `units=` says (Paper 3.2)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base import _private_compile


def is_unit_by_default(module: nn.Module) -> bool:
    """Whether a module has no inside to look at: leaves, compiled ones, own weights' makers."""
    return (
        next(module.children(), None) is None
        or isinstance(module, (nn.MultiheadAttention, torch.jit.ScriptModule))
        or hasattr(module, "parametrizations")
        or _private_compile.is_compiled(module)
    )


def check_names(units: Any, model: nn.Module) -> None:
    """Raise InputError for a name in `units` of no module of the model and of no class of one."""
    if units == "leaf" or callable(units):
        return
    known = {path for path, _ in model.named_modules()}
    known |= {type(module).__name__ for module in model.modules()}
    for unit in _listed(units):
        if isinstance(unit, str) and unit not in known:
            near = difflib.get_close_matches(unit, known, 1)
            also = f"did you mean {near[0]!r}?" if near else "names are those of named_modules()"
            raise InputError(f"units: the model has no module {unit!r}; {also}")


def _listed(units: Any) -> list[Any]:
    """Return what chooses units, one by one."""
    return list(units) if isinstance(units, Iterable) and not isinstance(units, str) else [units]


def _unknown(unit: Any) -> InputError:
    return InputError(
        f"units: expected 'leaf', classes, names of modules or a function, found {unit!r}"
    )


def unit_test(units: Any) -> Callable[[str, nn.Module], bool]:
    """Return what says which modules are units: "leaf", classes, paths or a function."""
    if units == "leaf":
        return lambda _, module: is_unit_by_default(module)
    if callable(units) and not isinstance(units, type):
        return lambda path, module: bool(units(path, module)) or is_unit_by_default(module)
    chosen = _listed(units)
    classes = tuple(unit for unit in chosen if isinstance(unit, type))
    names = {unit for unit in chosen if isinstance(unit, str)}
    for unit in chosen:
        if not isinstance(unit, (str, type)):
            raise _unknown(unit)

    def chooses(path: str, module: nn.Module) -> bool:
        return (
            path in names
            or type(module).__name__ in names
            or isinstance(module, classes)
            or is_unit_by_default(module)
        )

    return chooses
