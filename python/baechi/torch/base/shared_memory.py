# SPDX-License-Identifier: Apache-2.0
"""Tensors that share memory, and the same views of copies of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from baechi.torch.base import _private, _private_autograd


def shared_wholes(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return by id, for those that lie within another one of `tensors`, that one."""
    by_storage: dict[int, dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.layout is torch.strided:
            by_storage.setdefault(_private.storage_address(tensor), {})[id(tensor)] = tensor
    wholes = {}
    for group in by_storage.values():
        dense = [t for t in group.values() if len(group) > 1 and t.numel() == _extent(t)]
        whole = max(dense, key=lambda t: (t.numel(), t.requires_grad), default=None)
        for key, tensor in group.items():
            if whole is not None and tensor is not whole and _lies_in(tensor, whole):
                wholes[key] = whole
    return wholes


def view_like(tensor: torch.Tensor, whole: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Return the view of `copy` that `tensor` is of `whole`, which was copied; or `tensor`."""
    if copy.stride() != whole.stride() or not (_is_alike(tensor, whole) and _is_alike(copy, whole)):
        return tensor
    if tensor is whole:
        return tensor if whole._backward_hooks and not copy._backward_hooks else copy
    if tensor.requires_grad and not _only_views(tensor, whole):
        return tensor
    offset = copy.storage_offset() + tensor.storage_offset() - whole.storage_offset()
    followed = copy if tensor.requires_grad or not copy.requires_grad else copy.detach()
    return followed.as_strided(tensor.size(), tensor.stride(), offset)


def _lies_in(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a view of `whole`, and of its gradient, can stand for `tensor`."""
    begin, end = tensor.storage_offset(), tensor.storage_offset() + _extent(tensor)
    inside = whole.storage_offset() <= begin and end <= whole.storage_offset() + _extent(whole)
    follows = not tensor.requires_grad or (
        whole.requires_grad and base_of(tensor) is base_of(whole)
    )
    return inside and follows and _is_alike(tensor, whole)


def _is_alike(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    lazy = any(t.is_conj() or t.is_neg() for t in (tensor, whole))
    return tensor.dtype == whole.dtype and not lazy


def _only_views(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether the gradient of `tensor` goes on to that of `whole`, or its base, as it is.

    A function of the user's may be a view that changes the gradient; so may a hook.
    """
    node, base = tensor.grad_fn, base_of(whole)
    ends = [t.grad_fn for t in (base, whole) if t.grad_fn is not None]
    while node is not None and node not in ends:
        if hasattr(node, "variable"):
            return node.variable is base
        of_user = isinstance(node, torch._C._FunctionBase) or "Cpp" in type(node).__name__
        if of_user or _private_autograd.is_hooked(node) or len(node.next_functions) != 1:
            return False
        node = node.next_functions[0][0]
    return node is not None


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def _extent(tensor: torch.Tensor) -> int:
    """Return how many elements of the storage lie from the first to the last one."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
