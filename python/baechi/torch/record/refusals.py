# SPDX-License-Identifier: Apache-2.0
"""What is said of a model that cannot be recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base.nested import tensors_in

NESTED = (
    "the model makes a nested tensor, which cannot be followed: pad its parts to one length, with "
    "a mask (torch.nested.to_padded_tensor), and place that"
)
_CONTROL_FLOW = (
    "torch.cond, while_loop, scan and their like cannot be followed: use Python's if and for"
)

_SPARSE = (
    "sparse tensors cannot be followed: keep the indices and the values as two tensors, and add up "
    "with index_add, or use a dense one"
)


_FORWARD_MODE = (
    "forward-mode derivatives (torch.func.jvp, jacfwd) cannot be followed: use those of the "
    "reverse mode (vjp, jacrev, torch.autograd.grad)"
)


def check_dense(model: nn.Module, example_inputs: Any) -> None:
    """Refuse sparse tensors that a model holds, or that it is called with."""
    held = [*model.named_parameters(), *model.named_buffers()]
    held += [
        (f"{path}.{name}" if path else name, value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]
    for name, tensor in held:
        if _is_sparse(tensor):
            raise InputError(f"{name!r} of {type(model).__name__} is sparse: {_SPARSE}")
    if any(map(_is_sparse, tensors_in(example_inputs))):
        raise InputError(f"the example inputs have a sparse tensor: {_SPARSE}")


def _is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def cause_of(error: Exception) -> str:
    """Return why a step failed, in a clause."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, NotImplementedError) and "HigherOrderOperator" in lines[0]:
        return _CONTROL_FLOW
    if isinstance(error, NotImplementedError) and "Sparse" in lines[0]:
        return _SPARSE
    if "NestedTensorImpl" in lines[0]:
        return NESTED
    if isinstance(error, NotImplementedError) and "TensorWrapper" in lines[0]:
        return _FORWARD_MODE
    return f"{type(error).__name__}: {lines[0]}"
