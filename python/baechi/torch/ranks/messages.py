# SPDX-License-Identifier: Apache-2.0
"""What one rank sends to another in a step: which tensor it is, and how its bytes lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from baechi._core import InputError
from baechi.torch.base import _private
from baechi.torch.trace.graph import ExportedGraph


class Message(NamedTuple):
    """A value of a micro-batch on its way to a reader, or its gradient on the way back."""

    is_gradient: bool
    micro_batch: int
    value: int  # the node that makes it
    source: int  # a device, which is the rank that has it
    target: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    again: bool = False  # a value that was made a second time, for the backward

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return torch.Size(self.size).numel()

    def said(self, graph: ExportedGraph) -> str:
        """Name it for an error."""
        of = "the gradient of " if self.is_gradient else "the second run of " * self.again
        return f"{of}{graph.nodes[self.value].key} of micro-batch {self.micro_batch}"

    def buffer(self, device: torch.device) -> torch.Tensor:
        """Return memory for it."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)


def message_of(
    tensor: Any, is_gradient: bool, place: tuple[int, int, int, int], name: str
) -> Message:
    """Return the message that takes a tensor, known by its shape, to another rank.

    Args:
        tensor: What travels.
        is_gradient: Or a value.
        place: The micro-batch, the node, the device that has it and the one that wants it.
        name: Of the operator that makes it, for errors.

    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        what = "a gradient" if is_gradient else "a value"
        raise InputError(
            f"{name} has {what} of kind {kind}, which cannot be sent to another rank: only plain "
            "tensors can"
        )
    stride = tensor.stride() if is_dense(tensor.size(), tensor.stride()) else None
    whole = torch.empty(tensor.size(), device="meta").stride() if stride is None else stride
    return Message(is_gradient, *place, tuple(tensor.size()), tuple(whole), tensor.dtype)


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements lie side by side, in whatever order."""
    expected = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length == 1:
            continue
        if step != expected:
            return False
        expected *= length
    return True


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor as bytes."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


def laid_out(tensor: torch.Tensor, message: Message, *, changes: bool) -> torch.Tensor:
    """Return a tensor as a message has it: itself, or a copy.

    Args:
        tensor: What travels.
        message: Which says what is expected.
        changes: Its memory may be written to before it has left.

    Raises:
        RuntimeError: It is not what was foreseen.

    """
    if (tuple(tensor.size()), tensor.dtype) != (message.size, message.dtype):
        raise RuntimeError(
            f"it is of shape {tuple(tensor.size())} and {tensor.dtype}, and {message.size} and "
            f"{message.dtype} were foreseen"
        )
    # Who shares the memory of a gradient may add to it, as a weight does that took it over.
    shared = message.is_gradient and _private.references(tensor)[1] > 1
    if not (changes or shared) and tuple(tensor.stride()) == message.stride:
        return tensor.detach().resolve_conj().resolve_neg()
    return message.buffer(tensor.device).copy_(tensor.detach())
