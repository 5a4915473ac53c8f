# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer by the names of a model's parameters, which are alike on all ranks.

It has the form that torch.distributed.checkpoint.state_dict gives it: names stand where those of
`Optimizer.state_dict` has the numbers of parameters.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from baechi._core import InputError
from baechi.torch.where.moving import map_tensors


def group_names(model: nn.Module, optimizer: Any) -> list[list[str]]:
    """Return the names of an optimizer's parameters, group by group."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [[names.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
    if any(name is None for group in groups for name in group):
        raise InputError(
            f"{type(optimizer).__name__} has a parameter that {type(model).__name__} has not: give "
            "the optimizer of the placed model's parameters"
        )
    return [[name for name in group if name is not None] for group in groups]


def named_state(model: nn.Module, optimizer: Any, is_here: Callable[[str], bool]) -> dict[str, Any]:
    """Return the state of an optimizer by names, of the parameters that are here."""
    groups = group_names(model, optimizer)
    state = optimizer.state_dict()
    names = [name for group in groups for name in group]
    others = [key for key in state["state"] if not isinstance(key, int)]
    if others:
        raise InputError(
            f"{type(optimizer).__name__} keeps {others[0]!r} for no parameter: its state cannot be "
            "told by names"
        )
    return {
        "state": {names[i]: dict(kept) for i, kept in state["state"].items() if is_here(names[i])},
        "param_groups": [
            {**group, "params": own}
            for group, own in zip(state["param_groups"], groups, strict=True)
        ],
    }


def _options_of_all() -> set[str]:
    """Return what any of PyTorch's optimizers keeps in its groups; schedulers keep more there."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    of_kinds = [inspect.signature(kind) for kind in kinds if issubclass(kind, Optimizer)]
    return {name for signature in of_kinds for name in signature.parameters}


def _check_options(optimizer: Optimizer, given: list[Mapping[str, Any]]) -> None:
    """Raise InputError for the groups of an optimizer of another kind.

    What an older version of the same kind did not know, the kind itself fills in when it is loaded.
    """
    groups = [{**group, "params": []} for group in given]
    state = {"defaults": dict(optimizer.defaults), "state": {}, "param_groups": groups}
    filled = object.__new__(type(optimizer))
    with contextlib.suppress(Exception):  # of a kind with a __setstate__ that wants more
        filled.__setstate__(state)
    others = _options_of_all() if type(optimizer).__module__.startswith("torch.optim.") else ()
    for own, group in zip(optimizer.param_groups, groups, strict=True):
        options = [name for name in optimizer.defaults if name in own]
        missing = [repr(name) for name in options if name not in group]
        unknown = [repr(name) for name in group if name not in own and name in others]
        if missing or unknown:
            names = ", ".join(repr(name) for name in group if name != "params")
            fault = f"needs {missing[0]}" if missing else f"has no {unknown[0]}"
            raise InputError(
                f"the state is of another kind of optimizer: {type(optimizer).__name__} {fault}, "
                f"and the state has {names}; load it into the kind that it was saved of"
            )


def checked_state(model: nn.Module, optimizer: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state by names, also of one by numbers; raise InputError where it is of others."""
    groups = group_names(model, optimizer)
    if not {"state", "param_groups"} <= state.keys():
        raise InputError("the state of the optimizer has no 'state' and 'param_groups'")
    given = state["param_groups"]
    counts = [len(group["params"]) for group in given]
    if counts != [len(own) for own in groups]:
        raise InputError(
            f"the state is of parameter groups of {counts} parameters, and the optimizer has "
            f"{[len(own) for own in groups]}"
        )
    _check_options(optimizer, given)
    known: dict[Any, str] = {}
    for group, own in zip(given, groups, strict=True):
        named = dict(zip(group["params"], own, strict=True))
        known.update((key, name if isinstance(key, int) else key) for key, name in named.items())
        unknown = sorted({known[key] for key in named} - set(own))
        if unknown:
            raise InputError(f"the state is of {unknown[0]!r}, which the optimizer has not there")
    strange = [key for key in state["state"] if key not in known]
    if strange:
        raise InputError(f"the state is of {strange[0]!r}, which is in none of its groups")
    return {
        "state": {known[key]: kept for key, kept in state["state"].items()},
        "param_groups": [
            {**group, "params": [known[key] for key in group["params"]]} for group in given
        ],
    }


def load_named(
    model: nn.Module, optimizer: Any, state: Mapping[str, Any], is_here: Callable[[str], bool]
) -> None:
    """Load what `checked_state` returned, of the parameters that are here.

    A group is known by its place, its parameters by their names. What is loaded is the optimizer's
    own: it changes its state in place.
    """
    groups = group_names(model, optimizer)
    numbers = {name: i for i, name in enumerate(name for own in groups for name in own)}
    loaded = {
        "state": {
            numbers[name]: map_tensors(torch.clone, kept)
            for name, kept in state["state"].items()
            if is_here(name)
        },
        "param_groups": [
            {**group, "params": [numbers[name] for name in own]}
            for group, own in zip(state["param_groups"], groups, strict=True)
        ],
    }
    optimizer.load_state_dict(loaded)
