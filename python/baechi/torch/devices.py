# SPDX-License-Identifier: Apache-2.0
"""Devices: which PyTorch has here, what they have room for, and a cluster's devices on them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster, InputError
from baechi.presets import STORE
from baechi.torch.where.homes import plain_parts

_WITHOUT_ACCELERATOR = ("cpu", "meta")
ENDLESS = 1 << 50  # bytes of a device that has no limit, as simulated ones may have none


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
            f"devices: {str(device)!r} is no device here: name one as PyTorch does; here are "
            f"{there}"
        ) from None
    if found.type in _WITHOUT_ACCELERATOR:
        return torch.device(found.type)
    if reason := _missing(found):
        raise InputError(f"devices: {str(device)!r} is no device here: {reason}")
    if found.index is None:
        return torch.device(found.type, torch.accelerator.current_device_index())
    return found


def device_of_process(given: Sequence[Any] | None, kind: str, rank: int) -> torch.device:
    """Return the device of this process of several: of those given, or one of a kind."""
    if given is not None:
        return usable(given[rank])
    there = accelerators()
    if kind == "cpu" or not there:
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", rank))  # among the processes of its host
    if len(there) == 1:
        return there[0]
    if number < len(there):
        return there[number]
    raise InputError(
        f"this process has number {number} on its host, which has {len(there)} accelerators: start "
        "as many processes, or name with devices= where each is to be"
    )


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


def chosen_devices(devices: Sequence[Any] | None, cluster: Cluster) -> list[torch.device]:
    """Return what `devices=` names, or the default ones, one for each of the cluster's."""
    if devices is None:
        return _default_devices(cluster)
    if isinstance(devices, (str, torch.device)):
        raise InputError(f"devices: expected a list, such as ['{devices}'], found '{devices}'")
    chosen = [usable(device) for device in devices]
    store = store_of(cluster)
    if store is not None and len(chosen) == len(cluster) - 1:
        chosen.insert(store, torch.device("cpu"))
    if len(chosen) != len(cluster):
        given = ", ".join(map(str, chosen))
        raise InputError(
            f"devices: {len(chosen)} given ({given}) for a cluster of {len(cluster)}: give one "
            "for each"
        )
    real = [device for device in chosen if device.type != "cpu"]
    if store is not None and (chosen[store].type != "cpu" or len(real) < len(chosen) - 1):
        given = ", ".join(map(str, chosen))
        raise InputError(
            f"devices: {given} given for a cluster with a host, which keeps what accelerators "
            f"fetch: name {len(chosen) - 1} accelerators"
        )
    if twice := next((device for device in real if real.count(device) > 1), None):
        raise InputError(
            f"devices: {twice} is given for several of the cluster's: each needs one of its own; "
            "several processes may share a card"
        )
    return chosen


def _default_devices(cluster: Cluster) -> list[torch.device]:
    """Return the CPU for devices of kind "cpu", an accelerator of its own for every other one.

    Where there is no accelerator, the CPU for all.
    """
    cpu = torch.device("cpu")
    on_cpu = [device.kind in ("cpu", STORE) for device in cluster.devices]
    there = accelerators()
    wanted = on_cpu.count(False)
    if not there and store_of(cluster) is None:
        return [cpu] * len(cluster)
    if len(there) < wanted:
        raise InputError(
            f"cluster: it has {wanted} accelerators and this machine {_counted(there)}: name a "
            "smaller cluster, or devices=['cpu', ...] for a trial"
        )
    free = iter(there)
    return [cpu if here else next(free) for here in on_cpu]


def _counted(there: Sequence[torch.device]) -> str:
    return f"{len(there)} ({there[0]} to {there[-1]})" if there else "none"


def store_of(cluster: Cluster) -> int | None:
    """Return which of the cluster's devices is a host that keeps what is away."""
    return next((i for i, one in enumerate(cluster.devices) if one.kind == STORE), None)


def with_what_is_here(
    line: str, model: nn.Module, given: Iterable[torch.Tensor] = ()
) -> str | Cluster:
    """Return a cluster's line in which ``auto`` and ``host`` are what this machine has."""
    parts = [part.strip() for part in line.split("+")]
    if not {"auto", STORE} & {*parts}:
        return line
    here = {STORE: f"1xhost:{memory_here()}B"}
    if "auto" in parts:
        here["auto"] = detected_line(model, given)
    return Cluster("+".join(here.get(part, part) for part in parts))


def memory_here() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def detected_line(model: nn.Module, given: Iterable[torch.Tensor] = ()) -> str:
    """Return a line of the accelerators here, with the memory that a step of the model may take.

    That is what is free, and what its weights and `given`, its arguments, have already.

    Raises:
        InputError: There is none.

    """
    devices = accelerators()
    if not devices:
        raise InputError("cluster: no accelerator is found; name one, e.g. cluster='2x8GiB'")
    weights = [*model.parameters(), *model.buffers()]
    held = [*weights, *(w.grad for w in weights if w.grad is not None), *given]
    return "+".join(f"1x{free_memory(device, held)}B" for device in devices)


def free_memory(device: torch.device, held: Sequence[torch.Tensor]) -> int:
    """Return the bytes that are free, kept for reuse by the allocator, or taken by `held`."""
    module = torch.get_device_module(device)
    module.empty_cache()
    free, _ = module.mem_get_info(device)
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for whole in held
        for t in plain_parts(whole)
        if t.device == device
    }
    return min(int(free), ENDLESS) + sum(storages.values())


def warn_of_small(cluster: Cluster, devices: Mapping[str, torch.device]) -> None:
    """Warn where an accelerator has less memory than the cluster says."""
    for device in cluster.devices:
        real = devices[device.name]
        if device.kind == STORE and device.capacity > memory_here():
            warnings.warn(
                f"cluster: {device.name} has {device.capacity} bytes, and this machine "
                f"{memory_here()}: what is away may be swapped out, which takes far longer",
                stacklevel=3,
            )
        if real.type in _WITHOUT_ACCELERATOR:
            continue
        total = int(torch.get_device_module(real).mem_get_info(real)[1])
        if device.capacity > total:
            warnings.warn(
                f"cluster: {device.name} has {device.capacity} bytes, and {real}, where it runs, "
                f"{total}: a step may run out of memory",
                stacklevel=3,
            )
