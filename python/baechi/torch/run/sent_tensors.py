# SPDX-License-Identifier: Apache-2.0
"""Which device has a tensor, and how it comes to where it is read (Paper 4.3).

A tensor travels once per device and version; what changes a storage waits for the copies of it that
are on their way. What comes from the caller, and goes back, is ordered behind the caller's streams.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice, Mark
from baechi.torch.base.function_rules import HOST_ARGUMENTS, STAY
from baechi.torch.base.nested import held_tensors, map_tensors, once, tensors_in
from baechi.torch.base.repeats import without_repeats
from baechi.torch.base.shared_memory import base_of, shared_wholes, view_like
from baechi.torch.run.communication import Arrival, Departure, Links
from baechi.torch.run.precision import InnerAutocast

TAG = "_baechi_device"  # the attribute of a tensor with the mark of its logical device


class _Copy:
    """A tensor that was sent, as long as it lives."""

    __slots__ = ("arrival", "grads", "source", "version")

    def __init__(self, source: Any, version: int, grads: bool, arrival: Arrival) -> None:
        self.source = source
        self.version = version
        self.grads = grads
        self.arrival = arrival


class _LastWrite:
    """When a storage was written last: a view of it that is made later is there just as early."""

    __slots__ = ("event", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, event: Any) -> None:
        self.tensor = weakref.ref(tensor)  # without it another storage may have the address
        self.version = _private.version_of(tensor)
        self.event = event


class SentTensors:
    """Knows which device has a tensor, and takes it to where it is read."""

    def __init__(self, devices: list[LogicalDevice], mode: str) -> None:
        self.devices = devices
        self.mode = mode
        self.links = Links(devices, mode)
        self._exclusive = {d.torch_device: d for d in devices if not d.shared}
        self._marked: dict[Any, LogicalDevice] = {d.mark: d for d in devices}
        self.host = self._exclusive.get(torch.device("cpu"))
        self._any_shared = any(d.shared for d in devices)
        self._any_streams = any(d.has_streams for d in devices)
        self.own_streams = [d for d in devices if d.own_stream is not None]
        self._copies: dict[tuple[int, int], _Copy] = {}
        self._sent: dict[int, list[tuple[int, int]]] = {}  # by storage: its copies
        self._sources: dict[int, tuple[Any, Any]] = {}  # by id: copies, and what they are of
        self._fetching: dict[int, Any] = {}  # the stream that brings what is on the host, by device
        self.weight_ids: set[int] = set()  # of parameters and buffers
        self._last_writes: dict[int, _LastWrite] = {}  # by storage, where its views are sent
        self._host: dict[int, Any] = {}  # by id: tensors that the model put on the CPU itself
        self._aside = False  # addresses of tensors are known outside
        self._callers: dict[torch.device, Any] = {}  # streams of who called last
        self._of_caller = Mark()  # of what was made on these
        self._given: dict[int, Any] = {}  # references to the tensors of a call, by id
        self.home: torch.device | None = None  # where the model was called
        self.autocast = InnerAutocast(d.torch_device for d in devices)

    # Who has a tensor

    def owner(self, tensor: torch.Tensor) -> LogicalDevice | None:
        """Return the device that has a tensor; None for what came from outside."""
        if self._any_shared:
            device = self._marked.get(getattr(tensor, TAG, None))
            if device is not None:
                return device
        return self._exclusive.get(tensor.device)

    def is_ours(self, what: torch.Tensor | torch.device) -> bool:
        """Whether a tensor, or an accelerator, is one of the placed model's."""
        if isinstance(what, torch.Tensor):
            return self.owner(what) is not None
        where = torch.device(what.type, what.index or 0) if what.type != "cpu" else None
        return any(device.torch_device == where for device in self.devices)

    def is_near(self, what: torch.Tensor | torch.device) -> bool:
        """Whether it is one of ours, or where the model is called: without a placement, all one."""
        if self.is_ours(what):
            return True
        if isinstance(what, torch.Tensor):
            return what.device == self.home and not self.stays_on_host(what)
        return what == self.home

    def mark(self, value: Any, device: LogicalDevice | None) -> None:
        """Take note that `device` has the tensors in `value`, where others share its memory.

        Args:
            value: What was made.
            device: Where; None: on the caller's streams.

        """
        if device is None and self.own_streams:
            for tensor in tensors_in(value):
                if self.owner(tensor) is None:
                    setattr(tensor, TAG, self._of_caller)
        if device is not None and device.shared:
            for tensor in tensors_in(value):
                if tensor.device == device.torch_device:  # a function may send it elsewhere
                    setattr(tensor, TAG, device.mark)

    def keep_on_host(self, value: Any) -> None:
        """Take note that the model wants tensors on the CPU, and not where the plan has them."""
        host = self._host
        if not self._any_streams:
            return
        for tensor in tensors_in(value):
            if not tensor.is_cpu:
                continue

            def forget(_: Any, key: int = id(tensor)) -> None:
                host.pop(key, None)

            host[id(tensor)] = weakref.ref(tensor, forget)

    def stays_on_host(self, read: Any, module: nn.Module | None = None) -> bool:
        """Whether a function, or a module without weights, computes on the CPU by intent."""
        if not self._host:
            return False
        tensors = list(tensors_in(read))
        if module is not None and any(True for _ in (*module.parameters(), *module.buffers())):
            return False
        if not all(tensor.is_cpu for tensor in tensors):
            return False
        known = [self._host.get(id(tensor)) for tensor in tensors]
        return any(k is not None and k() is t for k, t in zip(known, tensors, strict=True))

    # Moving

    def moved(self, tensor: torch.Tensor, target: LogicalDevice) -> torch.Tensor:
        """Return `tensor` as `target` may read it; a tensor travels once per device and version."""
        source = self.owner(tensor)
        if source is target or tensor.is_meta:
            return tensor
        if source is None and tensor.device == target.torch_device:
            if target.own_stream is not None:
                self._behind_maker(tensor, target.own_stream)
                _private.keep_for(tensor, target.own_stream)
            return tensor
        copy = self.copy(tensor, source, target)
        return copy.arrival.wait()

    def _behind_maker(self, tensor: torch.Tensor, stream: Any) -> None:
        """Order a stream behind what made a tensor that is marked as no device's.

        A part of the model may have left it where others find it, as `parametrize.cached` does.
        """
        stream.wait_event(self._callers_stream(tensor.device).record_event())
        given = self._given.get(id(tensor))
        if given is not None and given() is tensor:
            return
        if getattr(tensor, TAG, None) is not self._of_caller:
            for device in self.own_streams:
                if device.torch_device == tensor.device and device.own_stream is not stream:
                    stream.wait_event(device.own_stream.record_event())

    def brought(self, tensor: torch.Tensor, target: LogicalDevice) -> torch.Tensor:
        """Return what came from outside; a graph, which knows its readers, holds it."""
        copy = self.moved(tensor, target)
        self._copies.pop((id(tensor), target.index), None)
        return copy

    def fetched(self, tensor: torch.Tensor, target: LogicalDevice) -> torch.Tensor:
        """Return what came from outside, brought without waiting for what `target` does.

        The host waits for a copy of its memory, and would wait for all that was asked for before.
        """
        if tensor.device.type != "cpu" or not target.has_streams:
            return self.brought(tensor, target)
        stream = self._fetching.get(target.index)
        if stream is None:
            stream = self._fetching[target.index] = torch.Stream(target.torch_device)
        with _private.on_stream(stream):
            # From pinned memory the copy would go on when the caller may have written there again.
            copy = tensor.to(target.torch_device, non_blocking=not tensor.is_pinned())
        self.links.transfers += 1
        self.links.bytes += copy.numel() * copy.element_size()
        _private.keep_for(copy, target.stream)
        return Arrival(copy, stream.record_event(), target.stream, None).wait()

    def copy(
        self, tensor: torch.Tensor, source: LogicalDevice | None, target: LogicalDevice
    ) -> _Copy:
        """Send `tensor` unless its copy is there, or on its way, already."""
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
        elif self._aside:
            self.behind_aside(source)
            arrival = self.links.send(tensor, source, target)
        else:
            arrival = self.links.send(tensor, source, target, self._ready(tensor))
        if target.shared:
            setattr(arrival.tensor, TAG, target.mark)
        self._sent.setdefault(_private.storage_address(tensor), []).append(key)
        if source is not None and self.weight_ids.intersection((id(tensor), id(tensor._base))):
            arrival.settle(source)  # a unit may change its own without our notice
        copies = self._copies

        def forget(_: Any, key: tuple[int, int] = key) -> None:
            copies.pop(key, None)

        copy = _Copy(weakref.ref(tensor, forget), version, grads, arrival)
        copies[key] = copy
        self._sources[id(arrival.tensor)] = weakref.ref(arrival.tensor), copy.source
        return copy

    def _ready(self, tensor: torch.Tensor) -> Any:
        """Return the event of the last change of a storage; None where that is not known."""
        if not self._last_writes:
            return None
        made = self._last_writes.get(_private.storage_address(tensor))
        if made is None or tensor.is_inference():  # these do not count their versions
            return None
        known = made.tensor() is not None and made.version == _private.version_of(tensor)
        return made.event if known else None

    def _from_outside(self, tensor: torch.Tensor, target: LogicalDevice) -> Arrival:
        sent = without_repeats(tensor)
        self.links.transfers += 1
        self.links.bytes += sent.numel() * sent.element_size()
        with target.computing():
            copy = sent.to(target.torch_device)
        return Arrival(copy if sent is tensor else copy.expand(tensor.shape), None, None, None)

    def note_made(self, value: Any, device: LogicalDevice) -> None:
        """Take note that the tensors in `value`, whose views will be sent, are made by now."""
        event = device.stream.record_event()
        for tensor in tensors_in(value):
            self._last_writes[_private.storage_address(tensor)] = _LastWrite(tensor, event)

    @property
    def may_be_read(self) -> bool:
        """Whether a change of a tensor has to look for those who still read it."""
        return bool(self._sent or self._last_writes or self.links.reads)

    def about_to_change(self, tensor: torch.Tensor, device: LogicalDevice | None) -> None:
        """Let pending copies of the storage finish, and forget what will be outdated.

        Versions alone do not tell: inference tensors and `tensor.data` do not count them.
        """
        address = _private.storage_address(tensor)
        self._last_writes.pop(address, None)
        for key in self._sent.pop(address, ()):
            self._copies.pop(key, None)
        self.links.reads.before_change(tensor, None if device is None else device.stream)

    def changed_back(self, given: Any, taken: Any, *, counted: bool = True) -> None:
        """Change what was given as copies of it were changed in place, where they were taken.

        Args:
            given: To an operator.
            taken: What it got instead.
            counted: Its changes raise the copies' versions.

        """
        for tensor, copy in zip(tensors_in(given), tensors_in(taken), strict=True):
            if copy is tensor:
                continue
            uncounted = copy.is_inference() or not (counted or copy.requires_grad)
            if uncounted or _private.version_of(copy) > 0:
                self._change_back(tensor, copy)

    def _change_back(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        device = self.owner(tensor)
        self.about_to_change(tensor, device)
        if device is None:
            tensor.copy_(self.sent_home(copy, tensor.device))
        else:
            sent = self.moved(copy, device)
            with device.computing():
                tensor.copy_(sent)

    def uncopied(self, out: Any) -> Any:
        """Return what an operator made; of an argument that it returned, not the copy it got.

        A dropout in `eval()` does so, or `contiguous`: who changes that in place changes the
        argument. Of a view of a copy, it is the same view of the argument.
        """
        return map_tensors(self._uncopied, out) if self._sources else out

    def _uncopied(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = base_of(tensor)
        known = self._sources.get(id(whole))
        if known is None or known[0]() is not whole:
            return tensor
        source = known[1]()
        return tensor if source is None else view_like(tensor, whole, source)

    def call_begins(self, given: Any) -> None:
        """Take note of what comes from the caller."""
        if self.own_streams:
            self._given = {id(tensor): weakref.ref(tensor) for tensor in held_tensors(given)}

    def call_is_over(self, *held: Any) -> None:
        """Let go of what was sent: what is `held` may change from now on without our notice."""
        self.links.forget()
        self.links.reads.settle(held_tensors(held))
        self._copies.clear()
        self._sources.clear()
        self._sent.clear()
        self._last_writes.clear()
        self._given.clear()
        self._aside = False

    def taken(self, name: str, args: Any, kwargs: Any, device: LogicalDevice | None) -> Any:
        """Return the arguments of a function where it runs."""
        if name in STAY:
            return args, kwargs
        if device is None:  # what it changes is the caller's, or was made beside the plan
            changed = next(tensors_in(kwargs.get("out", args[:1])), None)
            where = None if changed is None else changed.device
            return map_tensors(lambda t: self.sent_home(t, where), (args, kwargs))
        keep_host = name in HOST_ARGUMENTS

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if keep_host and tensor.dtype == torch.int64 and tensor.device.type == "cpu":
                return tensor
            return self.moved(tensor, device)

        return map_tensors(move, args), map_tensors(move, kwargs)

    @contextlib.contextmanager
    def attributes_at(
        self, module: nn.Module, names: Iterable[str], device: LogicalDevice
    ) -> Iterator[None]:
        """Have tensors that a module holds, and that are no weights of it, where it runs."""
        held = vars(module)
        given = {n: held[n] for n in names if isinstance(held.get(n), torch.Tensor)}
        taken = {name: self.moved(tensor, device) for name, tensor in given.items()}
        held.update(taken)
        try:
            yield
        finally:
            kept = [name for name in given if held.get(name) is taken[name]]
            held.update({name: given[name] for name in kept})
        self.changed_back([given[n] for n in kept], [taken[n] for n in kept])

    def told_device(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], device: LogicalDevice
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments that name "the" device as they are where a unit runs."""
        if not any(isinstance(v, torch.device) for v in (*args, *kwargs.values())):
            return args, kwargs
        known = {self.home, *(d.torch_device for d in self.devices)}

        def told(value: Any) -> Any:
            meant = isinstance(value, torch.device) and value in known
            return device.torch_device if meant else value

        return tuple(map(told, args)), {name: told(value) for name, value in kwargs.items()}

    def device_of_function(
        self,
        tensors: list[torch.Tensor],
        planned: LogicalDevice | None,
        stays: bool,
        kwargs: Any,
    ) -> LogicalDevice | None:
        """Return where a function runs that reads `tensors`; None where the caller is."""
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

    # Between the caller's streams and ours

    def join(self, *, from_caller: bool) -> None:
        """Order our streams behind the caller's, or the caller's behind ours."""
        for device in self.own_streams:
            callers = torch.accelerator.current_stream(device.torch_device)
            own = device.own_stream
            if from_caller:
                self._callers[device.torch_device] = callers
                own.wait_event(callers.record_event())
            else:
                callers.wait_event(own.record_event())

    def _callers_stream(self, device: torch.device) -> Any:
        """Return the caller's stream, also while an operator runs, whose stream is the current."""
        return self._callers.get(device) or torch.accelerator.current_stream(device)

    def wait_for(self, tensors: list[torch.Tensor]) -> None:
        """Order the caller's streams behind what made the tensors of ours that they read."""
        if not self.own_streams:
            return
        owners = {self.owner(tensor) for tensor in tensors}
        for device in (d for d in self.own_streams if d in owners):
            callers = self._callers_stream(device.torch_device)
            callers.wait_event(device.own_stream.record_event())

    def read_aside(self, tensor: torch.Tensor) -> None:
        """Order the caller's streams behind a tensor that is read, or changed, by its address."""
        source = self.owner(tensor)
        self.about_to_change(tensor, None)
        if source is not None and source.own_stream is not None:
            self.wait_for([tensor])
            self.read_by_caller(tensor)
            self._aside = True

    def behind_aside(self, device: LogicalDevice) -> None:
        """Order a device behind what may have been started beside the operators."""
        if self._aside and device.own_stream is not None:
            device.own_stream.wait_event(self._callers_stream(device.torch_device).record_event())

    def all_sent_home(self, out: Any, home: torch.device | None) -> Any:
        """Return what a call made as its caller may read it, on `home`.

        What shares memory does so there, too: the caller may change it in place.
        """
        wholes = shared_wholes(tensors_in(out))
        send = once(lambda t: self.sent_home(t, home))

        def sent(tensor: torch.Tensor) -> torch.Tensor:
            whole = wholes.get(id(tensor))
            view = tensor if whole is None else view_like(tensor, whole, send(whole))
            return send(tensor) if view is tensor else view

        return map_tensors(once(sent), out)

    def read_by_caller(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor made on a stream of ours until the caller's is past it."""
        source = self.owner(tensor)
        if source is not None and source.own_stream is not None:
            _private.keep_for(tensor, torch.accelerator.current_stream(tensor.device))

    def sent_home(self, tensor: torch.Tensor, home: torch.device | None) -> torch.Tensor:
        """Return a tensor as the caller may read it."""
        source = self.owner(tensor)
        if home is None or source is None or tensor.device == home:
            self.read_by_caller(tensor)
            return tensor
        target = self._exclusive.get(home)
        if target is not None:
            return self.moved(tensor, target)
        return (
            tensor.to(home) if source.own_stream is None else Departure.apply(tensor, source, home)
        )
