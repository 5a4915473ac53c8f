# SPDX-License-Identifier: Apache-2.0
"""Runs the code of a placed model, each operator on its device (Paper 4.3, tier 1).

The inputs of each unit go to the unit's device, and those of a plain torch function to the device
that the plan names, to its weight's, or to that of its first input. What the plan does not know,
such as control flow that took another turn than in the recorded step, follows its inputs.

A module all of whose operators share a device becomes one unit, so that nothing inside it is
intercepted.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from baechi.progress import warn
from baechi.torch.base import _private_autograd, _private_compile
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.function_rules import (
    CONVERSION,
    DIFFERENTIATES,
    STAY,
    TRANSFORMS,
    UNCOUNTED_CHANGES,
    asked_device,
    changes_argument,
    converts,
    is_host,
    on_host_by_intent,
    with_host_arguments,
    without_device,
)
from baechi.torch.base.nested import Lent, held_by, map_tensors, tensors_in
from baechi.torch.base.runs_again import Operation
from baechi.torch.base.second_runs import SecondRuns
from baechi.torch.record.interception import Interceptor, as_compiled
from baechi.torch.record.recorded_step import Capture, repeated_ops
from baechi.torch.record.scopes import Scope
from baechi.torch.run.placed_runs import PlacedRuns, on_device
from baechi.torch.run.planned_pieces import (
    called_units,
    keeping_units,
    pushed_outputs,
    reaching_calls,
    units_of,
    writers_of_views,
)
from baechi.torch.run.sent_tensors import SentTensors
from baechi.torch.run.together import Together, with_gradients_at_outputs

_CPU = torch.device("cpu")


class Calls(Protocol):
    """Who decides how the calls of a model run that come from outside of it."""

    def run_call(self, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the model, or the module at `path`; `run` runs its code, seen."""

    def run_again(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function that ran in a forward once more, in the backward."""


class EagerRunner(Interceptor):
    """Runs what is seen of a model's forward where a placement says."""

    sees_parts = True

    def __init__(
        self,
        model: nn.Module,
        captured: Capture,
        device_of: Mapping[str, LogicalDevice],
        sent: SentTensors,
        calls: Calls,
        *,
        collapse: bool,
        watch: Callable[[str, Any], None] | None,
        again: Collection[str] = (),
    ) -> None:
        repeated = repeated_ops(captured, again)
        if collapse:
            self._units = units_of(captured, device_of, repeated)
        else:
            self._units = called_units(captured)
        super().__init__(model, lambda path, _: path in self._units)
        self._device_of = device_of
        self._sent = sent
        self._calls = calls
        self._watch = watch
        self._keeps_inputs = {op.key for op in captured.ops if not op.changed}
        self._reaching = reaching_calls(captured)
        self._keeping_units = keeping_units(captured)
        self._recorded = {op.key for op in captured.ops}
        self._opened = {op.scope for op in captured.ops if op.module is None}
        self._changing = {op.key for op in captured.ops if op.changed or op.changes_weights}
        streams = sent.mode == "streams"
        self._pushed = pushed_outputs(captured, device_of) if streams else {}
        self._viewed = writers_of_views(captured, self._pushed)
        self.unplanned: set[str] = set()  # what ran but was not in the recorded step
        self._second: SecondRuns | None = None
        if again and captured.training:
            runner = PlacedRuns(sent, calls.run_again, self._computed)
            self._second = SecondRuns({captured.ops[i].key for i in repeated}, runner)

    def run_call(self, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the model, or a part that is called alone, as the placed model decides."""
        try:
            return self._calls.run_call(path, run, args, kwargs)
        finally:
            if self._second is not None:
                self._second.forget()

    def run_again(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function once more, in the backward."""
        return self._calls.run_again(run, args, kwargs)

    def hooked(self, tensor: torch.Tensor, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Have what a hook reads come to its gradient, and what it returns stay there."""
        device = self._sent.owner(tensor)
        if device is None:
            return hook
        together = Together(self._sent, device)

        def here(grad: torch.Tensor) -> Any:
            with together:
                return map_tensors(lambda t: self._sent.moved(t, device), hook(grad))

        return lambda grad: self.run_again(here, (grad,), {}) if self._wrapped else hook(grad)

    def _hook_sources(self, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Have hooks that a unit put on copies of its arguments see all of the gradients."""
        for tensor, copy in copies:
            hooks = copy._backward_hooks
            if hooks and tensor.requires_grad:
                for key, hook in hooks.items():
                    if hook is not _seen_by_source:
                        moved = _while_in(hooks, key, self.hooked(tensor, hook))
                        tensor.register_hook(moved)
                        hooks[key] = _seen_by_source  # its handle may still remove it

    def viewed(self, tensor: torch.Tensor, view: torch.Tensor) -> None:
        """Take note that a view by attribute is where its tensor is."""
        self._sent.mark(view, self._sent.owner(tensor))

    def read_aside(self, tensor: torch.Tensor) -> None:
        """Have what the caller's stream runs next, until the call ends, be in order with ours."""
        self._sent.read_aside(tensor)

    def opens(self, path: str) -> bool:
        """Whether it ran so in the recorded step; who puts in weights later keeps to the plan."""
        return any(f"{caller}.".startswith(f"{path}.") for caller in self._opened)

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a unit on its device."""
        switched = self._sent.autocast.switched()
        if switched is not None:
            with switched:
                return self.run_unit(scope, module, forward, args, kwargs)
        if scope.target is None:
            scope.target = self._target_of_unit(scope, module)
        device, changes = scope.target
        attributes = held_by(module)  # hooks may put others there
        known = scope.key in self._recorded or scope.path in self._units
        if not known and not self.is_part(scope.path):
            self._new(scope.key)
        if device is None:
            device = next(filter(None, map(self._sent.owner, tensors_in((args, kwargs)))), None)
        on_host = self._sent.stays_on_host((args, kwargs), module)
        if on_host:
            device = self._sent.host
        given = list(tensors_in((args, kwargs)))
        compiled = _private_compile.is_compiled(module)
        before = None if compiled or self._second is None else given
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        lent: Lent | None = None
        try:
            if device is not None:
                if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
                    args = (self._sent.moved(args[0], device),)
                else:
                    lent = Lent(functools.partial(self._sent.moved, target=device))
                    args, kwargs = lent.of(args), {n: lent.of(v) for n, v in kwargs.items()}
                    args, kwargs = self._sent.told_device(args, kwargs, device)
            taken = list(tensors_in((args, kwargs)))
            pairs = zip(given, taken, strict=True)
            copies = [(t, c) for t, c in pairs if c is not t and c.requires_grad]
            if changes and self._sent.may_be_read:
                for tensor in taken:
                    self._sent.about_to_change(tensor, device)
            key = scope.key or type(module).__name__
            repeats = not (changes or attributes or on_host or scope.key in self._reaching)
            if attributes and device is not None:
                forward = self._sent.attributes_at(module, attributes, device)(forward)
            if scope.key in self._reaching and device is not None:
                forward = Together(self._sent, device).around(forward)
            with as_compiled(module):
                operation = Operation(key, forward, before, module, repeats)
                out = self._operated(operation, args, kwargs, device)
            self._sent.mark(out, device)
        finally:
            self._hook_sources(copies)  # also where a checkpoint ends its second run early
            if lent is not None:
                self._sent.mark(lent.give_back(), device)
        if changes:
            self._sent.changed_back(given, taken)
        if on_host or (device is not None and device.has_streams):
            self._sent.keep_on_host(out)
        self._made(scope.key or type(module).__name__, out, device)
        return self._sent.uncopied(out)

    def _new(self, key: str) -> None:
        """Say once that the model took a turn that the recorded step did not."""
        if _private_autograd.current_autograd_node() is not None:
            return  # what a backward calls was not looked for
        if not self.unplanned:
            warn(
                f"{type(self.model).__name__} ran {key!r}, which was not in the recorded step: it "
                "follows its inputs. To plan it, give example inputs that lead there"
            )
        self.unplanned.add(key)

    def _target_of_unit(self, scope: Scope, module: nn.Module) -> tuple[LogicalDevice | None, bool]:
        key = scope.key or type(module).__name__
        known = self._units.get(scope.path)
        device = self._device_of.get(key) or known
        if device is None:  # called more often than in the recorded step, or only views
            weight = next(module.parameters(), None)
            device = None if weight is None else self._sent.owner(weight)
        keeps = key in self._keeps_inputs or scope.path in self._keeping_units
        return device, not keeps

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a torch function on one device."""
        switched = self._sent.autocast.switched()
        if switched is not None:
            with switched:
                return self.run_function(scope, index, name, call, args, kwargs)
        known = scope.planned.get(index)
        if known is None or known[0] != name:
            key = scope.function_key(index, name)
            known = scope.planned[index] = (name, key, self._device_of.get(key))
            if key not in self._recorded:
                self._new(key)
        args, kwargs = without_device(name, args, kwargs, self._sent.is_ours, self._sent.is_near)
        name = CONVERSION if converts(name, args, kwargs) else name
        args = with_host_arguments(name, args, self._copied_to_host)
        tensors = list(tensors_in((args, tuple(kwargs.values()))))
        before = None if self._second is None else tensors
        changes = changes_argument(name, kwargs)
        first = args[:1] or tensors[:1]  # of several tensors, where a function changes a list
        asked = asked_device(name, args, kwargs)
        on_host = on_host_by_intent(asked, self._sent.home)
        if self._sent.stays_on_host(tensors):
            device, on_host = self._sent.host, True
        elif name == DIFFERENTIATES:
            device, kwargs = None, with_gradients_at_outputs(self._sent, args, kwargs)
        else:
            stays = changes or name in STAY
            device = self._sent.device_of_function(tensors, known[2], stays, kwargs)
            args, kwargs = self._sent.taken(name, args, kwargs, device)
            if device is not None and known[1] in self._reaching:
                call = Together(self._sent, device, from_host=name in TRANSFORMS).around(call)
        repeats = not (changes or on_host or known[1] in self._reaching or name == DIFFERENTIATES)
        out = kwargs.get("out")
        if self._sent.may_be_read and (changes or out is not None or known[1] in self._changing):
            for tensor in tensors_in(first if changes else tensors if out is None else out):
                self._sent.about_to_change(tensor, device)
        if device is None:
            self._sent.wait_for(tensors)
        own_stream = device is not None and device.own_stream is not None
        if own_stream and name in STAY and is_host(asked):
            args = (self._sent.sent_home(args[0], _CPU), *args[1:])
        operation = Operation(known[1], call, before, None, repeats)
        out = self._operated(operation, args, kwargs, device)
        self._sent.mark(out, device)
        if changes and args:
            self._sent.changed_back(first, args[:1])
        elif name in UNCOUNTED_CHANGES or known[1] in self._changing:
            taken = list(tensors_in((args, tuple(kwargs.values()))))
            self._sent.changed_back(tensors[1:], taken[1:], counted=name not in UNCOUNTED_CHANGES)
        if on_host or (device is not None and device.has_streams and name not in STAY):
            self._sent.keep_on_host(out)
        self._made(known[1], out, device)
        return out if name in STAY else self._sent.uncopied(out)

    def _operated(
        self, operation: Operation, args: Any, kwargs: Any, device: LogicalDevice | None
    ) -> Any:
        """Run an operator, of which some run again in the backward."""
        if self._second is None or device is None or operation.given is None:
            return self._computed(operation.call, args, kwargs, device)
        return self._second.run(operation, args, kwargs, device)

    def _computed(
        self, call: Callable[..., Any], args: Any, kwargs: Any, device: LogicalDevice | None
    ) -> Any:
        if device is None:
            return call(*args, **kwargs)
        self._sent.behind_aside(device)
        return on_device(call, args, kwargs, device)

    def _copied_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self._sent.wait_for([tensor])  # the copy is the caller's, on its own stream
        return tensor.cpu()

    def _made(self, key: str, out: Any, device: LogicalDevice | None) -> None:
        if key in self._viewed and device is not None and device.has_streams:
            self._sent.note_made(out, device)
        if self._pushed:
            self._push(key, out, device)
        if self._watch is not None:
            with contextlib.nullcontext() if device is None else device.computing():
                self._watch(key, out)

    def _push(self, key: str, out: Any, device: LogicalDevice | None) -> None:
        """Send outputs to the devices that will want them, before these ask."""
        wanted = self._pushed.get(key)
        if wanted is None or device is None or not device.has_streams:
            return
        for position, tensor in enumerate(tensors_in(out)):
            for target in wanted.get(position, ()):
                elsewhere = target is not device and target.has_streams
                if elsewhere and self._sent.owner(tensor) is device:
                    self._sent.copy(tensor, device, target)


def _seen_by_source(_: torch.Tensor) -> None:
    """Stand for a hook that the source of a copy has instead."""


def _while_in(hooks: Mapping[int, Any], key: int, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that is called until its handle takes it out of `hooks`."""
    return lambda grad: hook(grad) if key in hooks else None
