# SPDX-License-Identifier: Apache-2.0
"""Lets a step run on a device that has no room for all of it (beyond the paper).

What no kernel reads may be on the host meanwhile: the memory of its storage is given back, while
the tensors, their views and what autograd keeps stay as they are. When a kernel finds no memory,
all goes that it does not read; what it reads comes back before it runs. So the kernels are those of
the device, and what they make, and for how long, is what it would be on a device with room.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from baechi._core import InputError
from baechi.torch.base import _private, _private_export
from baechi.torch.base.function_rules import changed_arguments
from baechi.torch.base.moving import check_moves
from baechi.torch.base.nested import dense_in

_Result = TypeVar("_Result")


@dataclass
class _Page:
    """A storage of the device that may go to the host."""

    storage: Callable[[], Any]  # a weak reference
    bytes: int
    host: torch.Tensor | None = None  # what is in it, unless it was changed since
    away: bool = False


class Spilling(TorchDispatchMode):
    """While it is on, what a device has no room for is on the host."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._pages: dict[int, _Page] = {}  # by storage address
        self._away: set[int] = set()
        self._unit: set[int] = set()  # what belongs to the unit that runs stays
        self._in_unit = False
        self._trained: list[torch.Tensor] = []
        self.inside = 0  # bytes that the last kernel had beside what it left, and gave back

    def bytes_of(self, storage: Any) -> int:
        """Return the size of a storage, wherever what is in it is now."""
        page = self._pages.get(int(storage._cdata))
        return int(storage.nbytes()) if page is None else page.bytes

    # Weights

    def take(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Have weights on the device, as far as kernels read them."""
        sharing: dict[int, list[str]] = {}
        for name, weight in weights.items():
            sharing.setdefault(_private.storage_address(weight), []).append(name)
        for names in sharing.values():
            try:
                self._take([weights[name] for name in names])
            except torch.OutOfMemoryError as error:
                raise InputError(f"its weight {names[0]!r} alone has no room: {error}") from error
        self._trained = [weight for weight in weights.values() if weight.requires_grad]

    def _take(self, sharing: list[torch.Tensor]) -> None:
        storage = sharing[0].untyped_storage()
        if storage.device == self._device:
            self._add(storage)
            return
        check_moves(sharing, self._device)
        there = torch.UntypedStorage(storage.nbytes(), device=self._device)
        for tensor in sharing:
            _point(tensor, there)
        page = self._add(there)
        if page is not None:
            page.host = _bytes_in(storage)
            self._send_away(int(there._cdata), page)

    def bring_back(self) -> None:
        """Have everything on the device again that is still in use."""
        self._unit.clear()
        for address in [*self._away]:
            page = self._pages[address]
            self._fetch(address, page, {address})

    # Kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = self._addresses(dense_in((args, tuple(kwargs.values()))))
        self._bring(read)
        out = self._with_room(functools.partial(self._watched, func, args, kwargs), read)
        for tensor in changed_arguments(func, args, kwargs):
            page = self._pages.get(_private.storage_address(tensor))
            if page is not None:
                page.host = None
        for tensor in dense_in(out):
            if tensor.device == self._device and _private.storage_address(tensor) not in read:
                self._add(tensor.untyped_storage())
        return out

    def _watched(self, func: Any, args: Any, kwargs: Any) -> Any:
        with _private.MemoryInside(self._device) as memory:
            out = func(*args, **kwargs)
        self.inside = memory.bytes
        return out

    def bring(self, *values: Any) -> None:
        """Have the tensors in some values on the device until others need the room."""
        self._bring(self._addresses(dense_in(values)))

    @contextlib.contextmanager
    def unit(self, *values: Any) -> Iterator[None]:
        """Have what a unit of the forward reads, and what it makes, on the device while it runs.

        It may have kernels that nobody sees.
        """
        self._begin(values)
        self._in_unit = True
        try:
            yield
        finally:
            self._in_unit = False
            self._unit.clear()

    def node(self, gradients: Any) -> None:
        """Have what a node of the backward is given on the device until the next one runs."""
        self._begin(gradients)

    def unpacked(self, tensor: torch.Tensor) -> torch.Tensor:
        """Have what the running node saved on the device until the next one runs."""
        if self._away:
            self.bring(tensor)
        self._unit.add(_private.storage_address(tensor))
        return tensor

    def _begin(self, values: Any) -> None:
        self._unit = self._addresses(dense_in(values))
        self._bring(self._unit)

    @staticmethod
    def _addresses(tensors: Iterable[torch.Tensor]) -> set[int]:
        return {_private.storage_address(tensor) for tensor in tensors if not tensor.is_meta}

    def _add(self, storage: Any) -> _Page | None:
        """Take in a storage of the device; None if its memory cannot be given back."""
        address = int(storage._cdata)
        if address in self._pages or not storage.resizable():
            return self._pages.get(address)

        def gone(_: Any) -> None:
            if self._pages.get(address) is page:
                del self._pages[address]
                self._away.discard(address)
                self._unit.discard(address)

        page = self._pages[address] = _Page(weakref.ref(storage, gone), storage.nbytes())
        if self._in_unit:
            self._unit.add(address)
        return page

    # Room

    def _with_room(self, call: Callable[[], _Result], read: set[int]) -> _Result:
        """Run a call, and if it finds no memory, once more when all went that it does not read."""
        try:
            return call()
        except RuntimeError as error:
            stays = read | self._unit
            goes = [(a, p) for a, p in self._pages.items() if not p.away and a not in stays]
            if not goes or not _private.out_of_memory(error):
                raise
        gradients = self._addresses(w.grad for w in self._trained if w.grad is not None)
        for address, page in goes:
            storage = page.storage()
            if storage is None:
                continue
            if page.host is None and address not in gradients:  # nobody reads these values
                page.host = _on_host(storage)
            self._send_away(address, page)
        torch.get_device_module(self._device).empty_cache()
        return call()

    def _send_away(self, address: int, page: _Page) -> None:
        page.storage().resize_(0)
        page.away = True
        self._away.add(address)

    def _bring(self, addresses: set[int]) -> None:
        for address in addresses & self._away if self._away else ():
            self._fetch(address, self._pages[address], addresses)

    def _fetch(self, address: int, page: _Page, read: set[int]) -> None:
        storage = page.storage()
        with _private_export.no_tracing():
            self._with_room(functools.partial(storage.resize_, page.bytes), read)
            there = _bytes_in(storage)
            if page.host is None:
                there.zero_()
            else:
                there.copy_(page.host)
        page.away = False
        self._away.discard(address)


def _bytes_in(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _on_host(storage: Any) -> torch.Tensor:
    with _private_export.no_tracing():
        return _bytes_in(storage).cpu()


def _point(tensor: torch.Tensor, storage: Any) -> None:
    """Let a tensor be the same part of another storage."""
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    with torch.inference_mode(tensor.is_inference()):
        other = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        tensor.data = other.set_(storage, *place)


@contextlib.contextmanager
def spilled(device: torch.device, model: nn.Module) -> Iterator[Spilling]:
    """Have a model on a device for the length of a ``with`` block, what has no room on the host.

    Afterwards weights and gradients are where, and what, they were.
    """
    weights: dict[str, torch.Tensor] = dict(model.named_parameters())
    weights.update(model.named_buffers())
    before = [(weight, weight.data, weight.grad) for weight in weights.values()]
    spilling = Spilling(device)
    try:
        for weight in weights.values():
            weight.grad = None  # a gradient is where its weight is
        spilling.take(weights)
        with spilling:
            yield spilling
    finally:
        for weight, data, grad in before:
            if weight.data.device != data.device:
                with torch.inference_mode(weight.is_inference()):
                    weight.data = data
            weight.grad = grad
        gc.collect()
        spilling.bring_back()
