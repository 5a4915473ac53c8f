# SPDX-License-Identifier: Apache-2.0
"""A rank holds its own weights only; those of others keep their identity and shape, and no memory.

Outside of steps each of their values is the same NaN: whoever reads one by mistake sees it, and
whoever writes to one has PyTorch's error. While a step is traced, or its guards are checked, they
have the strides that they had, so that all ranks trace the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.devices import store_of
from baechi.torch.planned_step import PlannedStep
from baechi.torch.program.peaks import GRANULE
from baechi.torch.run.away import Away
from baechi.torch.run.placement import Placement
from baechi.torch.where.homes import named_tensors, plain_parts


def owners_of(planned: PlannedStep, model: nn.Module) -> dict[str, int]:
    """Return the device whose rank has each weight and buffer, by each of its names.

    It is its home; what lies in a host's memory is had where its module runs.
    """
    index = {name: i for i, name in enumerate(planned.names)}
    calls = {key: index[device] for key, device in planned.device_of_key.items()}
    homes = {name: index[device] for name, device in planned.homes.items()}
    away = Away(store_of(planned.plan.cluster))
    placement = Placement(model, planned.devices, calls, homes, away=away)
    found: dict[str, int] = {}
    by_id: dict[int, int] = {}
    for name, tensor in named_tensors(model):
        home = homes.get(name, 0)
        if home == away.store:
            home = placement.of_module(name.rpartition(".")[0]) or 0
        found[name] = by_id.setdefault(id(tensor), home)
    return found


class RankWeights:
    """The weights and buffers of a model of which this rank has a part."""

    def __init__(self, model: nn.Module, owners: Mapping[str, int], rank: int) -> None:
        self._name, self.owners, self.rank = type(model).__name__, owners, rank
        self.home_of: dict[int, int] = {}  # the owner, by id
        self.names: dict[int, str] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        for name, tensor in named_tensors(model):
            for part in plain_parts(tensor):
                self.home_of[id(part)] = owners[name]
                self.names.setdefault(id(part), name)
                self.tensors[id(part)] = part
        self._traced: list[tuple[torch.Tensor, torch.Tensor]] = []  # with what tracing sees
        self._is_shaped = False
        model.register_forward_pre_hook(self._be_alone)
        self._is_told = False  # the state, to those who know that it is a part
        read = functools.partial(self._refuse, "state_dict(), on every rank, gathers all of them")
        said = "load_state_dict(state), on every rank, loads each where it is"
        for module in model.modules():
            module.register_state_dict_pre_hook(read)
            module.register_load_state_dict_pre_hook(functools.partial(self._refuse, said))

    def _be_alone(self, *_: Any) -> None:
        """Have what others compile around the model stop there: its call is that of all ranks."""
        if torch.compiler.is_compiling() and not self._is_shaped:
            torch._dynamo.graph_break()

    def _refuse(self, what: str, *_: Any) -> None:
        if not self._is_told:
            raise InputError(
                f"{self._name} is placed over ranks, and this one has a part of its weights: "
                f"placed.{what}"
            )

    def state_of(self, model: nn.Module) -> dict[str, Any]:
        """Return the state of the model with its own tensors, which nobody else reads or loads."""
        self._is_told = True
        try:
            state: dict[str, Any] = model.state_dict(keep_vars=True)
            return state
        finally:
            self._is_told = False

    @property
    def own(self) -> dict[str, torch.Tensor]:
        """The weights that are here, by name."""
        return {n: self.tensors[i] for i, n in self.names.items() if self.home_of[i] == self.rank}

    @property
    def away(self) -> dict[str, tuple[torch.Tensor, int]]:
        """The weights that others have, by name, and who has each."""
        pairs = ((self.names[i], (t, self.home_of[i])) for i, t in self.tensors.items())
        return {name: (tensor, home) for name, (tensor, home) in pairs if home != self.rank}

    def stand_ins(self, rank: int) -> int:
        """Return the bytes that a rank has of the others' weights: a number of each type."""
        others = (i for i, home in self.home_of.items() if home != rank)
        return GRANULE * len({self.tensors[i].dtype for i in others})

    def be_infinite(self) -> None:
        """Have this rank's scaler find an infinity, as that of another rank does."""
        for weight in self.own.values():
            if weight.grad is not None and weight.grad.numel():
                weight.grad.fill_(float("inf"))
                return
        away = [weight for weight, _ in self.away.values() if weight.requires_grad]
        trained = [weight for weight in away if weight.numel()]
        for weight in sorted(trained, key=torch.Tensor.numel)[:1]:  # of a rank without weights
            weight.grad = torch.full(weight.shape, float("inf")).to(weight)

    def let_go(self, device: torch.device, traced: torch.device, stored: Collection[str]) -> None:
        """Let go of the memory of the others' weights; own ones that are stored are not on it."""
        one: dict[torch.dtype, torch.Tensor] = {}
        for i, tensor in self.tensors.items():
            name = self.names[i]
            if tensor.layout is not torch.strided:
                raise InputError(f"model: {name!r} is sparse, and over ranks only dense weights go")
            if self.home_of[i] == self.rank:
                if name in stored or device != traced:
                    self._traced.append((tensor, _without_memory(tensor, traced)))
                continue
            tensor.grad = None
            kind, dense = tensor.dtype, _without_memory(tensor, traced)
            if kind not in one:
                one[kind] = torch.empty((), dtype=kind, device=device).fill_(_nothing(kind))
            nothing = one[kind].expand(tensor.shape)
            if tensor.is_meta:
                made = nothing.detach()
                if isinstance(tensor, nn.Parameter):
                    made = nn.Parameter(made, tensor.requires_grad)
                torch.utils.swap_tensors(tensor, made)
            tensor.data = nothing
            self._traced.append((tensor, dense))

    @contextlib.contextmanager
    def shaped(self) -> Iterator[None]:
        """Show weights as if all were on the device, with their strides: nothing may read them."""
        self._is_shaped = True
        before = [(tensor, tensor.data, tensor.grad) for tensor, _ in self._traced]
        for tensor, dense in self._traced:
            tensor.grad = None
            tensor.data = dense
        try:
            yield
        finally:
            self._is_shaped = False
            for tensor, data, gradient in before:
                tensor.data = data
                tensor.grad = gradient


def _without_memory(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return what has a tensor's shape and strides; a number, which tracing reads, its value."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.shape or tensor.is_meta:
        made.untyped_storage().resize_(0)
        return made
    return made.copy_(tensor.detach())


def _nothing(kind: torch.dtype) -> Any:
    if kind.is_floating_point or kind.is_complex:
        return float("nan")
    return True if kind is torch.bool else torch.iinfo(kind).min
