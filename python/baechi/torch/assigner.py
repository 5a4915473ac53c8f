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
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch import _private
from baechi.torch.communication import MODES, Arrival, Departure, Links, LogicalDevice
from baechi.torch.devices import usable
from baechi.torch.interception import Interceptor, Scope
from baechi.torch.kept_weights import KeptWeights, check_weights
from baechi.torch.moving import flatten_recurrent, move_weights
from baechi.torch.nested import held_tensors, map_tensors, tensors_in
from baechi.torch.optimizer_state import follow
from baechi.torch.planned_pieces import (
    called_units,
    homes_of_weights,
    keeping_units,
    named_weights,
    pushed_outputs,
    units_of,
    writers_of_views,
)
from baechi.torch.recorded_step import Capture

_TAG = "_baechi_device"

# Functions whose result the caller wants elsewhere, or as a Python value: they run where their
# argument is.
_STAY = frozenset(
    [
        "to",
        "cpu",
        "cuda",
        "numpy",
        "tolist",
        "item",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "detach_",
        "set_",
        "_to_copy",
    ]
)
# Functions with arguments that belong to the host whatever the device.
_HOST_ARGUMENTS = frozenset(
    [
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "pack_padded_sequence",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    ]
)
_IN_PLACE = frozenset(
    [
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__idiv__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
    ]
)


