# SPDX-License-Identifier: Apache-2.0
"""How tensors travel between the devices of a placed model (Paper 3.2, Algorithm 1).

Every device computes on one stream; for every ordered pair of devices there is one stream that
sends and one that receives. A tensor is sent behind what made it, and its reader waits for the
event of that tensor, not for all that was sent before. The transfer is a node of autograd, so
gradients come back over streams of their own.

Several logical devices may share a physical one; each then has a compute stream of its own. Devices
without streams, as the CPU is, copy at once.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch

from baechi.torch import native
from baechi.torch.base import _private, _private_autograd
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.repeats import without_repeats
from baechi.torch.run.reads import Reads
from baechi.torch.run.sent_gradients import SentGradients

MODES = ("plain", "streams")


@functools.cache
def native_transfer() -> Any:
    """Return what is compiled of the below, or None where there is no compiler; says so once."""
    folder = Path(__file__).parent / "csrc"
    sources = [folder / "transfer.cc", folder / "sent_gradients.cc"]
    try:
        torch.ops.load_library(str(native.build("transfer", sources)))
    except (native.BuildError, OSError) as error:
        warnings.warn(
            f"baechi.torch: transfers run in Python, which is slower: {error}", stacklevel=2
        )
        return None
    return torch.ops.baechi


def _numbers(stream: Any) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _hop(tensor: torch.Tensor, producer: Any, send: Any, receive: Any, consumer: Any) -> Any:
    send.wait_event(producer.record_event())
    stored = _private.as_stored(tensor)
    if send.device == receive.device:
        with _private.on_stream(send):
            copy = stored.clone()
        receive.wait_event(send.record_event())
        copy.record_stream(receive)
    else:
        with _private.on_stream(send), _private.on_stream(receive):
            copy = stored.to(receive.device, non_blocking=True)
    stored.record_stream(send)
    copy.record_stream(consumer)
    _private.be_as_lazy(copy, tensor)
    return copy


class _Transfer(torch.autograd.Function):
    """The node of csrc/transfer.cc in Python."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, route: Any) -> Any:
        ctx.route = route
        ctx.set_materialize_grads(False)
        behind, _, send, receive, consumer, _, _ = route
        return _hop(tensor, behind, send, receive, consumer)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if gradients[0] is None:  # none, and not zeros: optimizers tell them apart
            return None, None
        _, producer, send, receive, consumer, gradient_send, gradient_receive = ctx.route
        back = (receive, consumer, gradient_send, gradient_receive, producer, send, receive)
        gradient = _transfer(gradients[0], back)
        SentGradients.sent(gradients[0], gradient_send, consumer)
        receive.wait_event(gradient_receive.record_event())
        return gradient, None


def _transfer(tensor: torch.Tensor, route: Any) -> Any:
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        behind, _, send, receive, consumer, _, _ = route
        return _hop(tensor, behind, send, receive, consumer)
    with _private.on_stream(route[3]):
        copy = _Transfer.apply(tensor, route)
        _private_autograd.run_first(copy.grad_fn)
    with _private.on_stream(route[4]):
        copy = _Arrived.apply(copy)
        _private_autograd.run_first(copy.grad_fn)
    return copy


