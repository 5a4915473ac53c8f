# SPDX-License-Identifier: Apache-2.0
"""Keeps the weights of a placed model where the plan has them (Paper 4.3).

Training scripts and libraries send a model to "the" device, with `model.to(device)`, whatever was
done with it before. A change of precision is made, a move is not, and it is said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.weights.homes import named_weights


class KeptWeights:
    """Stands before a model's `_apply`, which all of `to`, `cuda`, `cpu` and `half` go through."""

    def __init__(self, model: nn.Module, retyped: Callable[[], None]) -> None:
        self._model = model
        self._retyped = retyped  # told when the weights have another type
        self._apply = model._apply
        self._said = False
        self.fixed = ""  # why their type cannot change
        model.__dict__["_apply"] = self.apply

    def remove(self) -> None:
        """Let the model's weights be moved again."""
        self._model.__dict__.pop("_apply", None)

    def apply(
        self, change: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any
    ) -> nn.Module:
        """Change all weights, and leave them where they are."""
        buffers = {id(buffer) for buffer in self._model.buffers()}
        moved = retyped = False

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal moved, retyped
            changed = change(tensor)
            if self.fixed and changed.dtype != tensor.dtype:
                raise InputError(self.fixed)
            if changed.device != tensor.device:
                moved = True
                if changed.dtype == tensor.dtype and changed.stride() == tensor.stride():
                    return tensor
                changed = changed.to(tensor.device)
            retyped = retyped or changed.dtype != tensor.dtype
            if changed is tensor or id(tensor) not in buffers:
                return changed
            tensor.data = changed  # the same object, which is known by its identity
            return tensor

        self._apply(kept, *args, **kwargs)
        if retyped:
            self._retyped()
        if moved and not self._said:
            self._said = True
            warnings.warn(
                f"{type(self._model).__name__} is placed: its weights stay on the devices of the "
                "plan; restore() it to move it",
                stacklevel=4,
            )
        return self._model


def check_weights(
    model: nn.Module, planned: Mapping[str, LogicalDevice], error: RuntimeError
) -> None:
    """Raise InputError in the place of `error` if a weight is not where the plan has it."""
    named = named_weights(model, tied=True)
    known = {id(tensor) for name, tensor in named if name in planned}
    for name, tensor in named:
        device = planned.get(name)
        if device is None and id(tensor) not in known:
            device = _device_beside(name, [other for other, _ in named], planned)
        if device is None or device.is_elsewhere:
            continue
        if tensor.device != device.torch_device:
            raise InputError(
                f"the weight {name!r} is on {tensor.device}, and the plan has it on "
                f"{device.torch_device}: it was moved or replaced after the model was placed, "
                "or another model that has it, too, was placed otherwise. Move it there, restore() "
                "the model first, or place one module that holds both models"
            ) from error


def _device_beside(
    name: str, names: list[str], planned: Mapping[str, LogicalDevice]
) -> LogicalDevice | None:
    """Return where the plan has another weight of the module that has a new one."""
    module = name.rpartition(".")[0]
    beside = (planned.get(other) for other in names if other.rpartition(".")[0] == module)
    return next(filter(None, beside), None)
