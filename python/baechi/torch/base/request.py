# SPDX-License-Identifier: Apache-2.0
"""Checks what the user asks for before a step is recorded, which may take minutes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from baechi._core import InputError, check_options
from baechi.pipeline import described


def check_model(model: Any) -> None:
    """Raise InputError unless `model` is a module."""
    if not isinstance(model, nn.Module):
        name = getattr(model, "__name__", "")
        what = f"the class {name}" if isinstance(model, type) else f"of type {type(model).__name__}"
        raise InputError(
            f"the model is {what}, not a torch.nn.Module: give the module, e.g. Model() where "
            "Model is its class"
        )
    if isinstance(model, nn.DataParallel):
        raise InputError(
            "the model is wrapped in DataParallel, which copies it to every device: place what it "
            "wraps, model.module"
        )
    if isinstance(model, torch.jit.RecursiveScriptModule):
        raise InputError(
            "the model is a module of TorchScript, whose parts cannot be called one by one: give "
            "the module that torch.jit.script was given"
        )
    weights = (*model.named_parameters(), *model.named_buffers())
    unshaped = UninitializedParameter, UninitializedBuffer
    lazy = next((name for name, w in weights if isinstance(w, unshaped)), None)
    if lazy is not None:
        raise InputError(
            f"{lazy!r} has no shape yet, as those of lazy modules: call the model once with inputs "
            "of the shapes that it will get"
        )


def check_loss(loss: Any, *more: str, takes_targets: bool = False) -> None:
    """Raise InputError unless `loss` can be called with what a model returns, and `more`.

    `takes_targets` says that there is an argument `targets=`, which may be what is missing.
    """
    if loss is None:
        return
    if not callable(loss):
        raise InputError(
            f"loss: expected a function, found {described(loss)}: give e.g. "
            "torch.nn.functional.cross_entropy"
        )
    if isinstance(loss, type):
        raise InputError(
            f"loss is the class {loss.__name__}: give a function, e.g. loss=lambda output: "
            f"{loss.__name__}()(output, target)"
        )
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        inspect.signature(function).bind(None, *more)
    except ValueError:  # a builtin that does not say
        return
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        beside = " and ".join(more) or "nothing else"
        way = (
            f"give e.g. loss=lambda {', '.join(('output', *more))}: "
            f"loss_function(output, {more[0] if more else 'target'})"
        )
        if takes_targets and not more:
            way = "give targets=, what the loss compares the whole mini-batch with"
        raise InputError(
            f"loss is called with what the model returns and {beside}, which {name} does not take "
            f"({error}): {way}"
        ) from None


def check_search(options: Mapping[str, Any], known: Iterable[str], costs: Any) -> None:
    """Raise InputError for options that `place_graph` would refuse, and costs that there are not.

    `known` are the other arguments of `place`, which a misspelt name may mean.
    """
    check_options("place", dict(options), list(known))
    if costs not in ("estimate", "measure") and not hasattr(costs, "ops"):
        raise unknown_costs(costs)


def unknown_costs(costs: object) -> InputError:
    """Return the error for costs that are none."""
    return InputError(
        "costs: expected 'estimate', 'measure' or a baechi.torch.Costs, found "
        f"{described(costs)}; baechi.torch.Costs.load(path) reads what costs.save(path) wrote, "
        "and estimates are by the presets that the cluster names, as in '2xrtx3090'"
    )


def check_called_with(model: nn.Module, inputs: Any) -> None:
    """Raise InputError where a mapping of inputs has names that the forward does not take."""
    if not isinstance(inputs, dict):
        return
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = [name for name in inputs if name not in parameters]
    if unknown:
        takes = ", ".join(name for name, p in parameters.items() if p.default is p.empty)
        raise InputError(
            f"{type(model).__name__} takes no {unknown[0]!r} but {takes or ', '.join(parameters)}: "
            "give example_inputs"
        )


def devices_too_small(
    capacities: dict[str, int], physical: dict[str, torch.device], *, together: bool = False
) -> dict[torch.device, tuple[int, int]]:
    """Return the accelerators that have less memory than the cluster says: planned, there.

    Of devices of the cluster that share one, each alone, or all of them together.
    """
    planned: dict[torch.device, int] = {}
    for name, device in physical.items():
        if device.type not in ("cpu", "meta"):
            before = planned.get(device, 0)
            own = capacities[name]
            planned[device] = before + own if together else max(before, own)
    result = {}
    for device, size in planned.items():
        total = int(torch.get_device_module(device).mem_get_info(device)[1])
        if size > total:
            result[device] = size, total
    return result
