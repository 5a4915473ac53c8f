# SPDX-License-Identifier: Apache-2.0
"""What stands for the gradients that other ranks have, from a step until the optimizer's.

What changes gradients one by one in place, their owners do alike, and it leaves these as they are.
Whatever else is computed from gradients would miss them, so that is an error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from baechi._core import InputError
from baechi.torch.capture.loss import tensors_in
from baechi.torch.graph.optimizers import SEPARATE
from baechi.torch.run.piecewise import kind_of

_SHOWN = frozenset(  # what it is, whatever its values are
    {"shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad_fn", "is_leaf"}
    | {"is_sparse", "is_cpu", "is_cuda", "is_xpu", "is_meta", "size", "dim", "numel", "stride"}
    | {"element_size", "is_floating_point", "is_complex", "is_contiguous"}
    | {"_has_compatible_shallow_copy_type"}
)
_KEPT = frozenset({"to", "cpu", "cuda", "xpu", "__iadd__", "__isub__", "__imul__", "__itruediv__"})


class ElsewhereGradient(torch.Tensor):
    """Stands for a gradient that another rank has."""

    owner: int
    weight_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Show what is known, skip what changes it, refuse the rest."""
        accessor = func.__name__ in ("__get__", "__set__")
        name = func.__self__.__name__ if accessor else func.__name__
        if accessor and func.__name__ == "__set__" and name == "data":  # as `model.to` does
            return None
        in_place = name.endswith("_") and not name.endswith("__")
        with torch._C.DisableTorchFunctionSubclass():
            if name in _SHOWN:
                return func(*args, **(kwargs or {}))
            first = args[0] if args else None
            if (in_place or name in _KEPT) and isinstance(first, cls):
                return first
            if in_place and isinstance(first, (list, tuple)):
                return func(*_without(args), **(kwargs or {}))
        found = next(t for t in tensors_in((args, kwargs)) if isinstance(t, cls))
        raise InputError(
            f"{name}: the gradient of {found.weight_name!r} is on rank {found.owner}, so that this "
            "would be of a part of the gradients and differ between ranks; "
            "placed.clip_grad_norm_(max_norm), on every rank, clips by the norm of all, as "
            "torch.nn.utils.clip_grad_norm_ cannot"
        )

    def __repr__(self, **_: Any) -> str:
        return f"ElsewhereGradient(of {self.weight_name!r}, on rank {self.owner})"


def _without(args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a function of lists, without the gradients that are elsewhere."""
    here = [not isinstance(t, ElsewhereGradient) for t in args[0]]

    def kept(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and len(value) == len(here):
            return [v for v, is_here in zip(value, here, strict=True) if is_here]
        return value

    return [kept(value) for value in args]


def stand_for_gradients(away: Mapping[str, tuple[torch.Tensor, int]]) -> None:
    """Put what stands for gradients to the parameters that other ranks have."""
    _watch_optimizers()
    for name, (weight, owner) in away.items():
        if weight.requires_grad and weight.grad is None:
            gradient = weight.detach().as_subclass(ElsewhereGradient)
            gradient.weight_name, gradient.owner = name, owner
            weight.grad = gradient


def is_finite(gradient: torch.Tensor) -> bool:
    """Tell whether all values are, by a number, which takes no memory like theirs."""
    values = real(gradient)
    return not values.numel() or bool(torch.linalg.vector_norm(values, math.inf).isfinite())


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return the real numbers of a tensor."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    """Have a step of an optimizer leave out what is elsewhere, which others must not follow."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    away = [weight for weight in weights if isinstance(weight.grad, ElsewhereGradient)]
    if away and kind_of(optimizer) not in SEPARATE:
        raise InputError(
            f"{type(optimizer).__name__} may make the update of a weight of other gradients, too, "
            "and this rank has a part of them: take one of torch.optim, not LBFGS, beside "
            "placed.clip_grad_norm_, or give it only weights that this rank has"
        )
    for weight in away:
        weight.grad = None
