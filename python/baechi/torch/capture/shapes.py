# SPDX-License-Identifier: Apache-2.0
"""Shapes: a model whose weights are lent to tensors without memory while it is traced."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi._core import InputError
from baechi.torch.private import FakeTensorMode

_PLAIN_COPIES = (torch.Tensor.__deepcopy__, nn.Parameter.__deepcopy__)


class Shapes:
    """Makes tensors that have the shape, type and strides of others, all on one device."""

    def __init__(self, device: torch.device) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self._device = device
        self._made: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []  # so that no id is used twice

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in of a tensor, always the same."""
        if id(tensor) not in self._made:
            self._made[id(tensor)] = self._make(tensor)
            self._kept.append(tensor)
        return self._made[id(tensor)]

    def of_all(self, value: Any) -> Any:
        """Return nested containers with a stand-in for every tensor."""
        return pytree.tree_map_only(torch.Tensor, self.of, value)

    def of_example(self, value: Any, memo: dict[int, Any]) -> Any:
        """Return the same with copies of all other objects, which a model may change.

        Args:
            value: Nested containers.
            memo: Of `copy.deepcopy`: what the copy of the model shares with them.

        """

        def other(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self.of(leaf)
            try:
                return copy.deepcopy(leaf, memo)
            except (TypeError, RuntimeError):  # what cannot be copied: a lock, a file
                return leaf

        return pytree.tree_map(other, value)

    def memo(self) -> dict[int, Any]:
        """Return what keeps `copy.deepcopy` from copying stand-ins."""
        return {id(made): made for made in self._made.values()}

    def has(self, value: Any) -> bool:
        """Whether a value is a tensor that has a stand-in."""
        return isinstance(value, torch.Tensor) and id(value) in self._made

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise InputError("model: it has lazy weights: call it once, so that they get shapes")
        wraps = is_traceable_wrapper_subclass(tensor)
        if tensor.layout != torch.strided and not wraps:
            return self.mode.from_tensor(tensor, static_shapes=True)
        size, stride = tensor.size(), tensor.stride()
        with self.mode, torch.no_grad():
            if wraps:
                names, about = tensor.__tensor_flatten__()
                parts = {name: self.of(getattr(tensor, name)) for name in names}
                made = type(tensor).__tensor_unflatten__(parts, about, size, stride)
            else:
                made = torch.empty_strided(size, stride, dtype=tensor.dtype, device=self._device)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        if not isinstance(made, nn.Parameter) and tensor.requires_grad:
            made.requires_grad_()
        for name, value in vars(tensor).items():  # a user's attributes of a weight
            made.__dict__.setdefault(name, value)
        return made


def _lend(module: nn.Module, shapes: Shapes) -> Callable[[], None]:
    """Put stand-ins into one module; return what puts all back, in the order that it had."""
    if isinstance(module, torch.jit.ScriptModule):  # its weights are TorchScript's
        return lambda: None
    owners = (module.__dict__, module._parameters, module._buffers)
    before = [dict(owner) for owner in owners]
    for owner in owners[1:]:
        owner.update({name: shapes.of(t) for name, t in owner.items() if t is not None})
    for name, value in before[0].items():
        if isinstance(value, torch.Tensor):  # it is held like a buffer, so that it becomes an input
            del module.__dict__[name]
            module._buffers[name] = shapes.of(value)
        elif isinstance(value, list) and any(map(shapes.has, value)):  # the weights of an LSTM
            module.__dict__[name] = [shapes.of(v) if shapes.has(v) else v for v in value]

    def put_back() -> None:
        for owner, held in zip(owners, before, strict=True):
            owner.clear()
            owner.update(held)

    return put_back


class Copies(Shapes):
    """Copies of tensors with all that they hold, where these are."""

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor).__deepcopy__ not in _PLAIN_COPIES:  # with what else its class keeps
            return copy.deepcopy(tensor)
        made = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def lent(model: nn.Module, shapes: Shapes) -> Iterator[None]:
    """Put stand-ins where a model's tensors are; afterwards it is as before, whatever happened."""
    with contextlib.ExitStack() as undo:
        for module in list(model.modules()):
            undo.callback(_lend(module, shapes))
        yield
