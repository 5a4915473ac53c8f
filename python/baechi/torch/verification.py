# SPDX-License-Identifier: Apache-2.0
"""Verification: one step on one device and placed, compared module by module."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.torch.capture.loss import call_arguments, own_loss, tensors_in
from baechi.torch.where.homes import named_tensors

_EXACT = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Verification:
    """Whether a placed step is that of one device; true where it is."""

    compared: int  # tensors
    first: str = ""  # what differs first, and by how much
    largest: float = 0.0  # difference, as a share of the largest value of a tensor

    def __bool__(self) -> bool:
        return not self.first

    def __str__(self) -> str:
        if self.first:
            return f"differs: {self.first}"
        return f"{self.compared} tensors agree; the largest difference is {self.largest:.1e}"


_Trail = dict[str, torch.Tensor]  # what a step made, by name, in the order in which it was made


def verified(
    model: nn.Module,
    inputs: Any,
    loss: Callable[..., torch.Tensor] | None,
    tolerance: float | None,
    paused: Callable[[], Callable[[], None]],
) -> Verification:
    """Compare a step on one device with the same step placed; see `Placed.verify`.

    What is ``paused`` takes the model to one device, and returns what places it again.
    """
    with _no_dropout(model):
        again = paused()
        try:
            expected = _run(model, inputs, loss, watch=True)
        finally:
            again()
        placed = _run(model, inputs, loss, watch=False)
        found = _compared(expected, placed, tolerance)
        if found:
            return found
        # Its programs do not tell of modules: the same placement, eagerly, does.
        watched = _compared(expected, _run(model, inputs, loss, watch=True), tolerance)
        return found if watched else watched


def _run(model: nn.Module, inputs: Any, loss: Any, *, watch: bool) -> _Trail:
    """Run a step, of a copy of the inputs: it may change them as it may change buffers."""
    with _unchanged(model):
        return _trail(model, copy.deepcopy(inputs), loss, watch=watch)


def _trail(model: nn.Module, inputs: Any, loss: Any, *, watch: bool) -> _Trail:
    trail, handles = _Trail(), []

    def add(name: str, value: Any) -> None:
        for i, tensor in enumerate(tensors_in(value)):
            if tensor.is_floating_point() or tensor.is_complex():
                trail[f"{name}[{i}]"] = tensor.detach().to("cpu", copy=True)

    for path, module in model.named_modules():
        if watch and path:

            def told(_: Any, __: Any, output: Any, path: str = path) -> None:
                add(path, output)

            handles.append(module.register_forward_hook(told))
    held = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    try:
        args, kwargs = call_arguments(inputs)
        output = model(*args, **kwargs)
        add("the output", output)
        result = own_loss(output) if loss is None else loss(output)
        result.backward()
        add("the loss", result)
        for name, parameter in model.named_parameters():
            add(f"the gradient of {name}", parameter.grad)
    finally:
        for handle in handles:
            handle.remove()
        for name, parameter in model.named_parameters():
            grad = held[name]
            parameter.grad = None if grad is None else grad.to(parameter.device)
    return trail


def _compared(expected: _Trail, found: _Trail, tolerance: float | None) -> Verification:
    both = [name for name in expected if name in found]
    largest = 0.0
    for name in both:
        a, b = expected[name], found[name]
        if a.shape != b.shape:
            return Verification(len(both), f"{name} is of shape {list(b.shape)}", 1.0)
        if not a.numel():
            continue
        off = float((a - b).abs().max()) / max(1e-12, float(a.abs().max()))
        largest = max(largest, off)
        if not off <= (_EXACT.get(a.dtype, 1e-6) if tolerance is None else tolerance):
            return Verification(len(both), f"{name} is off by {off:.2g} of its largest value", off)
    return Verification(len(both), "", largest)


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Keep what a step changes: buffers, and the random numbers to come."""
    kept = {name: t.detach().to("cpu", copy=True) for name, t in named_tensors(model)}
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for name, tensor in named_tensors(model):
            tensor.copy_(kept[name])


@contextlib.contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    """Have no random numbers in between: they are other ones on other devices."""
    kept = [(m, m.p) for m in model.modules() if hasattr(m, "p") and isinstance(m.p, float)]
    for module, _ in kept:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in kept:
            module.p = p
