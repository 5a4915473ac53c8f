# SPDX-License-Identifier: Apache-2.0
"""The weights of a model whose step is recorded, known by their storages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private
from baechi.torch.record.recorded_step import Weight, rounded


class KnownWeights:
    """Parameters and buffers by name; of tied ones the first name counts."""

    def __init__(self, model: nn.Module, bytes_of: Callable[[Any], int]) -> None:
        self._model = model
        self._bytes_of = bytes_of  # a storage
        self.weights: dict[str, Weight] = {}
        self.aliases: dict[str, str] = {}  # every name, and the one that counts
        self._twins: list[torch.Tensor] = []
        self._names: dict[int, str] = {}  # by storage address; weights outlive the recording

    def know(self, twin: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take in parameters and buffers; `twin` is what the dispatcher sees in their place."""
        named = [(n, p, p.requires_grad) for n, p in self._model.named_parameters()]
        named += [(n, b, False) for n, b in self._model.named_buffers()]
        for name, tensor, trained in named:
            self._twins.append(twin(tensor))  # held, so that no address is used again
            addresses = [_private.storage_address(t) for t in (tensor, self._twins[-1])]
            known = next((self._names[a] for a in addresses if a in self._names), name)
            self.aliases[name] = known
            size = rounded(self._bytes_of(tensor.untyped_storage()))
            self.weights.setdefault(known, Weight(known, size, False)).trained |= trained
            for address in addresses:
                self._names[address] = known

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the weight that a tensor is, or is a view of."""
        return self._names.get(_private.storage_address(tensor))

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self.name_of(tensor) is not None
