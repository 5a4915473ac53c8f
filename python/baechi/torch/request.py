# SPDX-License-Identifier: Apache-2.0
"""Request: what `place` and `plan` are asked for, checked before anything is traced."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from baechi._core import InputError, Plan
from baechi.pipeline import described, plan_given
from baechi.torch.costs.costs import Costs
from baechi.torch.graph.optimizers import updates_of
from baechi.torch.search import Search

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


@dataclass(frozen=True)
class Request:
    """The arguments of `place`; see there."""

    model: nn.Module
    example_inputs: Any
    cluster: ClusterLike = "auto"
    plan: Plan | None = None
    loss: Callable[..., torch.Tensor] | None = None
    targets: Any = None
    micro_batches: int | str | None = None
    devices: Sequence[str | torch.device] | None = None
    costs: Any = "estimate"
    optimizer: Any = "adam"
    weights: Any = None
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        """Refuse what cannot be right."""
        check_model(self.model)
        check_loss(self.loss, self.targets)
        check_called_with(self.model, self.example_inputs)
        check_costs(self.costs)
        updates_of(self.optimizer)
        if self.plan is not None:
            plan_given(self.plan)
        if self.search.options.get("place_copies", "together") != "together":
            raise InputError("place_copies: a placed model has an operator's copies together")
        if self.targets is not None and self.loss is None:
            raise InputError(
                "targets: they are what a loss compares with: give loss=, or leave targets to a "
                "model that returns its own loss"
            )

    @property
    def replicas(self) -> str:
        """How many copies of a placement share a step: a number, or "auto"."""
        given = self.search.options.get("replicas", 1)
        return str(given if self.plan is None else self.plan.replicas)


_COSTS = ("estimate", "measure")


def check_model(model: Any) -> None:
    """Raise InputError unless `model` is a module that can be placed."""
    if not isinstance(model, nn.Module):
        name = getattr(model, "__name__", "")
        what = f"the class {name}" if isinstance(model, type) else f"of type {type(model).__name__}"
        raise InputError(
            f"model: it is {what}, not a torch.nn.Module: give the module, e.g. Model() where "
            "Model is its class"
        )
    if isinstance(model, nn.DataParallel):
        raise InputError(
            "model: DataParallel copies it to every device: place what it wraps, model.module"
        )
    parallel = getattr(nn.parallel, "DistributedDataParallel", ())
    if isinstance(model, parallel):
        raise InputError(
            "model: DistributedDataParallel has all of it in every process: place what it wraps, "
            "model.module, over the processes, with replicas= for data parallelism"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model: the parts of a module of TorchScript cannot be called one by one: give the "
            "module that torch.jit was given"
        )
    weights = (*model.named_parameters(), *model.named_buffers())
    unshaped = UninitializedParameter, UninitializedBuffer
    if lazy := next((name for name, w in weights if isinstance(w, unshaped)), None):
        raise InputError(
            f"model: {lazy!r} has no shape yet, as those of lazy modules: call the model once with "
            "inputs of the shapes that it will get"
        )
    sharding = sys.modules.get("torch.distributed.tensor")
    kind = () if sharding is None else sharding.DTensor
    if shard := next((name for name, w in weights if isinstance(w, kind)), None):
        raise InputError(
            f"model: {shard!r} is a DTensor, as fully_shard and parallelize_module make, and plans "
            "are of whole weights: place the model without them, over the same processes, with "
            "replicas= for data parallelism"
        )


def check_loss(loss: Any, targets: Any) -> None:
    """Raise InputError unless `loss` can be called with an output, and targets if there are."""
    if loss is None:
        return
    if not callable(loss) or isinstance(loss, type):
        given = f"the class {loss.__name__}" if isinstance(loss, type) else described(loss)
        raise InputError(
            f"loss: expected a function, found {given}: give e.g. torch.nn.functional.cross_entropy"
        )
    function = loss.forward if isinstance(loss, nn.Module) else loss
    more = () if targets is None else ("targets",)
    try:
        inspect.signature(function).bind(None, *more)
    except ValueError:  # a builtin that does not say
        return
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        way = "loss=lambda output, targets: ..." if more else "targets=, what it compares with"
        raise InputError(
            f"loss: it is called with what the model returns{' and targets' if more else ''}, "
            f"which {name} does not take ({error}): give {way}"
        ) from None


def check_costs(costs: Any) -> None:
    """Raise InputError unless `costs` are some, or how they are found."""
    if not (isinstance(costs, Costs) or (isinstance(costs, str) and costs in _COSTS)):
        raise InputError(
            "costs: expected 'estimate', 'measure' or a baechi.torch.Costs, found "
            f"{described(costs)}; baechi.torch.Costs.load(path) reads what costs.save wrote"
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
            f"example_inputs: {type(model).__name__} takes no {unknown[0]!r} but "
            f"{takes or ', '.join(parameters)}"
        )
