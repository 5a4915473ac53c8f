# SPDX-License-Identifier: Apache-2.0
"""The tensors that a recorded step holds: the model's own code, and autograd for its backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sized
from typing import Any

import torch

from baechi.torch.base import _private, _private_autograd
from baechi.torch.base.repeats import sent_bytes
from baechi.torch.record.recorded_step import Op, TensorObject, rounded


class TensorObjects:
    """The tensors that the model's code holds, by number, and the operators that returned them.

    One that has been changed in place is another one from then on.
    """

    def __init__(
        self,
        trace: Sized,
        tensor_of: Callable[[torch.Tensor, int | None], int],
        is_weight: Callable[[torch.Tensor], bool],
    ) -> None:
        self._trace = trace
        self._tensor_of = tensor_of  # a tensor's storage
        self._is_weight = is_weight
        self.seen: list[TensorObject] = []
        self._seen: dict[int, tuple[Any, int, int]] = {}  # by id: reference, version, number
        self._origins: dict[int, tuple[Any, int, int]] = {}  # by id: reference, op, output

    def see(self, tensor: torch.Tensor, maker: int | None) -> int | None:
        """Return the number of a tensor that the model's code holds; None for weights."""
        if self._is_weight(tensor):
            return None
        version = _private.version_of(tensor)
        known = self._seen.get(id(tensor))
        given = [] if maker is None else [maker]
        if known is not None and known[0]() is tensor and known[1] == version:
            self.seen[known[2]].given += given
            return known[2]
        number = len(self.seen)
        seen = TensorObject(self._tensor_of(tensor, None), rounded(sent_bytes(tensor)), given)
        if tensor.grad_fn is not None:
            seen.node = _private_autograd.sequence_number(tensor.grad_fn), tensor.output_nr
        self.seen.append(seen)

        def gone(_: Any) -> None:
            seen.until = len(self._trace)

        self._seen[id(tensor)] = (weakref.ref(tensor, gone), version, number)
        return number

    def known(self, tensor: torch.Tensor | None) -> TensorObject | None:
        """Return what is known of a tensor, as it was when it was seen last."""
        known = self._seen.get(id(tensor))
        return self.seen[known[2]] if known is not None and known[0]() is tensor else None

    def returned(self, tensor: torch.Tensor, op: int, output: int) -> None:
        """Take note that an operator returns a tensor."""
        self._origins[id(tensor)] = (weakref.ref(tensor), op, output)

    def origin_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the operator that returned a tensor last, and which of its outputs it is."""
        origin = self._origins.get(id(tensor))
        return origin[1:] if origin is not None and origin[0]() is tensor else None


class SavedTensors:
    """What autograd keeps for the backward: operators are told when it has let go of a storage."""

    def __init__(self, trace: Sized) -> None:
        self._trace = trace
        self._kept: dict[int, Any] = {}  # references to what autograd keeps, by id
        self._kept_of: dict[tuple[int, int], int] = {}  # how many, by operator and storage

    def watched(self, op: Op, number: int, kept: torch.Tensor) -> torch.Tensor:
        """Note when autograd has let go of all that an operator keeps of a storage."""
        key = id(kept)
        self._kept_of[id(op), number] = self._kept_of.get((id(op), number), 0) + 1

        def gone(_: Any) -> None:
            del self._kept[key]
            self._kept_of[id(op), number] -= 1
            if self._kept_of[id(op), number] == 0:
                op.released[number] = len(self._trace)

        op.released.pop(number, None)
        self._kept[key] = weakref.ref(kept, gone)
        return kept
