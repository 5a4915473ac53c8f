# SPDX-License-Identifier: Apache-2.0
"""Gives the weights of a model on the meta device their values, when it is placed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base import _private
from baechi.torch.base.nested import tensors_in
from baechi.torch.weights.deferred import (
    deferred_values,
    forget_unwanted,
    give_memory,
    how_made,
    is_deferred,
)
from baechi.torch.weights.homes import has_hooks_of_others, named_weights
from baechi.torch.weights.sources import Source, matched, source_of


def check_can_be_made(model: nn.Module, given: Any, costs: Any) -> None:
    """Raise InputError where weights have no values and there is nothing that they come from."""
    meta = [(name, weight) for name, weight in named_weights(model) if weight.is_meta]
    if not meta and given is not None:
        raise InputError(
            "weights= is for a model on the meta device, and this one has its weights: load others "
            "once it is placed, by placed.load(...)"
        )
    name = next((n for n, w in meta if not is_deferred(w)), None)
    if name is not None and given is None:
        raise InputError(
            f"{name!r} is on the meta device, so there is nothing to place: build the model inside "
            "baechi.torch.deferred_weights(), say with weights= where they are (a state_dict, "
            "safetensors, a checkpoint), or only plan it: baechi.torch.plan"
        )
    if meta and costs == "measure":
        raise InputError(
            "costs='measure' runs the model, whose weights are on the meta device: give "
            "costs='estimate', or costs that were measured before"
        )
    scripted = _scripted(model) if meta else None
    if scripted is not None:
        raise InputError(
            f"{scripted!r} is a module of TorchScript, whose weights stay on the meta device: "
            "build it outside of deferred_weights()"
        )
    hooked = next((n for n, w in meta if has_hooks_of_others(w)), None)
    if hooked is not None:
        raise InputError(
            f"{hooked!r} is on the meta device and has a hook on its gradient, which is lost: "
            "register it once the model is placed"
        )


def _scripted(model: nn.Module) -> str | None:
    """Return the path of a module of TorchScript that has weights without values."""
    for path, module in model.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule)
        if scripted and any(weight.is_meta for _, weight in named_weights(module)):
            return path or type(model).__name__
    return None


class Making:
    """Where the weights of a model come from that is on the meta device."""

    def __init__(self, model: nn.Module, given: Any) -> None:
        self._model = model
        self._weights = dict(named_weights(model))
        self._meta = {name: w for name, w in self._weights.items() if w.is_meta}
        self._source = None if given is None else source_of(given)
        self._there: dict[str, str] = {}  # of a weight: the name that it has in the source
        if self._source is not None:
            self._look_up(self._source)

    def _look_up(self, source: Source) -> None:
        first = {id(weight): name for name, weight in self._weights.items()}
        state = self._model.state_dict(keep_vars=True)
        for name, there in matched(source, state).items():
            if id(state[name]) in first:
                self._there.setdefault(first[id(state[name])], there)
        for name, weight in self._meta.items():
            if name not in self._there and not is_deferred(weight):
                raise InputError(
                    f"{name!r} is on the meta device and in no state of the model, so that "
                    f"{source.said} has it not: build the model inside "
                    "baechi.torch.deferred_weights()"
                )

    def facts(self) -> str:
        """Return what is alike where the same values are made."""
        shapes = "" if self._source is None else repr(sorted(self._source.shapes.items()))
        deferred = how_made(w for name, w in self._meta.items() if name not in self._there)
        return hashlib.sha256(f"{shapes} {deferred}".encode()).hexdigest()[:16]

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Return the values of these weights, on the host; nothing is changed."""
        own = list(names)
        there = {name: self._there[name] for name in own if name in self._there}
        found = {} if self._source is None else self._source.read(there.values())
        noted = [name for name in own if name in self._meta and name not in there]
        values = deferred_values({name: self._meta[name] for name in noted})
        return {**{name: found[key] for name, key in there.items()}, **values}

    def give(self, values: dict[str, torch.Tensor], device: torch.device) -> None:
        """Give weights the values that were read, on a device; the values are used up."""
        with _private.without_flat_weights(self._model):
            for name in list(values):
                weight, value = self._weights[name], values.pop(name)
                if not weight.is_meta:
                    with torch.no_grad():
                        weight.copy_(value)
                elif name in self._there:  # as it is laid out in the model, of its type
                    made = torch.empty_strided(
                        weight.size(), weight.stride(), dtype=weight.dtype, device=device
                    )
                    give_memory(weight, made.copy_(value))
                else:
                    give_memory(weight, value.to(device))
        forget_unwanted()

    def give_attributes(self) -> None:
        """Give tensors their values, on the host, that modules have beside their weights."""
        weights = {id(weight) for weight in self._weights.values()}
        beside = {
            id(tensor): (f"{path}.{name}".removeprefix("."), tensor)
            for path, module in self._model.named_modules()
            for name, value in vars(module).items()
            for tensor in tensors_in(value)
            if id(tensor) not in weights and is_deferred(tensor)
        }
        tensors = {f"{name} ({key})": tensor for key, (name, tensor) in beside.items()}
        for name, value in deferred_values(tensors).items():
            give_memory(tensors[name], value)
        forget_unwanted()

    def make_all(self) -> None:
        """Make all weights, on the host."""
        self.give(self.read(self._weights), torch.device("cpu"))
        self.give_attributes()


def making_of(model: nn.Module, given: Any) -> Making | None:
    """Return what makes the weights of a model; None where it has them."""
    meta = any(weight.is_meta for _, weight in named_weights(model))
    return Making(model, given) if meta else None
