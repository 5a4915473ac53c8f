# SPDX-License-Identifier: Apache-2.0
"""A rank holds its own weights only: what stands for those of the others has no memory."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.ranks.processes import Processes

_SENT_ALONE = 1  # elements of a tensor that is no longer told with others


def sample_of(tensor: torch.Tensor, most: int) -> bytes:
    """Return some of a tensor's values, the same ones of each tensor of its shape."""
    count = tensor.numel()
    if count == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return b""
    apart = -(-count // most)
    while math.gcd(apart, count) > 1:  # of every column, whatever the sizes are
        apart += 1
    plain = tensor.detach()
    if plain.is_contiguous():  # as most are: the same in a tenth of the time
        chosen = plain.view(-1)[::apart]
    else:
        numbers = torch.arange(0, count, apart, device=tensor.device)
        chosen = plain[torch.unravel_index(numbers, tensor.shape)]
    taken = chosen.resolve_conj().resolve_neg().cpu().contiguous()
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


def gathered_optimizer(
    state: dict[str, Any], owners: Mapping[str, int], processes: Processes
) -> dict[str, Any]:
    """Return the named state of an optimizer with the values of all ranks, on the host.

    Args:
        state: What this rank has.
        owners: The rank of every parameter, by name.
        processes: That all call this.

    """

    def told(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        host = value.detach().to("cpu", copy=True).contiguous()
        return host if host.numel() <= _SENT_ALONE else torch.empty_like(host, device="meta")

    mine = {
        name: {key: told(value) for key, value in kept.items()}
        for name, kept in state["state"].items()
    }
    known = {name: kept for each in processes.all_gathered(mine) for name, kept in each.items()}
    found: dict[str, dict[str, Any]] = {}
    for name in (name for group in state["param_groups"] for name in group["params"]):
        for key, value in known.get(name, {}).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                if owners[name] == processes.rank:
                    host = state["state"][name][key].detach().to("cpu", copy=True).contiguous()
                else:
                    host = torch.empty(value.shape, dtype=value.dtype)
                value = processes.from_rank(owners[name], host)
            found.setdefault(name, {})[key] = value
    return {"state": found, "param_groups": state["param_groups"]}


def total_norm(norms: list[float], norm_type: float) -> float:
    """Return the norm of all gradients from those of each rank's."""
    if norm_type == math.inf:
        return max(norms, key=lambda norm: math.inf if math.isnan(norm) else norm)
    return sum(norm**norm_type for norm in norms) ** (1.0 / norm_type)
