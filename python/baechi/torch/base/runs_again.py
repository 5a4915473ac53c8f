# SPDX-License-Identifier: Apache-2.0
"""One run of an operator that has a second one in the backward, and what that makes again.

Whoever asks for what it makes has it run, behind the runs that it reads from. Its other inputs are
held for it; they must be what they were.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from baechi.torch.base import _private
from baechi.torch.base.nested import tensors_in
from baechi.torch.base.plain_values import mapped
from baechi.torch.base.run_modes import autocast_of, in_modes, modes_of


@dataclass(frozen=True)
class Operation:
    """An operator of a forward that is about to run."""

    key: str
    call: Callable[..., Any]
    given: list[torch.Tensor] | None  # tensors of its arguments, as they came; None: not looked at
    module: nn.Module | None = None  # whose forward it is
    repeats: bool = True  # it can run again
    weights: tuple[torch.Tensor, ...] = ()  # that it reads beside its arguments and the module's

    def read_weights(self) -> list[torch.Tensor]:
        """Return all weights and buffers that it reads beside its arguments."""
        module = self.module
        own = [] if module is None else [*module.parameters(), *module.buffers()]
        return [*own, *self.weights]


class Runner(Protocol):
    """Who runs operators, and holds what backwards keep; a device is whatever it calls so."""

    hooks: Any  # that it has on saved tensors itself

    def compute(self, call: Callable[..., Any], args: Any, kwargs: Any, device: Any) -> Any:
        """Run an operator for the first time."""

    def compute_again(
        self, key: str, call: Callable[..., Any], args: Any, kwargs: Any, at: Any
    ) -> Any:
        """Run it again; its arguments are there."""

    def behind(self, run: Callable[[], None]) -> None:
        """Have all that a backward asks for run, behind what that has done."""

    def sent(self, tensor: torch.Tensor, device: Any) -> Callable[[], torch.Tensor]:
        """Send what a second run made to another device; return what waits for it there."""

    def made(self, tensor: torch.Tensor, device: Any) -> None:
        """Take note of what a second run made on a device."""

    def read(self, tensor: torch.Tensor, device: Any) -> torch.Tensor:
        """Return what is on a device as who runs now may read it."""

    def keep(self, tensor: torch.Tensor) -> Any:
        """Return what a backward keeps for a tensor that is not made again."""

    def give(self, kept: Any) -> torch.Tensor:
        """Return the tensor."""

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a run holds of a tensor that it will read again."""


class Made:
    """A tensor that a run will make again."""

    __slots__ = ("__weakref__", "device", "run", "value")

    def __init__(self, run: Run) -> None:
        self.run: Run = run
        self.device = run.device
        self.value: torch.Tensor | None = None

    def fetch(self) -> None:
        """Have it made, if it is not there."""
        self.run.go()


class Output(Made):
    """What a run returns."""

    __slots__ = ("copies",)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.copies: weakref.WeakValueDictionary[Any, Sent] = weakref.WeakValueDictionary()

    def bring(self) -> None:
        """Have it there for a run that reads it: it is, where it was made."""

    def at(self, device: Any) -> Output | Sent:
        """Return the same tensor as it is sent to a device."""
        if device is self.device:
            return self
        sent = self.copies.get(device)
        if sent is None:
            sent = self.copies[device] = Sent(self, device)
        return sent


class Saved(Made):
    """What the backward of a run's operator keeps that the run itself made."""

    __slots__ = ("form",)

    def __init__(self, run: Run, tensor: torch.Tensor) -> None:
        super().__init__(run)
        self.form = tensor.shape, tensor.dtype


