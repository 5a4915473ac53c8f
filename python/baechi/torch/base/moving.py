# SPDX-License-Identifier: Apache-2.0
"""Moves parameters and buffers between devices without a change of identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base import _private
from baechi.torch.base.nested import map_tensors, once
from baechi.torch.base.repeats import without_repeats


def check_moves(tensors: Sequence[torch.Tensor], device: torch.device) -> None:
    """Raise InputError if a tensor cannot be given memory of another device."""
    for tensor in tensors:
        if not _private.moves_in_place(tensor, device):
            raise InputError(f"a tensor on {tensor.device} cannot be moved in place to {device}")


def move_weights(moves: Sequence[tuple[torch.Tensor, torch.device]]) -> None:
    """Give tensors and their gradients new storages; those that shared one share the new one."""
    sharing: dict[int, int] = {}
    for tensor, _ in moves:
        address = _private.storage_address(tensor)
        sharing[address] = sharing.get(address, 0) + 1
    stored: dict[tuple[int, torch.device], torch.Tensor] = {}
    held = []  # until all are moved, so that no address is used again
    for tensor, device in moves:
        if tensor.device == device:
            continue
        check_moves([tensor], device)
        address = _private.storage_address(tensor)
        with torch.inference_mode(tensor.is_inference()):  # what was trainable goes on being so
            if sharing[address] == 1:
                tensor.data = tensor.data.to(device)
            else:
                flat = stored.get((address, device))
                if flat is None:
                    held.append(tensor.data)
                    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                    flat = whole.set_(tensor.untyped_storage()).to(device)
                    stored[address, device] = flat
                place = (tensor.storage_offset(), tensor.size(), tensor.stride())
                moved = torch.empty(0, dtype=tensor.dtype, device=device)
                tensor.data = moved.set_(flat.untyped_storage(), *place)
            if tensor.grad is not None and tensor.grad.layout is torch.strided:
                tensor.grad.data = tensor.grad.data.to(device)
            elif tensor.grad is not None:  # a sparse one cannot keep its identity
                tensor.grad = tensor.grad.to(device)


def moved_values(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors on a device, laid out as they were."""
    return map_tensors(once(lambda tensor: _moved(tensor, device)), value)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor as it is: a graph is for the layouts that it was traced with."""
    if tensor.device == device or tensor.layout is not torch.strided:
        return tensor.to(device)
    sent = without_repeats(tensor)
    moved = sent.to(device)
    if moved.is_contiguous() and not sent.is_contiguous():  # with gaps, as a slice
        whole = torch.empty_strided(
            sent.size(), sent.stride(), dtype=sent.dtype, device=device, layout=sent.layout
        )
        with contextlib.suppress(RuntimeError):  # its parts overlap
            moved = whole.copy_(moved)
    return moved if sent is tensor else moved.expand(tensor.shape)


def own_leaves(value: Any) -> Any:
    """Return `value` with tensors whose gradients go nowhere else, in the same memory."""

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().requires_grad_() if tensor.requires_grad else tensor

    return map_tensors(once(leaf), value)


@contextlib.contextmanager
def moved_to(device: torch.device, model: nn.Module) -> Iterator[None]:
    """Have the weights of a model on a device for the length of a ``with`` block."""
    weights = [*model.parameters(), *model.buffers()]
    homes = [(weight, weight.device) for weight in weights]
    try:
        move_weights([(weight, device) for weight in weights])
        yield
    finally:
        move_weights(homes)


def flatten_recurrent(model: nn.Module) -> None:
    """Lay the weights of recurrent modules side by side, as cuDNN wants them; elsewhere nothing.

    They were, if PyTorch moved them there. Else cuDNN copies them in every forward.
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and len({w.device for w in module.parameters()}) == 1:
            module.flatten_parameters()
