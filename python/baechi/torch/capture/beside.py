# SPDX-License-Identifier: Apache-2.0
"""Bytes beside a weight: what its class keeps in attributes and moves with it, as scales are."""

from __future__ import annotations

import contextlib
import io
import pickle
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class _Tensors(pickle.Pickler):
    """Finds the tensors that an object refers to, whatever it is made of; modules are not its."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> str | None:
        """Let tensors and modules stand for themselves."""
        if isinstance(value, torch.Tensor):
            self.found.append(value)
            return "tensor"
        return "module" if isinstance(value, nn.Module) else None


def bytes_beside(weight: torch.Tensor | None) -> int:
    """Return what moves with a weight beside its own memory: nothing, unless its class says how."""
    if weight is None or type(weight).to is torch.Tensor.to:
        return 0
    tensors = _Tensors()
    with contextlib.suppress(Exception):  # what has no copy may refuse it as it likes
        tensors.dump(vars(weight))
    sizes: dict[int, int] = {}  # views of one memory count once
    for tensor in tensors.found:
        memory = _memory(tensor)
        sizes[memory] = max(sizes.get(memory, 0), tensor.nbytes)
    sizes.pop(_memory(weight), None)
    return sum(sizes.values())


def _memory(tensor: torch.Tensor) -> int:
    has_one = tensor.layout == torch.strided and not is_traceable_wrapper_subclass(tensor)
    return (tensor.untyped_storage().data_ptr() if has_one else 0) or id(tensor)