class Sent:
    """What a run returns, on another device."""

    __slots__ = ("__weakref__", "_coming", "_output", "device", "run", "value")

    def __init__(self, output: Output, device: Any) -> None:
        self._output: Output | None = output
        self._coming: Callable[[], torch.Tensor] | None = None
        self.run = output.run
        self.device = device
        self.value: torch.Tensor | None = None

    def fetch(self) -> None:
        """Have it made and sent, if it is not there."""
        self.run.go()
        self.bring()

    def start(self) -> None:
        """Have it sent from where it was made again, if it is there."""
        if self._output is not None and self._output.value is not None:
            with torch.no_grad():
                self._coming = self.run.runner.sent(self._output.value, self.device)
            self._output = None  # who reads it there holds it

    def bring(self) -> None:
        """Have it there for who reads it."""
        self.start()
        if self._coming is not None:
            with torch.no_grad():
                self.value = self._coming()
            self._coming = None


class Source(Protocol):
    """What will make a tensor again, or bring it from where it is made."""

    run: Any  # that makes it
    device: Any
    value: torch.Tensor | None

    def fetch(self) -> None:
        """Have it made, if it is not there."""

    def bring(self) -> None:
        """Have it there for a run that reads it."""


class View:
    """A part of the memory of what a run will return."""

    __slots__ = ("_layout", "source")

    def __init__(self, source: Source, tensor: torch.Tensor, whole: torch.Tensor) -> None:
        self.source = source
        offset = tensor.storage_offset() - whole.storage_offset()
        self._layout = tensor.shape, tensor.stride(), offset

    @property
    def run(self) -> Run:
        """The run that makes it."""
        return self.source.run

    @property
    def device(self) -> Any:
        """Where it is."""
        return self.source.device

    @property
    def value(self) -> torch.Tensor | None:
        """The tensor, once it was made again."""
        whole = self.source.value
        if whole is None:
            return None
        size, stride, offset = self._layout
        return whole.as_strided(size, stride, whole.storage_offset() + offset)

    def fetch(self) -> None:
        """Have it made, if it is not there."""
        self.source.fetch()


class Slot:
    """A tensor among the arguments of a run: one that is held for it, or that is made again."""

    __slots__ = ("_grads", "_held", "_version", "source")

    def __init__(self, tensor: torch.Tensor, source: Source | None, runner: Runner) -> None:
        self.source = source
        self._grads = tensor.requires_grad
        self._held: torch.Tensor | None = None
        self._version = 0
        if source is None:
            self._held = tensor if isinstance(tensor, nn.Parameter) else runner.hold(tensor)
            self._version = _private.version_of(self._held)

    def tensor(self) -> torch.Tensor:
        """Return it, with no history."""
        if self.source is not None:
            self.source.bring()
            value = self.source.value
            assert value is not None
        else:
            assert self._held is not None
            value = self._held
            check_version(value, self._version)
            if isinstance(value, nn.Parameter):
                return value
        value = value.detach()
        return value.requires_grad_() if self._grads else value


def check_version(tensor: torch.Tensor, version: int) -> None:
    """Raise RuntimeError, as autograd does, where what a backward reads was changed in place."""
    if _private.version_of(tensor) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} is at version "
            f"{_private.version_of(tensor)}; expected version {version} instead"
        )


