# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch by what they do with their arguments: ask, show, change, bring along."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# What reads tensors of several devices on purpose: it asks about them, or says where one goes.
LEFT_ALONE = {
    torch.broadcast_tensors,  # views of each, where it is
    torch.atleast_1d,
    torch.atleast_2d,
    torch.atleast_3d,
    torch.Tensor.type_as,
    torch.Tensor.copy_,
    torch.Tensor.set_,
    torch.Tensor.data.__set__,
    torch.Tensor.grad.__set__,
}


def _functions(names: Iterable[str]) -> frozenset[Any]:
    """Return the functions of PyTorch, and methods of tensors, that have these names."""
    places = (torch.Tensor, torch, functional, nn.init)
    pairs = [(place, name) for name in names for place in places if hasattr(place, name)]
    return frozenset(getattr(place, name) for place, name in pairs)


_NAMES = {*dir(torch.Tensor), *dir(torch), *dir(functional), *dir(nn.init)}

_SHOWS = """
    size dim numel stride storage_offset is_contiguous element_size data_ptr untyped_storage
    detach requires_grad_ register_hook __getitem__ view view_as reshape reshape_as flatten
    unflatten ravel t transpose permute movedim moveaxis swapaxes swapdims select narrow unsqueeze
    squeeze expand expand_as chunk split tensor_split hsplit vsplit dsplit unsafe_chunk unbind
    diagonal as_strided unfold adjoint view_as_real view_as_complex
"""
# What asks about a weight that is away, or shows it: that is where it is. Which device it is on is
# not asked there: it is said to be where it is read.
FACTS = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in dir(torch.Tensor)
    if inspect.isgetsetdescriptor(getattr(torch.Tensor, name))
    and name not in ("device", "is_cuda", "is_cpu", "is_xpu")
) | _functions(_SHOWS.split())

# What changes its first argument.
_OPERATORS = "add and floordiv lshift mod mul or pow rshift sub truediv xor"
IN_PLACE = _functions(
    [name for name in _NAMES if name.endswith("_") and not name.startswith("_")]
    + [f"__i{name}__" for name in _OPERATORS.split()]
    + ["__setitem__"]
) - {torch.resize_as_, torch.resize_as_sparse_}  # which dynamo cannot look up

# Functions that change their first argument where they are told to: the place of that word.
INPLACE = {
    function: list(parameters).index("inplace")
    for function in vars(functional).values()
    if inspect.isfunction(function)
    and "inplace" in (parameters := inspect.signature(function).parameters)
}

# Functions of lists, each of whose tensors is changed where it is.
ONE_BY_ONE = frozenset(f for name, f in vars(torch).items() if name.startswith("_foreach_"))

# Functions that read lengths, their second argument, on the host: these may be on a device, where
# they came with their batch.
_PACKED = ("_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu")
HOST = _functions(["tensor_split"]) | {getattr(torch._VF, name) for name in _PACKED}

# Functions that are given gradients: each goes where what it is the gradient of is.
GRADIENTS = {
    torch.autograd.grad: (2, "grad_outputs"),
    torch.autograd.backward: (1, "grad_tensors"),
    torch.Tensor.backward: (1, "gradient"),
}

# Functions that change an argument which is not their first, or may: where that argument is.
CHANGED = {
    functional.batch_norm: (1, "running_mean"),
    functional.instance_norm: (1, "running_mean"),
    functional.embedding: (1, "weight"),
    functional.embedding_bag: (1, "weight"),
    torch.batch_norm: (3, "running_mean"),
    torch.instance_norm: (3, "running_mean"),
    torch.native_batch_norm: (3, "running_mean"),
    torch.batch_norm_update_stats: (1, "running_mean"),
}
