# SPDX-License-Identifier: Apache-2.0
"""Parameters that another rank has: what stands for them, for their gradients, and optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from baechi._core import InputError
from baechi.torch.ranks.messages import Message
from baechi.torch.weights.deferred import give_memory
from baechi.torch.weights.named_state import is_known

_SHOWN = frozenset(  # what it is, whatever its values are
    [
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "requires_grad",
        "grad_fn",
        "is_leaf",
        "is_sparse",
        "is_cpu",
        "is_cuda",
        "is_xpu",
        "is_meta",
        "size",
        "dim",
        "numel",
        "stride",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "_has_compatible_shallow_copy_type",
    ]
)
_MOVES = frozenset(["to", "cpu", "cuda", "xpu"])  # which placed weights do not
_CHANGED = frozenset(["__iadd__", "__isub__", "__imul__", "__itruediv__"])


class ElsewhereParameter(nn.Parameter):
    """A parameter that another rank has."""


def release(weight: torch.Tensor, device: torch.device) -> None:
    """Give a weight's memory back: it keeps its shape, and each of its values is the same NaN.

    That one is on a device. Whoever reads it by mistake has NaN, and whoever writes to it an error.
    """
    if weight.layout is not torch.strided:
        return
    kind = weight.dtype
    nothing: Any = float("nan")
    if not (kind.is_floating_point or kind.is_complex):
        nothing = True if kind is torch.bool else torch.iinfo(kind).min
    one = torch.empty((), dtype=kind, device=device).fill_(nothing)
    if weight.is_meta:
        give_memory(weight, one.expand(weight.shape))
    else:
        weight.grad = None
        weight.data = one.expand(weight.shape)
    if type(weight) is nn.Parameter:
        weight.__class__ = ElsewhereParameter
        _watch_optimizers()


class ElsewhereGradient(torch.Tensor):
    """Stands for a gradient that another rank has, from a step until an optimizer's.

    What changes gradients in place, each for itself, its owner does alike, and leaves this as it
    is. Whatever else is computed from gradients would miss it, so that is an error.
    """

    owner: int
    weight_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Show what is known, skip what changes it, refuse the rest."""
        kwargs = kwargs or {}
        name = func.__name__
        if name == "__get__":
            name = func.__self__.__name__
        if name == "__set__" and func.__self__.__name__ == "data":  # as `model.to` does
            return None
        with torch._C.DisableTorchFunctionSubclass():
            if name in _SHOWN:
                return func(*args, **kwargs)
            in_place = name.endswith("_") and not name.endswith("__") and "_amp_" not in name
            first = args[0] if args else None
            if (in_place or name in _CHANGED or name in _MOVES) and isinstance(first, cls):
                return first
            if in_place and isinstance(first, (list, tuple)):
                return func(*_without_elsewhere(args), **kwargs)
        found = next(t for t in _flat((args, kwargs)) if isinstance(t, cls))
        if "_amp_" in name:
            raise InputError(
                "GradScaler: it would skip a step on some ranks only, since each sees a part of "
                "the gradients: call placed.agree_on(scaler) once, on every rank"
            )
        raise InputError(
            f"{name}: the gradient of {found.weight_name!r} is on rank {found.owner}, so that this "
            "would be of a part of the gradients and differ between ranks; "
            "placed.clip_grad_norm_(max_norm), on every rank, clips by the norm of all, as "
            "torch.nn.utils.clip_grad_norm_ cannot"
        )

    def __repr__(self, **_: Any) -> str:
        return f"ElsewhereGradient(of {self.weight_name!r}, on rank {self.owner})"


class ElsewhereOutput(torch.Tensor):
    """Stands for what another rank has of what the model returned: only its shape is here."""

    owner: int

    @classmethod
    def like(cls, message: Message, owner: int) -> ElsewhereOutput:
        """Return what stands for a tensor."""
        made = torch.empty((), dtype=message.dtype).expand(message.size).as_subclass(cls)
        made.owner = owner
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Show what is known, refuse the rest."""
        name = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
        if name in _SHOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        found = next(t for t in _flat((args, kwargs or {})) if isinstance(t, cls))
        raise InputError(
            f"{name}: what the model returns beside its loss is on the rank that made it, this on "
            f"rank {found.owner}: place(..., outputs='everywhere') brings all of it to every rank"
        )

    def __repr__(self, **_: Any) -> str:
        return f"ElsewhereOutput(of shape {tuple(self.shape)}, on rank {self.owner})"


def _without_elsewhere(args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a function of lists, without the gradients that are elsewhere."""
    here = [not isinstance(t, ElsewhereGradient) for t in args[0]]

    def kept(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and len(value) == len(here):
            return [v for v, is_here in zip(value, here, strict=True) if is_here]
        return value

    return [kept(value) for value in args]


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for each in value:
        yield from _flat(each)


def stand_for_gradients(owners: Iterable[tuple[str, torch.Tensor, int]]) -> None:
    """Put what stands for gradients to the parameters that others have: name, parameter, rank."""
    for name, weight, rank in owners:
        if weight.requires_grad and type(weight) is ElsewhereParameter and weight.grad is None:
            gradient = weight.detach().as_subclass(ElsewhereGradient)
            gradient.weight_name, gradient.owner = name, rank
            weight.grad = gradient


# Optimizers, which the user makes, and whose state of other ranks' parameters is there

_GUARDED: weakref.WeakSet[Optimizer] = weakref.WeakSet()


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    """Have a step of an optimizer leave out what is elsewhere."""
    elsewhere = [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if type(p) is ElsewhereParameter
    ]
    for parameter in elsewhere:
        parameter.grad = None
    if elsewhere:
        guard(optimizer)


def guard(optimizer: Optimizer) -> None:
    """Refuse to read or load the state of an optimizer that is of a part of a model."""
    if optimizer in _GUARDED:
        return
    _GUARDED.add(optimizer)
    optimizer.register_state_dict_pre_hook(_refusing("state_dict()", "gathers all of it"))
    optimizer.register_load_state_dict_pre_hook(
        _refusing("load_state_dict(state)", "loads each where it is")
    )


def _refusing(call: str, what: str) -> Callable[..., None]:
    def refuse(optimizer: Optimizer, *_: Any) -> None:
        if not is_known(optimizer):
            name = type(optimizer).__name__
            ours = f"placed.{call.replace('state_dict(', 'optimizer_state_dict(optimizer, ')}"
            raise InputError(
                f"{name}.{call}: the model is placed over ranks, and this one has the state of a "
                f"part of its weights: {ours.replace(', )', ')')}, on every rank, {what}"
            )

    return refuse
