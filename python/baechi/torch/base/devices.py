# SPDX-License-Identifier: Apache-2.0
"""Which devices PyTorch has here, what they have room for, and a cluster's devices on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster, InputError
from baechi.torch.base import _private

_WITHOUT_ACCELERATOR = ("cpu", "meta")
_META = torch.device("meta")
_ENDLESS = 1 << 50  # bytes of a device that has no limit, as simulated ones may have none


def accelerators() -> list[torch.device]:
    """Return the accelerators that can be used now; a build for CUDA may find none."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.accelerator.is_available():
        return []
    return [torch.device(kind.type, i) for i in range(torch.accelerator.device_count())]


def usable(device: str | torch.device) -> torch.device:
    """Return a device as tensors name theirs: an accelerator with its index, the CPU without.

    Raises:
        InputError: It is not there; with the reason.

    """
    try:
        found = torch.device(device)
    except RuntimeError:
        there = ", ".join(map(str, [*accelerators(), torch.device("cpu")]))
        raise InputError(
            f"{str(device)!r} is no device here: name one as PyTorch does; here are {there}"
        ) from None
    if found.type in _WITHOUT_ACCELERATOR:
        return torch.device(found.type)
    reason = _missing(found)
    if reason:
        raise InputError(f"{str(device)!r} is no device here: {reason}")
    if found.index is None:
        return torch.device(found.type, torch.accelerator.current_device_index())
    return found


def _missing(device: torch.device) -> str:
    kind = torch.accelerator.current_accelerator()
    if kind is None:
        return "this PyTorch is built for the CPU only"
    if kind.type == "sim" and device.type != "sim":
        return (
            "baechi.torch.sim takes the place of all other accelerators of a process; "
            f"use {device.type} in one that does not import it"
        )
    if kind.type != device.type:
        return f"the accelerator of this PyTorch is {kind.type}"
    there = accelerators()
    if not there:
        return f"PyTorch finds no {kind.type} device on this machine"
    if device.index is not None and device.index >= len(there):
        return f"there are {len(there)}, {there[0]} to {there[-1]}"
    return ""


def unlike_cluster(devices: Sequence[Any], count: int) -> str:
    """Return what is said of `devices=` that are not as many as the cluster has."""
    given = ", ".join(map(str, devices))
    return f"devices: {len(devices)} given ({given}) for a cluster of {count}: give one for each"


def chosen_devices(devices: Sequence[Any] | None, cluster: Cluster) -> list[torch.device]:
    """Return what `devices=` names, or the default ones, one for each of the cluster's."""
    if isinstance(devices, (str, torch.device)):
        raise InputError(f"devices: expected a list, such as ['{devices}'], found '{devices}'")
    chosen = [usable(device) for device in devices or default_devices(cluster)]
    if len(chosen) != len(cluster):
        raise InputError(unlike_cluster(chosen, len(cluster)))
    return chosen


def detected_cluster(
    model: nn.Module | None = None, given: Iterable[torch.Tensor] = ()
) -> tuple[Cluster, list[torch.device]]:
    """Return the accelerators of this machine, with the memory that `model` may take, as a cluster.

    That is what is free, and what its weights and `given`, its arguments, have already.

    Raises:
        InputError: There is none.

    """
    devices = accelerators()
    if not devices:
        raise InputError("no accelerator is found; name the cluster, e.g. cluster='2x8GiB'")
    weights = [] if model is None else [*model.parameters(), *model.buffers()]
    held = [*weights, *(w.grad for w in weights if w.grad is not None), *given]
    line = "+".join(f"1x{free_memory(device, held)}B" for device in devices)
    return Cluster(line), devices


def free_memory(device: torch.device, held: Sequence[torch.Tensor]) -> int:
    """Return the bytes that are free, kept for reuse by the allocator, or taken by `held`."""
    module = torch.get_device_module(device)
    module.empty_cache()
    free, _ = module.mem_get_info(device)
    free = min(free, _ENDLESS)
    mine = {
        _private.storage_address(t): t.untyped_storage().nbytes()
        for t in held
        if t.device == device
    }
    return int(free) + sum(mine.values())


