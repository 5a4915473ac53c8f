# SPDX-License-Identifier: Apache-2.0
"""Compares a placed model with the same model on one device, operator by operator.

Both run the same inputs from the same random state, dropout off. The first operator whose output
differs is named; when all outputs agree, the first in the backward whose gradient does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.moving import own_leaves
from baechi.torch.base.nested import tensors_in
from baechi.torch.record.capture import call_arguments, sum_of, unchanged
from baechi.torch.record.interception import Interceptor
from baechi.torch.record.scopes import Scope
from baechi.torch.run.communication import Links

_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass
class Verification:
    """What `Placed.verify` found; true when nothing differs."""

    compared: int  # tensors
    where: str | None = None  # the first operator, weight or pair of devices that differs
    what: str = ""  # "output", "gradient", "weight gradient", "copy" or "missing"
    error: float = 0.0  # largest difference, as a share of the largest value

    def __bool__(self) -> bool:
        return self.where is None

    def __str__(self) -> str:
        if self.where is None:
            return f"no difference in {self.compared} tensors"
        if self.what == "missing":
            return f"{self.where} runs only unplaced, or only placed"
        return f"{self.what} of {self.where} differs by {self.error:.1e} of its largest value"


class _Watcher(Interceptor):
    """Sees the operators of the model on one device."""

    def __init__(self, model: nn.Module, is_unit: Any, watch: Callable[[str, Any], None]) -> None:
        super().__init__(model, is_unit)
        self._watch = watch

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a unit and show its output."""
        out = forward(*args, **kwargs)
        self._watch(scope.key or type(module).__name__, out)
        return out

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a function and show its output."""
        out = call(*args, **kwargs)
        self._watch(scope.function_key(index, name), out)
        return out


class Trail:
    """The outputs and gradients of one step, on the CPU."""

    def __init__(self) -> None:
        self.outputs: dict[tuple[str, int], torch.Tensor] = {}
        self.gradients: dict[tuple[str, int], torch.Tensor] = {}  # in the order of the backward
        self.weights: dict[str, torch.Tensor] = {}

    def watch(self, key: str, out: Any) -> None:
        """Keep what an operator made, and the gradient that will come to it.

        Where there are several outputs, the gradient of each depends on the kernel: one device has
        a single one for the cell of an LSTM, another several.
        """
        tensors = list(tensors_in(out))
        alone = sum(tensor.requires_grad for tensor in tensors) == 1
        for position, tensor in enumerate(tensors):
            where = (key, position)
            self.outputs[where] = tensor.detach().cpu().clone()
            if tensor.requires_grad and alone:
                tensor.register_hook(lambda g, w=where: self._keep(w, g))

    def _keep(self, where: tuple[str, int], gradient: torch.Tensor) -> None:
        self.gradients[where] = gradient.detach().cpu().clone()

    def run(self, model: nn.Module, inputs: Any, loss: Callable[[Any], Any] | None) -> None:
        """Run one step; without a loss that requires a gradient only the forward."""
        args, kwargs = map(own_leaves, call_arguments(inputs))
        outputs = model(*args, **kwargs)
        if any(t.requires_grad for t in tensors_in(outputs)):
            (loss or sum_of)(outputs).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.weights[name] = parameter.grad.detach().cpu().clone()


@contextlib.contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """Turn dropout modules off: their random numbers come from the device they run on."""
    modules = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    training = [m.training for m in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, was in zip(modules, training, strict=True):
            module.training = was


def trail_of(
    model: nn.Module, is_unit: Any, inputs: Any, loss: Callable[[Any], Any] | None
) -> Trail:
    """Run the model where it is and return what every operator made."""
    trail = Trail()
    watcher = _Watcher(model, is_unit, trail.watch)
    with unchanged(model, given=inputs), no_dropout(model):
        watcher.install()
        try:
            trail.run(model, inputs, loss)
        finally:
            watcher.remove()
    return trail


def difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest value; infinite for other shapes."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if not expected.dtype.is_floating_point:
        return 0.0 if torch.equal(expected, found) else float("inf")
    a, b = expected.double(), found.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    scale = float(a.abs().max())
    return float((a - b).abs().max()) / scale if scale > 0 else float(b.abs().max())


def compared(expected: Trail, found: Trail, tolerance: float | None) -> Verification:
    """Compare outputs, then gradients, then the gradients of weights."""
    count = 0
    sides: list[tuple[str, dict[Any, torch.Tensor], dict[Any, torch.Tensor]]] = [
        ("output", expected.outputs, found.outputs),
        ("gradient", expected.gradients, found.gradients),
        ("weight gradient", expected.weights, found.weights),
    ]
    for what, ours, theirs in sides:
        for key, tensor in ours.items():
            name = key if isinstance(key, str) else key[0]
            other = theirs.get(key)
            if other is None:
                return Verification(count, name, "missing")
            allowed = _TOLERANCE.get(tensor.dtype, 1e-4) if tolerance is None else tolerance
            if tolerance is None and what != "output":
                allowed *= 10  # sums of gradients are taken in another order
            error = difference(tensor, other)
            if error > allowed:
                return Verification(count, name, what, error)
            count += 1
    return Verification(count)


def check_copies(devices: list[LogicalDevice], mode: str) -> Verification:
    """Send known bytes over every ordered pair of devices, forward and back."""
    links = Links(devices, mode)
    pattern = torch.arange(1 << 16, dtype=torch.float32)
    for source in devices:
        for target in devices:
            if source is target:
                continue
            here = pattern.to(source.torch_device)
            there = links.send(here, source, target).wait()
            if target.own_stream is not None:
                target.own_stream.synchronize()
            error = difference(pattern, there.cpu())
            if error:
                return Verification(0, f"{source.name} -> {target.name}", "copy", error)
    return Verification(len(devices) * (len(devices) - 1))