class _Arrived(torch.autograd.Function):
    """Where the gradients of a copy's readers meet: on the stream that they compute on.

    Autograd adds up on the stream of the node that wants the sum, and it asks only the host who
    holds a summand before it adds to that in place elsewhere: read on the stream that receives, one
    could be changed before.
    """

    @staticmethod
    def forward(ctx: Any, copy: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return copy.data

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        return gradients[0]


class _Collection(torch.autograd.Function):
    """Where the gradients of what is sent to several devices meet on their way back.

    Autograd adds up what arrives for a tensor as soon as it meets it, on the stream of the node: on
    a compute stream, work that does not need them would wait for them.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tensor.data  # no view: it would keep `tensor` alive

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        return gradients[0]


class _Clone(torch.autograd.Function):
    """A copy within one memory that is a transfer to the logical devices on it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        return None if gradients[0] is None else gradients[0].clone()


class Departure(torch.autograd.Function):
    """A tensor leaves a device with a stream of its own for the outside.

    Autograd would copy the gradient back on the default stream, which nobody waits for.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, source: LogicalDevice, home: torch.device) -> Any:
        """Copy the tensor."""
        ctx.source = source
        ctx.set_materialize_grads(False)
        with source.computing():
            return tensor.to(home)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Copy the gradient."""
        if gradients[0] is None:
            return None, None, None
        source = ctx.source
        with source.computing():
            gradient = gradients[0].to(source.torch_device)
        torch.accelerator.current_stream(source.torch_device).wait_event(
            source.own_stream.record_event()
        )
        return gradient, None, None


class Arrival:
    """A copy on its way: the tensor, and the events that order what touches either end."""

    __slots__ = ("_event", "_reader", "sent", "tensor")

    def __init__(self, tensor: torch.Tensor, event: Any, reader: Any, sent: Any) -> None:
        self.tensor = tensor
        self.sent = sent  # the source was read; None when that is so already
        self._event = event
        self._reader = reader

    def wait(self) -> torch.Tensor:
        """Order the reader behind the arrival of this tensor; once is enough."""
        if self._event is not None:
            self._reader.wait_event(self._event)
            self._event = None
        return self.tensor

    def settle(self, source: LogicalDevice) -> None:
        """Order what the source does next behind the reading of what was sent."""
        if self.sent is not None:
            source.stream.wait_event(self.sent)


class Links:
    """The streams between the devices of one placed model."""

    def __init__(self, devices: list[LogicalDevice], mode: str) -> None:
        self._mode = mode
        self._pairs: dict[tuple[int, int], tuple[Any, Any]] = {}
        streams = mode == "streams" and any(device.has_streams for device in devices)
        self._native = native_transfer() if streams else None
        if streams:
            _private_autograd.expect_gradients_of_other_streams()
        self._collecting: dict[int, Any] = {}  # streams, by device
        self._collected: dict[int, tuple[Any, int, torch.Tensor]] = {}  # by tensor
        self.reads = Reads()
        self.transfers = 0  # how many tensors were sent so far
        self.bytes = 0

    def _pair(self, source: LogicalDevice, target: LogicalDevice) -> tuple[Any, Any]:
        pair = self._pairs.get((source.index, target.index))
        if pair is None:
            pair = torch.Stream(source.torch_device), torch.Stream(target.torch_device)
            self._pairs[source.index, target.index] = pair
        return pair

    def _collection(self, tensor: torch.Tensor, source: LogicalDevice) -> torch.Tensor:
        """Return what is sent for a tensor: the same for all devices."""
        key, version = id(tensor), _private.version_of(tensor)
        known = self._collected.get(key)
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2]
        stream = self._collecting.get(source.index)
        if stream is None:
            stream = self._collecting[source.index] = torch.Stream(source.torch_device)
        collected = self._collected

        def forget(_: Any) -> None:
            collected.pop(key, None)

        leaf = None
        if tensor.is_leaf:
            # Where a weight's gradient is added up is decided by whoever reads it first. Made on
            # the collecting stream, its memory would be used again while an optimizer reads it.
            with source.computing():
                leaf = tensor.view_as(tensor)  # the node lives as long as this
        if self._native is not None:
            sent: torch.Tensor = self._native.collection(tensor, _numbers(stream))
        else:
            with _private.on_stream(stream):
                sent = _Collection.apply(tensor)
        del leaf
        collected[key] = weakref.ref(tensor, forget), version, sent
        return sent

    def forget(self) -> None:
        """Let go of what was sent in a forward that is over."""
        self._collected.clear()

    def send(
        self,
        tensor: torch.Tensor,
        source: LogicalDevice,
        target: LogicalDevice,
        ready: Any = None,
    ) -> Arrival:
        """Start to copy `tensor`, which `source` has or makes, to `target`.

        Args:
            tensor: What is sent.
            source: Where it is.
            target: Where it is wanted.
            ready: The event behind which it is made; None: all that `source` was asked to do.

        """
        sent = without_repeats(tensor)
        self.transfers += 1
        self.bytes += sent.numel() * sent.element_size()
        arrival = self._started(sent, source, target, ready)
        if arrival.sent is not None:
            self.reads.add(tensor, arrival.sent)
        if sent is not tensor:
            arrival.tensor = arrival.tensor.expand(tensor.shape)
        return arrival

    def _started(
        self, tensor: torch.Tensor, source: LogicalDevice, target: LogicalDevice, ready: Any
    ) -> Arrival:
        streams = source.has_streams and target.has_streams
        if self._mode != "streams" or not streams:
            copy = self._copied(tensor, source, target)
            if copy.grad_fn is not None:
                _private_autograd.run_first(copy.grad_fn)
            within = source.torch_device == target.torch_device
            sent = target.own_stream.record_event() if within and target.own_stream else None
            return Arrival(copy, None, None, sent)
        producer, consumer = source.stream, target.stream
        if tensor.requires_grad and torch.is_grad_enabled():
            tensor = self._collection(tensor, source)
        send, receive = self._pair(source, target)
        if ready is not None:
            send.wait_event(ready)
        behind = producer if ready is None else send
        back = self._pair(target, source)
        route = (behind, producer, send, receive, consumer, *back)
        if self._native is not None:
            copy = self._native.transfer(tensor, [n for s in route for n in _numbers(s)])
        else:
            copy = _transfer(tensor, route)
        return Arrival(copy, receive.record_event(), consumer, send.record_event())

    def _copied(
        self, tensor: torch.Tensor, source: LogicalDevice, target: LogicalDevice
    ) -> torch.Tensor:
        if source.torch_device != target.torch_device:
            with source.computing(), target.computing():
                return tensor.to(target.torch_device)
        if source.own_stream is None:
            return _Clone.apply(tensor)
        target.own_stream.wait_event(source.own_stream.record_event())
        _private.keep_for(tensor, target.own_stream)
        with target.computing():
            return _Clone.apply(tensor)