class Run:
    """One run of an operator in the forward, and all that its second run takes."""

    __slots__ = (
        "__weakref__",
        "_args",
        "_autocast",
        "_call",
        "_grads",
        "_kwargs",
        "_module",
        "_own",
        "_slots",
        "_weights",
        "device",
        "done",
        "key",
        "outputs",
        "runner",
        "saved",
    )

    def __init__(
        self,
        operation: Operation,
        args: Any,
        kwargs: Any,
        sources: Mapping[int, Source],
        device: Any,
        runner: Runner,
    ) -> None:
        self.key = operation.key
        self._call, module = operation.call, operation.module
        self.device = device
        self.runner = runner
        self._slots: list[Slot] = []

        def slot(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            self._slots.append(Slot(value, sources.get(id(value)), runner))
            return self._slots[-1]

        self._args: Any = mapped(slot, args)
        self._kwargs: Any = mapped(slot, kwargs)
        weights = operation.read_weights()
        self._weights = [(weight, _private.version_of(weight)) for weight in weights]
        self._own = len(weights) - len(operation.weights)  # of the module
        self._module = None if module is None else (module, modes_of(module))
        self._grads = torch.is_grad_enabled()
        read = (*tensors_in((args, kwargs)), *weights)
        self._autocast = autocast_of(tensor.device.type for tensor in read)
        self.outputs: weakref.WeakValueDictionary[int, Output] = weakref.WeakValueDictionary()
        self.saved: list[Any] = []  # in the order in which it saves: who wants it, or nobody
        self.done = False

    def go(self) -> None:
        """Run again, behind the runs that it reads from; once."""
        waiting = [self]
        while waiting:
            run = waiting[-1]
            missing = [] if run.done else [s.source.run for s in run._slots if s.source is not None]
            missing = [other for other in missing if not other.done]
            if missing:
                waiting.extend(reversed(missing))
                continue
            waiting.pop()
            if not run.done:
                run._go()

    def _go(self) -> None:
        modules = [] if self._module is None else list(self._module[0].modules())
        module = None if self._module is None else self._module[0]
        now = [] if module is None else [*module.parameters(), *module.buffers()]
        if [id(w) for w in now] != [id(w) for w, _ in self._weights[: self._own]]:
            raise RuntimeError(f"{self.key!r} runs again with other weights than in the forward")
        for weight, version in self._weights:
            check_version(weight, version)
        found: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> None:
            found.append(tensor.detach())  # with its history it would hold all of the second run

        def tensor_of(value: Any) -> Any:
            return value.tensor() if isinstance(value, Slot) else value

        args, kwargs = mapped(tensor_of, self._args), mapped(tensor_of, self._kwargs)
        with contextlib.ExitStack() as stack:
            if self._autocast != autocast_of(kind for kind, *_ in self._autocast):
                for kind, enabled, dtype, cache in self._autocast:
                    stack.enter_context(torch.autocast(kind, dtype, enabled, cache))
            stack.enter_context(torch.set_grad_enabled(self._grads))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _never))
            if self._module is not None:
                stack.enter_context(in_modes(modules, self._module[1]))
            out = self.runner.compute_again(self.key, self._call, args, kwargs, self.device)
        self._fill(list(tensors_in(out)), found)
        self._args = self._kwargs = None
        self._slots = []
        self.done = True

    def output(self, position: int) -> Output:
        """Return one of the tensors that it returns, as it will be made again."""
        output = self.outputs[position] = Output(self)
        return output

    def outputs_of(self, made: Sequence[Any]) -> list[Output | None]:
        """Return what will make again what it returned; None of what is no tensor."""
        tensors = itertools.count()
        return [self.output(next(tensors)) if isinstance(m, torch.Tensor) else None for m in made]

    def send_again(self) -> None:
        """Send what it made again to those elsewhere who will read it."""
        for output in self.outputs.values():
            for sent in output.copies.values():
                sent.start()

    def is_wanted(self) -> bool:
        """Whether somebody waits for what it would make again."""
        saved = any(made is not None and made() is not None for made in self.saved)
        return saved or len(self.outputs) > 0

    def _fill(self, out: list[torch.Tensor], found: list[torch.Tensor]) -> None:
        if len(found) != len(self.saved):
            raise RuntimeError(
                f"{self.key!r} saved {len(self.saved)} tensors in the forward and {len(found)} "
                "when it ran again: it cannot run again (recompute='none' has nothing run again)"
            )
        for made, tensor in zip(self.saved, found, strict=True):
            wanted = None if made is None else made()
            if wanted is None:
                continue
            if wanted.form != (tensor.shape, tensor.dtype):
                raise RuntimeError(
                    f"{self.key!r} saved {tuple(tensor.shape)} of {tensor.dtype} when it ran "
                    f"again, and {tuple(wanted.form[0])} of {wanted.form[1]} in the forward: it "
                    "cannot run again (recompute='none' has nothing run again)"
                )
            wanted.value = tensor
            self.runner.made(tensor, self.device)
        for position, output in self.outputs.items():
            output.value = out[position].detach()
            self.runner.made(output.value, self.device)


def _never(_: Any) -> Any:
    raise RuntimeError("the values of a second run have no history")