def default_devices(cluster: Cluster) -> list[torch.device]:
    """Return the CPU for devices of kind "cpu", an accelerator of its own for every other one.

    Where there is no accelerator, the CPU for all.

    Raises:
        InputError: There are too few.

    """
    cpu = torch.device("cpu")
    on_cpu = [device.kind == "cpu" for device in cluster.devices]
    there = accelerators()
    wanted = on_cpu.count(False)
    if not there:
        return [cpu] * len(cluster)
    if len(there) < wanted:
        raise InputError(
            f"the cluster has {wanted} accelerators and this machine {len(there)} ({there[0]} to "
            f"{there[-1]}): name a smaller cluster, or with devices= where each is to be, several "
            "on one or on 'cpu'"
        )
    free = iter(there)
    return [cpu if here else next(free) for here in on_cpu]


_HERE = contextlib.nullcontext()


class Mark:
    """What a tensor carries that a logical device has; what is copied or saved of it is no mark.

    A copy is made beside the device's operators, and what is loaded has no device of this process.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        """Become what `torch.load(weights_only=True)` takes, and nobody takes for a mark."""
        return torch.Size, ((),)


class LogicalDevice:
    """A device of the cluster, and where its operators really run."""

    def __init__(
        self,
        index: int,
        name: str,
        torch_device: torch.device,
        shared: bool,
        is_elsewhere: bool = False,
    ) -> None:
        self.index = index
        self.name = name
        self.mark = Mark()
        self.torch_device = torch_device
        self.shared = shared  # another logical device is on the same physical one
        self.has_streams = torch_device.type not in ("cpu", "meta")
        self.is_elsewhere = is_elsewhere  # in another process: nothing of it is here
        self._own = torch.Stream(torch_device) if shared and self.has_streams else None
        self._number = torch_device.index if self.has_streams else None

    def __copy__(self) -> LogicalDevice:
        """Return the device itself: tensors are known to be on it by that."""
        return self

    def __deepcopy__(self, _: Any) -> LogicalDevice:
        """Return the device itself."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled."""
        raise TypeError(f"{self!r} cannot be pickled: it is one of a model placed in this process")

    @property
    def stream(self) -> Any:
        """The stream that its operators run on; None on a device without streams."""
        if not self.has_streams:
            return None
        if self._own is not None:
            return self._own
        return torch.accelerator.current_stream(self.torch_device)

    @property
    def own_stream(self) -> Any:
        """Its stream, when that is not the one the caller uses anyway."""
        return self._own

    def computing(self) -> Any:
        """Return a context in which it is the current device, and its stream the current one."""
        if self._own is not None:
            return _private.on_stream(self._own)
        if self._number is None or _private.current_device() == self._number:
            return _HERE
        return _private.on_device(self._number)

    def __repr__(self) -> str:
        return f"LogicalDevice({self.index}, {self.name!r}, {str(self.torch_device)!r})"


def logical_devices(
    names: Sequence[str], devices: Sequence[str | torch.device], here: str | None = None
) -> list[LogicalDevice]:
    """Return a logical device per name, on the given physical ones.

    Args:
        names: Of the devices of a cluster.
        devices: Where each of them is.
        here: The only one that this process has; None: it has all.

    """
    if len(names) != len(devices):
        raise InputError(
            f"devices names {len(devices)}, and the cluster has {len(names)}: name one for each, "
            "the same one several times if need be"
        )
    if here is not None:
        mine = usable(devices[list(names).index(here)])
        return [
            LogicalDevice(i, n, mine if n == here else _META, False, n != here)
            for i, n in enumerate(names)
        ]
    places = [usable(device) for device in devices]
    return [
        LogicalDevice(i, name, place, places.count(place) > 1)
        for i, (name, place) in enumerate(zip(names, places, strict=True))
    ]
