# SPDX-License-Identifier: Apache-2.0
"""Which modules become one operator, as `units=` says (Paper 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private_compile


def is_unit_by_default(module: nn.Module) -> bool:
    """Whether a module has no inside to look at: leaves, compiled ones, own weights' makers."""
    return (
        next(module.children(), None) is None
        or isinstance(module, (nn.MultiheadAttention, torch.jit.ScriptModule))
        or hasattr(module, "parametrizations")
        or _private_compile.is_compiled(module)
    )


def unit_test(units: Any) -> Callable[[str, nn.Module], bool]:
    """Return what says which modules are units: "leaf", classes, paths or a function."""
    if units == "leaf":
        return lambda _, module: is_unit_by_default(module)
    if callable(units) and not isinstance(units, type):
        return lambda path, module: bool(units(path, module)) or is_unit_by_default(module)
    chosen = [units] if isinstance(units, (str, type)) else list(units)
    classes = tuple(unit for unit in chosen if isinstance(unit, type))
    names = {unit for unit in chosen if isinstance(unit, str)}

    def chooses(path: str, module: nn.Module) -> bool:
        return (
            path in names
            or type(module).__name__ in names
            or isinstance(module, classes)
            or is_unit_by_default(module)
        )

    return chooses
