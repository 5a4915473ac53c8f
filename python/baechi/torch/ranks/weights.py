# SPDX-License-Identifier: Apache-2.0
"""A rank holds its own weights only; those of others keep their identity and shape, and no memory.

Outside of steps each of their values is the same NaN: whoever reads one by mistake sees it, and
whoever writes to one has PyTorch's error. While a step is traced, or its guards are checked, they
have the strides that they had, so that all ranks trace the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.where.homes import named_tensors, put


class RankWeights:
    """The weights and buffers of a model of which this rank has a part."""

    def __init__(self, model: nn.Module, homes: Mapping[str, int], rank: int) -> None:
        self.model, self.rank = model, rank
        self.home_of: dict[int, int] = {}  # by id
        self.names: dict[int, str] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        for name, tensor in named_tensors(model):
            self.home_of.setdefault(id(tensor), homes.get(name, 0))
            self.names.setdefault(id(tensor), name)
            self.tensors[id(tensor)] = tensor
        self._away: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    @property
    def own(self) -> dict[str, torch.Tensor]:
        """The weights that are here, by name."""
        return {n: self.tensors[i] for i, n in self.names.items() if self.home_of[i] == self.rank}

    @property
    def away(self) -> dict[str, tuple[torch.Tensor, int]]:
        """The weights that others have, by name, and who has each."""
        pairs = ((self.names[i], (t, self.home_of[i])) for i, t in self.tensors.items())
        return {name: (tensor, home) for name, (tensor, home) in pairs if home != self.rank}

    def settle(self, device: torch.device) -> None:
        """Bring the weights of this rank to its device; let go of the others'."""
        for tensor in self.own.values():
            if tensor.device != device:
                put(tensor, device)
        one: dict[torch.dtype, torch.Tensor] = {}
        for name, (tensor, _) in self.away.items():
            if tensor.layout is not torch.strided:
                raise InputError(f"model: {name!r} is sparse, and over ranks only dense weights go")
            tensor.grad = None
            shape, kind = tensor.shape, tensor.dtype
            dense = torch.empty_strided(shape, tensor.stride(), dtype=kind, device=device)
            if shape or tensor.is_meta:
                dense.untyped_storage().resize_(0)
            else:  # whose value tracing looks at
                dense.copy_(tensor.detach())
            if kind not in one:
                one[kind] = torch.empty((), dtype=kind, device=device).fill_(_nothing(kind))
            nothing = one[kind].expand(shape)
            if tensor.is_meta:
                _exchange(tensor, nothing)
            tensor.data = nothing
            self._away.append((tensor, dense, nothing))

    @contextlib.contextmanager
    def shaped(self) -> Iterator[None]:
        """Show the weights of others with their strides: nothing may read them then."""
        for tensor, dense, _ in self._away:
            tensor.data = dense
        try:
            yield
        finally:
            for tensor, _, nothing in self._away:
                tensor.data = nothing


def _nothing(kind: torch.dtype) -> Any:
    if kind.is_floating_point or kind.is_complex:
        return float("nan")
    return True if kind is torch.bool else torch.iinfo(kind).min


def _exchange(tensor: torch.Tensor, made: torch.Tensor) -> None:
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, made)


class Guard:
    """Refuses to read or load the state of a model of which this rank has a part."""

    def __init__(self, model: nn.Module) -> None:
        self._is_open = False
        name = type(model).__name__

        def refusing(call: str, what: str) -> Any:
            def refuse(*_: Any) -> None:
                if not self._is_open:
                    raise InputError(
                        f"{name} is placed over ranks, and this one has a part of its weights: "
                        f"placed.{call}, on every rank, {what}"
                    )

            return refuse

        for module in model.modules():
            read = refusing("state_dict()", "gathers all of them")
            module.register_state_dict_pre_hook(read)
            load = refusing("load_state_dict(state)", "loads each where it is")
            module.register_load_state_dict_pre_hook(load)

    def state_of(self, model: nn.Module) -> dict[str, Any]:
        """Return the state of the model, with its own tensors."""
        self._is_open = True
        try:
            state: dict[str, Any] = model.state_dict(keep_vars=True)
            return state
        finally:
            self._is_open = False