def changes_argument(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a torch function changes its first argument."""
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in _IN_PLACE
        or bool(kwargs.get("inplace"))
    )


def logical_devices(
    names: Sequence[str], devices: Sequence[str | torch.device]
) -> list[LogicalDevice]:
    """Return a logical device per name, on the given physical ones."""
    if len(names) != len(devices):
        raise InputError(f"{len(devices)} devices are given for a cluster of {len(names)}")
    places = [usable(device) for device in devices]
    return [
        LogicalDevice(i, name, place, places.count(place) > 1)
        for i, (name, place) in enumerate(zip(names, places, strict=True))
    ]


class _Copy:
    """A tensor that was sent, as long as it lives."""

    __slots__ = ("arrival", "grads", "source", "version")

    def __init__(self, source: Any, version: int, grads: bool, arrival: Arrival) -> None:
        self.source = source
        self.version = version
        self.grads = grads
        self.arrival = arrival


class _Made:
    """When a storage was written last: a view of it that is made later is there just as early."""

    __slots__ = ("event", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, event: Any) -> None:
        self.tensor = weakref.ref(tensor)  # without it another storage may have the address
        self.version = _private.version_of(tensor)
        self.event = event


class Assigner(Interceptor):
    """A model whose operators run where a placement says, until `remove`."""

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
        self.devices = devices
        self.mode = mode
        self.placement = dict(device_of)
        self.captured = captured
        self._device_of = {key: devices[index] for key, index in device_of.items()}
        self._units = units_of(captured, self._device_of) if collapse else called_units(captured)
        super().__init__(model, lambda path, _: path in self._units)
        self.links = Links(devices, mode)
        self._exclusive = {d.torch_device: d for d in devices if not d.shared}
        self._mine = set(devices)
        self._keeps_inputs = {op.key for op in captured.ops if not op.changed}
        self._keeping_units = keeping_units(captured)
        self._recorded = {op.key for op in captured.ops}
        self.unplanned: set[str] = set()  # what ran but was not in the recorded step
        self._any_shared = any(d.shared for d in devices)
        self._own_streams = [d for d in devices if d.own_stream is not None]
        self._copies: dict[tuple[int, int], _Copy] = {}
        self._pending: dict[int, list[Any]] = {}
        self._pushed = pushed_outputs(captured, self._device_of) if mode == "streams" else {}
        self._viewed = writers_of_views(captured, self._pushed)
        self._made_at: dict[int, _Made] = {}  # by storage; of operators in `_viewed`
        self.weight_devices: dict[str, str] = {}  # the cluster's device of every weight
        self._moved: list[tuple[torch.Tensor, torch.device]] = []
        self._kept: KeptWeights | None = None
        self._unhooked: list[torch.Tensor] = []  # that do not, or did not, get gradients
        self._hooks: list[Any] = []
        self._callers: dict[torch.device, Any] = {}  # the caller's streams, in the last forward
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
            if hasattr(tensor, _TAG):
                delattr(tensor, _TAG)
        self._moved = []

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

    # Who has a tensor

    def owner(self, tensor: torch.Tensor) -> LogicalDevice | None:
        """Return the device that has a tensor; None for what came from outside."""
        if self._any_shared:
            device = getattr(tensor, _TAG, None)
            if device in self._mine:
                return device
        return self._exclusive.get(tensor.device)

    def _mark(self, value: Any, device: LogicalDevice | None) -> None:
        if device is not None and device.shared:
            for tensor in tensors_in(value):
                if tensor.device == device.torch_device:  # a function may send it elsewhere
                    setattr(tensor, _TAG, device)

    # Moving

    def moved(self, tensor: torch.Tensor, target: LogicalDevice) -> torch.Tensor:
        """Return `tensor` as `target` may read it; a tensor travels once per device and version."""
        source = self.owner(tensor)
        if source is target or tensor.is_meta:
            return tensor
        if source is None and tensor.device == target.torch_device:
            if target.own_stream is not None:  # made on the caller's stream
                callers = torch.accelerator.current_stream(tensor.device)
                target.own_stream.wait_event(callers.record_event())
                tensor.record_stream(target.own_stream)
            return tensor
        copy = self._copy(tensor, source, target)
        return copy.arrival.wait()

    def _copy(
        self, tensor: torch.Tensor, source: LogicalDevice | None, target: LogicalDevice
    ) -> _Copy:
        key = (id(tensor), target.index)
        grads = tensor.requires_grad and torch.is_grad_enabled()
        version = _private.version_of(tensor)
        copy = self._copies.get(key)
        if (
            copy is not None
            and copy.source() is tensor
            and copy.version == version
            and (copy.grads or not grads)
        ):
            return copy
        if source is None:
            arrival = self._from_outside(tensor, target)
        else:
            arrival = self.links.send(tensor, source, target, self._ready(tensor))
        if target.shared:
            setattr(arrival.tensor, _TAG, target)
        if arrival.sent is not None:
            self._pending.setdefault(_private.storage_address(tensor), []).append(arrival.sent)
        copies = self._copies

        def forget(_: Any, key: tuple[int, int] = key) -> None:
            copies.pop(key, None)

        copy = _Copy(weakref.ref(tensor, forget), version, grads, arrival)
        copies[key] = copy
        return copy

    def _ready(self, tensor: torch.Tensor) -> Any:
        """Return the event of the last change of a storage; None where that is not known."""
        made = self._made_at.get(_private.storage_address(tensor)) if self._made_at else None
        if made is None or tensor.is_inference():  # these do not count their versions
            return None
        known = made.tensor() is not None and made.version == _private.version_of(tensor)
        return made.event if known else None

    def _from_outside(self, tensor: torch.Tensor, target: LogicalDevice) -> Arrival:
        self.links.transfers += 1
        self.links.bytes += tensor.numel() * tensor.element_size()
        stream = target.own_stream
        if stream is None:
            return Arrival(tensor.to(target.torch_device), None, None, None)
        with target.computing():
            return Arrival(tensor.to(target.torch_device), None, None, None)

    def _about_to_change(self, tensor: torch.Tensor, device: LogicalDevice | None) -> None:
        """Let pending copies of the storage finish, and forget what will be outdated."""
        self._made_at.pop(_private.storage_address(tensor), None)
        events = self._pending.pop(_private.storage_address(tensor), None)
        if events is not None and device is not None and device.stream is not None:
            for event in events:
                device.stream.wait_event(event)
        if tensor.is_inference():  # these do not count their versions
            address = _private.storage_address(tensor)
            for key, copy in list(self._copies.items()):
                source = copy.source()
                if source is not None and _private.storage_address(source) == address:
                    del self._copies[key]

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
        _private.one_backward_thread.here()  # also where another thread calls the model
        try:
            return super()._outside(path, forward, args, kwargs)
        except RuntimeError as error:
            self._explain(error)
            raise

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
            return self._all_sent_home(run(*args, **kwargs), home)

        return called

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

    def _all_sent_home(self, out: Any, home: torch.device | None) -> Any:
        self._state.paused = True
        try:
            return map_tensors(lambda t: self._sent_home(t, home), out)
        finally:
            self._state.paused = False

    def _read_by_caller(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor made on a stream of ours until the caller's is past it."""
        source = self.owner(tensor)
        if source is not None and source.own_stream is not None:
            tensor.record_stream(torch.accelerator.current_stream(tensor.device))

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the model; what it returns goes to where its first input is."""
        home = next((t.device for t in tensors_in((args, kwargs))), None)
        if home is None and self._moved:
            home = self._moved[0][1]
        self._pending.clear()
        self._called()
        try:
            out = forward(*args, **kwargs)
            self._join(from_caller=False)
            if self._own_streams:  # caches among the arguments hold tensors, too
                for tensor in held_tensors((args, kwargs, out)):
                    self._read_by_caller(tensor)
            return self._all_sent_home(out, home)
        finally:
            self._join(from_caller=False)
            self._copies.clear()
            self.links.forget()
            self._made_at.clear()

    def _keep_for_caller(self, weight: torch.Tensor) -> None:
        """Let the optimizer read on the caller's stream a gradient made on a stream of ours."""
        callers = self._callers.get(weight.device)
        if weight.grad is not None and callers is not None:
            weight.grad.record_stream(callers)

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

    def _join(self, *, from_caller: bool) -> None:
        for device in self._own_streams:
            callers = torch.accelerator.current_stream(device.torch_device)
            own = device.own_stream
            if from_caller:
                own.wait_event(callers.record_event())
            else:
                callers.wait_event(own.record_event())

    def _sent_home(self, tensor: torch.Tensor, home: torch.device | None) -> torch.Tensor:
        source = self.owner(tensor)
        if home is None or source is None or tensor.device == home:
            self._read_by_caller(tensor)
            return tensor
        target = self._exclusive.get(home)
        if target is not None:
            return self.moved(tensor, target)
        return (
            tensor.to(home) if source.own_stream is None else Departure.apply(tensor, source, home)
        )

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a unit on its device."""
        if scope.target is None:
            scope.target = self._target_of_unit(scope, module)
        device, changes = scope.target
        if scope.key not in self._recorded and scope.path not in self._units:
            self._new(scope.key)
        if device is None:
            device = next(filter(None, map(self.owner, tensors_in((args, kwargs)))), None)
        if device is not None:
            if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
                args = (self.moved(args[0], device),)
            else:
                args = map_tensors(lambda t: self.moved(t, device), args)
                kwargs = map_tensors(lambda t: self.moved(t, device), kwargs)
        if changes and (self._pending or self._made_at):
            for tensor in tensors_in((args, kwargs)):
                self._about_to_change(tensor, device)
        if device is None or device.own_stream is None:
            out = forward(*args, **kwargs)
        else:
            with device.computing():
                out = forward(*args, **kwargs)
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

    def _target_of_unit(self, scope: Scope, module: nn.Module) -> tuple[LogicalDevice | None, bool]:
        key = scope.key or type(module).__name__
        known = self._units.get(scope.path)
        device = self._device_of.get(key) or known
        if device is None:  # called more often than in the recorded step, or only views
            weight = next(module.parameters(), None)
            device = None if weight is None else self.owner(weight)
        keeps = key in self._keeps_inputs or scope.path in self._keeping_units
        return device, not keeps

    def _made(self, key: str, out: Any, device: LogicalDevice | None) -> None:
        self._mark(out, device)
        if key in self._viewed and device is not None and device.has_streams:
            event = device.stream.record_event()
            for tensor in tensors_in(out):
                self._made_at[_private.storage_address(tensor)] = _Made(tensor, event)
        if self._pushed:
            self._push(key, out, device)
        if self.watch is not None:
            with contextlib.nullcontext() if device is None else device.computing():
                self.watch(key, out)

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
        tensors = list(tensors_in((args, tuple(kwargs.values()))))
        changes = changes_argument(name, kwargs)
        device = self._device_of_function(tensors, known[2], changes or name in _STAY, kwargs)
        if device is not None and name not in _STAY:
            keep_host = name in _HOST_ARGUMENTS

            def move(tensor: torch.Tensor) -> torch.Tensor:
                if keep_host and tensor.dtype == torch.int64 and tensor.device.type == "cpu":
                    return tensor
                return self.moved(tensor, device)

            args, kwargs = map_tensors(move, args), map_tensors(move, kwargs)
        watched = self._pending or self._made_at
        if changes and tensors and (watched or tensors[0].is_inference()):
            self._about_to_change(tensors[0], device)
        if device is None:
            self._await(tensors)
        if device is None or device.own_stream is None:
            out = call(*args, **kwargs)
        else:
            with device.computing():
                out = call(*args, **kwargs)
        self._made(known[1], out, device)
        return out

    def _await(self, tensors: list[torch.Tensor]) -> None:
        """Order the caller's streams behind what made the tensors of ours that they read."""
        if not self._own_streams:
            return
        owners = {self.owner(tensor) for tensor in tensors}
        for device in (d for d in self._own_streams if d in owners):
            callers = torch.accelerator.current_stream(device.torch_device)
            callers.wait_event(device.own_stream.record_event())

    def _device_of_function(
        self,
        tensors: list[torch.Tensor],
        planned: LogicalDevice | None,
        stays: bool,
        kwargs: Any,
    ) -> LogicalDevice | None:
        out = kwargs.get("out")
        if isinstance(out, torch.Tensor):
            return self.owner(out)
        if not tensors:
            return None
        if stays:
            first, own = tensors[0], self.owner(tensors[0])
            if own is not None or not self._any_shared:
                return own
            others = filter(None, map(self.owner, tensors))  # a buffer that it fills for itself
            return next((d for d in others if d.torch_device == first.device), None)
        for tensor in tensors:
            if isinstance(tensor, nn.Parameter):
                owner = self.owner(tensor)
                if owner is not None:  # else it was made after the model was placed
                    return owner
        if planned is not None:
            return planned
        return next(filter(None, map(self.owner, tensors)), None)
