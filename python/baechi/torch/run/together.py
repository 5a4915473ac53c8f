# SPDX-License-Identifier: Apache-2.0
"""Runs code on one device whose tensors may be on several, and in which no operator is planned.

A unit may read what is none of its arguments: a weight that `parametrize.cached` keeps, a tensor in
an object that its modules share. A hook on a gradient may read what the forward made elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.function_rules import DIFFERENTIATES, STAY, changes_argument, only_looks
from baechi.torch.base.nested import map_tensors, tensors_in
from baechi.torch.run.sent_tensors import SentTensors


def with_gradients_at_outputs(sent: SentTensors, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return what `torch.autograd.grad` is given by name: gradients are where the outputs are."""
    outputs, gradients = list(tensors_in(args[:1])), kwargs.get("grad_outputs")
    several = not isinstance(gradients, torch.Tensor)
    given = list(gradients or ()) if several else [gradients]
    if len(outputs) != len(given):
        return dict(kwargs)
    places = map(sent.owner, outputs)
    moved = [
        gradient if gradient is None or place is None else sent.moved(gradient, place)
        for gradient, place in zip(given, places, strict=True)
    ]
    return {**kwargs, "grad_outputs": tuple(moved) if several else moved[0]}


class Together(TorchFunctionMode):
    """Has each torch function run where a unit or a hook runs; one in place, where its tensor is.

    Tensors on the host that no device has stay there unless they come along: who put them there may
    want them there.
    """

    def __init__(
        self, sent: SentTensors, device: LogicalDevice, *, from_host: bool = False
    ) -> None:
        super().__init__()
        self._sent = sent
        self._device = device
        self._from_host = from_host

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes a call in this mode."""

        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Bring what a function reads."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in STAY or only_looks(name, args, kwargs):
            return func(*args, **kwargs)
        if name == DIFFERENTIATES:
            return func(*args, **with_gradients_at_outputs(self._sent, args, kwargs))
        changed = next(tensors_in(args), None) if changes_argument(name, kwargs) else None
        owner = None if changed is None else self._sent.owner(changed)
        device = owner or self._device

        def move(tensor: torch.Tensor) -> torch.Tensor:
            source = self._sent.owner(tensor)
            by_chance = source is None and tensor.device == device.torch_device
            stays = source is device or (source is None and not (self._from_host or by_chance))
            if stays or _private.is_transformed(tensor):
                return tensor
            return self._sent.moved(tensor, device)

        args, kwargs = map_tensors(move, args), map_tensors(move, kwargs)
        if changed is not None and self._sent.may_be_read:
            self._sent.about_to_change(changed, owner)
        with device.computing():
            out = func(*args, **kwargs)
        self._sent.mark(out, device)
        return out
