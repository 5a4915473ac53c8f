# SPDX-License-Identifier: Apache-2.0
"""Runs an unmodified eager model over several devices (Paper 4.3, the Assigner).

Weights move to where the plan wants them, without a change of identity. While the model runs, the
inputs of each unit go to the unit's device, and those of a plain torch function to the device that
the plan names, to its weight's, or to that of its first input. What the plan does not know, such as
control flow that took another turn than in the recorded step, follows its inputs.

A module all of whose operators share a device becomes one unit, so that nothing inside it is
intercepted.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.function_rules import (
    DIFFERENTIATES,
    STAY,
    UNCOUNTED_CHANGES,
    asked_device,
    changes_argument,
    is_host,
    on_host_by_intent,
    with_host_arguments,
)
from baechi.torch.base.moving import flatten_recurrent, move_weights
from baechi.torch.base.nested import dense_in, held_by, held_tensors, map_tensors, tensors_in
from baechi.torch.record.recorded_step import Capture
from baechi.torch.record.scopes import Scope
from baechi.torch.run.communication import MODES
from baechi.torch.run.planned_pieces import (
    called_units,
    keeping_units,
    pushed_outputs,
    units_of,
    writers_of_views,
)
from baechi.torch.run.sent_tensors import TAG, Made, SentTensors
from baechi.torch.weights.homes import homes_of_weights, named_weights
from baechi.torch.weights.kept_weights import KeptWeights, check_weights
from baechi.torch.weights.optimizer_state import follow

_CPU = torch.device("cpu")


class Assigner(SentTensors):
    """A model whose operators run where a placement says, until `remove`."""

    sees_parts = True

    def __init__(
        self,
        model: nn.Module,
        captured: Capture,
        device_of: Mapping[str, int],
        devices: list[LogicalDevice],
        mode: str = "streams",
        *,
        collapse: bool = True,
    ) -> None:
        if mode not in MODES:
            raise InputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        self.placement = dict(device_of)
        self.captured = captured
        views = {op.key for op in captured.ops if op.only_views}  # are where their storage is
        self._device_of = {key: devices[i] for key, i in device_of.items() if key not in views}
        self._units = units_of(captured, self._device_of) if collapse else called_units(captured)
        super().__init__(model, lambda path, _: path in self._units, devices, mode)
        self._keeps_inputs = {op.key for op in captured.ops if not op.changed}
        self._keeping_units = keeping_units(captured)
        self._recorded = {op.key for op in captured.ops}
        self._opened = {op.scope for op in captured.ops if op.module is None}
        self._changing = {op.key for op in captured.ops if op.changed or op.changes_weights}
        self.unplanned: set[str] = set()  # what ran but was not in the recorded step
        self._pushed = pushed_outputs(captured, self._device_of) if mode == "streams" else {}
        self._viewed = writers_of_views(captured, self._pushed)
        self.weight_devices: dict[str, str] = {}  # the cluster's device of every weight
        self._moved: list[tuple[torch.Tensor, torch.device]] = []
        self._kept: KeptWeights | None = None
        self._unhooked: list[torch.Tensor] = []  # that do not, or did not, get gradients
        self._hooks: list[Any] = []
        self._callers: dict[torch.device, Any] = {}  # the caller's streams, in the last forward
        self.running = threading.RLock()  # held by the thread that calls the model
        self.watch: Callable[[str, Any], None] | None = None  # told of every operator's outputs

    @property
    def places(self) -> list[torch.device]:
        """The physical devices."""
        return [device.torch_device for device in self.devices]

    # Weights

    def install(self) -> None:
        """Move the weights and put the wrappers in place; if it fails, all is as before."""
        self.check_free()
        try:
            self._put_in_place()
        except BaseException:
            self.remove()
            raise

    def _put_in_place(self) -> None:
        _private.one_backward_thread.begin(self)
        goes = homes_of_weights(self.model, self.captured, self._device_of)
        self._moved = [(tensor, tensor.device) for tensor, _ in goes]
        self._weight_ids = {id(tensor) for tensor, _ in goes}
        names = [name for name, _ in named_weights(self.model)]
        self.weight_devices = {n: d.name for n, (_, d) in zip(names, goes, strict=True)}
        move_weights([(tensor, device.torch_device) for tensor, device in goes])
        follow(self._moved)
        flatten_recurrent(self.model)
        for tensor, device in goes:
            self._mark(tensor, device)
        self._kept = KeptWeights(self.model, self.retyped)
        self._unhooked = [tensor for tensor, device in goes if device.own_stream is not None]
        super().install()

    def remove(self) -> None:
        """Take the wrappers away and move the weights back."""
        super().remove()
        _private.one_backward_thread.end(self)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._unhooked.clear()
        if self._kept is not None:
            self._kept.remove()
        goes = [*self._moved, *self._made_since()]
        came_from = [(tensor, tensor.device) for tensor, _ in goes]
        move_weights(goes)
        follow(came_from)
        for tensor, _ in self._moved:
            if hasattr(tensor, TAG):
                delattr(tensor, TAG)
        self._moved = []
        self._weight_ids.clear()

    def _made_since(self) -> list[tuple[torch.Tensor, torch.device]]:
        """Return the weights made on our devices since, and where the others came from."""
        homes = {home for _, home in self._moved}
        known = {id(tensor) for tensor, _ in self._moved}
        ours = {device.torch_device for device in self.devices}
        if len(homes) != 1:
            return []
        weights = [tensor for _, tensor in named_weights(self.model) if id(tensor) not in known]
        return [(tensor, *homes) for tensor in weights if tensor.device in ours]

    def retyped(self) -> None:
        """Take note that the weights have another type."""

    def _push(self, key: str, out: Any, device: LogicalDevice | None) -> None:
        """Send outputs to the devices that will want them, before these ask."""
        wanted = self._pushed.get(key)
        if wanted is None or device is None or not device.has_streams:
            return
        for position, tensor in enumerate(tensors_in(out)):
            for target in wanted.get(position, ()):
                if target is not device and target.has_streams and self.owner(tensor) is device:
                    self._copy(tensor, device, target)

    # Running

    def _outside(self, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        follower = _private.follower()
        if follower is not None:
            raise InputError(f"{follower} cannot follow a placed model: restore() it first")
        _private.one_backward_thread.here()  # also where another thread calls the model
        with self.running:
            try:
                return self._ran(path, forward, args, kwargs)
            except RuntimeError as error:
                self._explain(error)
                raise

    def _ran(self, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return super()._outside(path, forward, args, kwargs)

    def resume(self, *args: Any) -> Any:
        """Run a function again, in the backward."""
        with self.running:
            try:
                return super().resume(*args)
            finally:
                if self._state.scope is None:  # no forward goes on, which would forget them
                    self._call_is_over()

    def _explain(self, error: RuntimeError) -> None:
        """Raise a clearer error if weights are not where they should be."""
        by_name = {device.name: device for device in self.devices}
        planned = {name: by_name[device] for name, device in self.weight_devices.items()}
        check_weights(self.model, planned, error)

    def _start(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        run = super()._start(path, forward)
        if not path or _private.current_autograd_node() is not None:
            return run  # what is computed again for a backward stays where it was

        def called(*args: Any, **kwargs: Any) -> Any:
            home = next((t.device for t in tensors_in((args, kwargs))), None)
            out = None
            try:
                out = self._all_sent_home(run(*args, **kwargs), home)
                return out
            finally:
                self._call_is_over(args, kwargs, out)

        return called

    def opens(self, path: str) -> bool:
        """Whether it ran so in the recorded step; who puts in weights later keeps to the plan."""
        return any(f"{caller}.".startswith(f"{path}.") for caller in self._opened)

    def part(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Order a part of the model that runs alone behind its caller, and its caller behind it."""
        if not self._own_streams:
            return forward

        def joined(*args: Any, **kwargs: Any) -> Any:
            self._join(from_caller=True)
            try:
                out = forward(*args, **kwargs)
            finally:
                self._join(from_caller=False)
            for tensor in held_tensors((args, kwargs, out)):
                self._read_by_caller(tensor)
            return out

        return joined

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the model; what it returns goes to where its first input is."""
        home = next((t.device for t in tensors_in((args, kwargs))), None)
        if home is None and self._moved:
            home = self._moved[0][1]
        self._home = home
        self._called()
        out = None
        try:
            out = forward(*args, **kwargs)
            self._join(from_caller=False)
            if self._own_streams:  # caches among the arguments hold tensors, too
                for tensor in held_tensors((args, kwargs, out)):
                    self._read_by_caller(tensor)
            out = self._all_sent_home(out, home)
            return out
        finally:
            self._join(from_caller=False)
            self._call_is_over(args, kwargs, out)

    def _keep_for_caller(self, weight: torch.Tensor) -> None:
        """Let the optimizer read on the caller's stream a gradient made on a stream of ours."""
        callers = self._callers.get(weight.device)
        for tensor in dense_in(weight.grad) if callers is not None else ():
            tensor.record_stream(callers)

    def _called(self) -> None:
        """Begin behind what the caller's streams were asked to do, and remember these."""
        for device in self._own_streams:
            callers = torch.accelerator.current_stream(device.torch_device)
            self._callers[device.torch_device] = callers
        if self._unhooked:
            self._hook_trained()
        self._join(from_caller=True)

    def _hook_trained(self) -> None:
        for tensor in self._unhooked:
            if tensor.requires_grad:
                hook = tensor.register_post_accumulate_grad_hook(self._keep_for_caller)
                self._hooks.append(hook)
        self._unhooked = [t for t in self._unhooked if not t.requires_grad]

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a unit on its device."""
        if scope.target is None:
            scope.target = self._target_of_unit(scope, module)
        device, changes, attributes = scope.target
        known = scope.key in self._recorded or scope.path in self._units
        if not known and scope.path not in self._parts:
            self._new(scope.key)
        if device is None:
            device = next(filter(None, map(self.owner, tensors_in((args, kwargs)))), None)
        given = (args, kwargs)
        on_host = bool(self._host) and self._stays_on_host(list(tensors_in(given)), module)
        if on_host:
            device = self._exclusive.get(_CPU)
        if device is not None:
            if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
                args = (self.moved(args[0], device),)
            else:
                args = map_tensors(lambda t: self.moved(t, device), args)
                kwargs = map_tensors(lambda t: self.moved(t, device), kwargs)
                args, kwargs = self._told_device(args, kwargs, device)
        if changes and (self._sent or self._made_at or self.links.reads):
            for tensor in tensors_in((args, kwargs)):
                self._about_to_change(tensor, device)
        if attributes and device is not None:
            forward = self._attributes_at(module, attributes, device)(forward)
        if device is None or device.own_stream is None:
            out = forward(*args, **kwargs)
        else:
            with device.computing():
                out = forward(*args, **kwargs)
        if changes:
            self._changed_back(given, (args, kwargs))
        if on_host or (device is not None and device.has_streams):
            self._keep_on_host(out)
        self._made(scope.key or type(module).__name__, out, device)
        return out

    def _new(self, key: str) -> None:
        """Say once that the model took a turn that the recorded step did not."""
        if not self.unplanned:
            warnings.warn(
                f"{type(self.model).__name__} ran {key!r}, which was not in the recorded step: it "
                "follows its inputs. To plan it, give example inputs that lead there",
                stacklevel=2,
            )
        self.unplanned.add(key)

    def _target_of_unit(
        self, scope: Scope, module: nn.Module
    ) -> tuple[LogicalDevice | None, bool, list[str]]:
        key = scope.key or type(module).__name__
        known = self._units.get(scope.path)
        device = self._device_of.get(key) or known
        if device is None:  # called more often than in the recorded step, or only views
            weight = next(module.parameters(), None)
            device = None if weight is None else self.owner(weight)
        keeps = key in self._keeps_inputs or scope.path in self._keeping_units
        return device, not keeps, list(held_by(module))

    def _made(self, key: str, out: Any, device: LogicalDevice | None) -> None:
        self._mark(out, device)
        if key in self._viewed and device is not None and device.has_streams:
            event = device.stream.record_event()
            for tensor in tensors_in(out):
                self._made_at[_private.storage_address(tensor)] = Made(tensor, event)
        if self._pushed:
            self._push(key, out, device)
        if self.watch is not None:
            with contextlib.nullcontext() if device is None else device.computing():
                self.watch(key, out)

    def _copied_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self._await([tensor])  # the copy is the caller's, on its own stream
        return tensor.cpu()

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a torch function on one device."""
        known = scope.planned.get(index)
        if known is None or known[0] != name:
            key = scope.function_key(index, name)
            known = scope.planned[index] = (name, key, self._device_of.get(key))
            if key not in self._recorded:
                self._new(key)
        args = with_host_arguments(name, args, self._copied_to_host)
        tensors = list(tensors_in((args, tuple(kwargs.values()))))
        changes = changes_argument(name, kwargs)
        first = args[:1] or tensors[:1]  # of several tensors, where a function changes a list
        asked = asked_device(name, args, kwargs)
        on_host = on_host_by_intent(asked, self._home)
        if self._host and self._stays_on_host(tensors):
            device, on_host = self._exclusive.get(_CPU), True
        elif name == DIFFERENTIATES:
            device = None
        else:
            device = self._device_of_function(tensors, known[2], changes or name in STAY, kwargs)
            args, kwargs = self._taken(name, args, kwargs, device)
        out = kwargs.get("out")
        if (self._sent or self._made_at or self.links.reads) and (
            changes or out is not None or known[1] in self._changing
        ):
            for tensor in tensors_in(first if changes else tensors if out is None else out):
                self._about_to_change(tensor, device)
        if device is None:
            self._await(tensors)
        if device is None or device.own_stream is None:
            out = call(*args, **kwargs)
        else:
            if name in STAY and is_host(asked):
                args = (self._sent_home(args[0], _CPU), *args[1:])
            with device.computing():
                out = call(*args, **kwargs)
        if changes and args:
            self._changed_back(first, args[:1])
        elif name in UNCOUNTED_CHANGES or known[1] in self._changing:
            taken = list(tensors_in((args, tuple(kwargs.values()))))
            self._changed_back(tensors[1:], taken[1:], counted=name not in UNCOUNTED_CHANGES)
        if on_host or (device is not None and device.has_streams and name not in STAY):
            self._keep_on_host(out)
        self._made(known[1], out, device)
        return out
