# SPDX-License-Identifier: Apache-2.0
"""A rank holds its own weights only: what stands for those of the others has no memory."""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.ranks.processes import Processes

_CLIPS = "torch.nn.utils.clip_grad"


def sample_of(tensor: torch.Tensor, most: int) -> bytes:
    """Return some of a tensor's values, the same ones of each tensor of its shape."""
    count = tensor.numel()
    if count == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return b""
    apart = max(1, count // most) | 1  # odd, lest all of them be of one column
    numbers = torch.arange(0, count, apart, device=tensor.device)
    places = torch.unravel_index(numbers, tensor.shape) if tensor.dim() else ()
    taken = tensor.detach()[places].resolve_conj().cpu().contiguous()
    return ctypes.string_at(taken.data_ptr(), taken.numel() * taken.element_size())


def sum_of(tensor: torch.Tensor) -> int:
    """Return the sum of a tensor's values as their bits are, which none of them is left out of."""
    if tensor.numel() == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    plain = plain.contiguous()
    if plain.storage_offset() * plain.element_size() % 8:
        plain = plain.clone()
    line = plain.view(-1).view(torch.uint8)
    words = line.numel() // 8 * 8
    return int(line[:words].view(torch.int64).sum() + line[words:].sum(dtype=torch.int64))


def release(weight: torch.Tensor) -> None:
    """Give a weight's memory back: it keeps its shape, and each of its values is the same NaN.

    Whoever reads it by mistake has NaN, and whoever writes to it an error.
    """
    if weight.layout is not torch.strided:
        return
    kind = weight.dtype
    nothing: Any = float("nan")
    if not (kind.is_floating_point or kind.is_complex):
        nothing = True if kind is torch.bool else torch.iinfo(kind).min
    one = torch.empty((), dtype=kind, device=weight.device).fill_(nothing)
    weight.grad = None
    weight.data = one.expand(weight.shape)
    if type(weight) is nn.Parameter:
        weight.__class__ = ElsewhereParameter


class ElsewhereParameter(nn.Parameter):
    """A parameter that another rank has."""

    @property
    def grad(self) -> torch.Tensor | None:
        """Its gradient, None; torch.nn.utils.clip_grad_norm_ would take the norm of the others."""
        asks: Any = sys._getframe(1)
        asks = asks if asks.f_code.co_name != "<listcomp>" else asks.f_back
        if asks.f_code.co_name == "clip_grad_norm_" and asks.f_globals["__name__"] == _CLIPS:
            raise InputError(
                "torch.nn.utils.clip_grad_norm_ sees the gradients of this rank only, and would "
                "clip by another norm on each: placed.clip_grad_norm_(max_norm), on every rank, "
                "takes that of all"
            )
        return nn.Parameter.grad.__get__(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        nn.Parameter.grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        nn.Parameter.grad.__delete__(self)


_PARTS: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models of which only a part is here


def check_whole(model: nn.Module) -> None:
    """Raise InputError for a model of which other ranks have the rest."""
    if model in _PARTS:
        raise InputError(
            f"{type(model).__name__} is placed over ranks already, and this one has a part of its "
            "weights: build the model again"
        )


class Guard:
    """Refuses to read or load the weights of a model of which this rank has a part."""

    def __init__(self, model: nn.Module) -> None:
        _PARTS.add(model)
        self._is_open = False
        name = type(model).__name__

        def read(*_: Any) -> None:
            if not self._is_open:
                raise InputError(
                    f"{name} is placed over ranks, and this one has a part of its weights: "
                    "placed.state_dict(), on every rank, gathers all of them"
                )

        def load(*_: Any) -> None:
            raise InputError(
                f"{name} is placed over ranks, and this one has a part of its weights: "
                "placed.load_state_dict(state), on every rank, loads each where it is"
            )

        for module in model.modules():
            module.register_state_dict_pre_hook(read)
            module.register_load_state_dict_pre_hook(load)

    def state_of(self, model: nn.Module) -> dict[str, Any]:
        """Return the state of a model, in which those weights have values that are here."""
        self._is_open = True
        try:
            state: dict[str, Any] = model.state_dict(keep_vars=True)
            return state
        finally:
            self._is_open = False


def gathered(state: dict[str, Any], owners: dict[int, int], processes: Processes) -> dict[str, Any]:
    """Return a state with the values of all ranks, on the host; tied weights stay one.

    Args:
        state: As each rank has it.
        owners: The rank of every weight, by id.
        processes: That all call this.

    """
    known: dict[int, torch.Tensor] = {}
    for value in state.values():
        owner = owners.get(id(value))
        if owner is not None and id(value) not in known:
            there = value.detach()
            if owner == processes.rank:
                host = there.to("cpu", copy=True).contiguous()
            else:
                host = torch.empty(there.shape, dtype=there.dtype)
            known[id(value)] = processes.from_rank(owner, host)
    return {
        name: known.get(id(v), v.detach() if isinstance(v, torch.Tensor) else v)
        for name, v in state.items()
    }


def check_state(state: Mapping[str, Any], wanted: dict[str, Any]) -> None:
    """Raise InputError unless a state has exactly the weights that a model has, of their shapes."""
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        raise InputError(
            f"state has no {missing[0]!r}" if missing else f"the model has no {unknown[0]!r}"
        )
    for name, weight in wanted.items():
        value = state[name]
        if not (isinstance(value, torch.Tensor) and isinstance(weight, torch.Tensor)):
            raise InputError(f"state: {name!r} is no tensor, and only tensors are loaded")
        if value.shape != weight.shape:
            raise InputError(
                f"state: {name!r} is of shape {tuple(value.shape)}, and {tuple(weight.shape)} in "
                "the model"
            )


def total_norm(norms: list[float], norm_type: float) -> float:
    """Return the norm of all gradients from those of each rank's."""
    if norm_type == math.inf:
        return max(norms, key=lambda norm: math.inf if math.isnan(norm) else norm)
    return sum(norm**norm_type for norm in norms) ** (1.0 / norm_type)
