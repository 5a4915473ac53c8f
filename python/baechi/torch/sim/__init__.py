# SPDX-License-Identifier: Apache-2.0
"""Simulated accelerators for PyTorch: devices ``sim:0``, ``sim:1``, ... on a machine without any.

>>> import torch, baechi.torch.sim as sim
>>> previous = sim.configure(devices=2, memory="1MiB")
>>> x = torch.ones(1000, device="sim:1")
>>> x.device, sim.memory_allocated(1)
(device(type='sim', index=1), 4096)
>>> torch.ones(1000, 1000, device="sim:0")
Traceback (most recent call last):
torch.OutOfMemoryError: sim:0 is out of memory: ...
>>> sim.reset()

Importing this module registers the backend with PyTorch and compiles it the first time. It is also
``torch.sim``, with the functions that such a module has (``torch.cuda`` is the model). What is
simulated, and what is not: docs/reference/torch_sim.md.
"""

from __future__ import annotations

import contextlib
import sys
import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.accelerator import current_stream as current_stream
from torch.accelerator import empty_cache as empty_cache
from torch.accelerator import max_memory_allocated as max_memory_allocated
from torch.accelerator import memory_allocated as memory_allocated
from torch.accelerator import memory_reserved as memory_reserved
from torch.accelerator import memory_stats as memory_stats
from torch.accelerator import reset_peak_memory_stats as reset_peak_memory_stats
from torch.accelerator import set_stream as set_stream
from torch.accelerator import synchronize as synchronize

from baechi.torch.sim.host_operators import HostOperators as HostOperators
from baechi.torch.sim.settings import MAX_DEVICES, library
from baechi.torch.sim.settings import Link as Link
from baechi.torch.sim.settings import Settings as Settings
from baechi.torch.sim.settings import byte_count as byte_count
from baechi.torch.sim.settings import configure as configure
from baechi.torch.sim.settings import configured as configured
from baechi.torch.sim.settings import current as current
from baechi.torch.sim.settings import nanoseconds as nanoseconds
from baechi.torch.sim.settings import reset as reset
from baechi.torch.sim.settings import settings_of as settings_of

_initialized = True  # torch.utils.checkpoint looks at this before it keeps generators' states

_Device = Any  # torch.device, "sim:1", 1 or None: the current one

current_device = torch.accelerator.current_device_index
mem_get_info = torch.accelerator.get_memory_info
set_device = torch.accelerator.set_device_index
Stream = torch.Stream  # Stream("sim:1") is the next of that device's 32 streams
Event = torch.Event


def device_count() -> int:
    """Return the number of devices."""
    return int(library.baechi_sim_device_count())


def _index(device: _Device = None) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        index: int | None = device
    else:
        named = torch.device(device)
        if named.type != "sim":
            raise ValueError(f"{device} is not a simulated device")
        index = named.index
    index = current_device() if index is None else index
    if not 0 <= index < device_count():
        raise ValueError(f"there is no sim:{index}; there are {device_count()} simulated devices")
    return index


def is_available() -> bool:
    """Tell whether the devices can be used; not in a forked child process."""
    return not library.baechi_sim_forked()


def is_initialized() -> bool:
    """Return True: there is nothing to initialise."""
    return True


def init() -> None:
    """Do nothing: there is nothing to initialise."""


def _lazy_init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return bool(library.baechi_sim_forked())


class device(torch.accelerator.device_index):  # noqa: N801
    """Makes a device the current one for the length of a ``with`` block."""

    def __init__(self, device: _Device) -> None:
        super().__init__(None if device is None else _index(device))


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Return what makes a stream (or None: nothing) the current one within a ``with`` block."""
    return contextlib.nullcontext() if stream is None else stream


def host_memory_stats() -> dict[str, int]:
    """Return how many bytes of the host's memory are pinned, and the most since `reset`."""
    pinned, peak = int(library.baechi_sim_pinned()), int(library.baechi_sim_pinned_peak())
    return {"allocated_bytes.current": pinned, "allocated_bytes.peak": peak}


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    library.baechi_sim_seed(current_device(), seed % 2**64)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; ``torch.manual_seed`` calls this."""
    for index in range(device_count()):
        library.baechi_sim_seed(index, seed % 2**64)


def get_rng_state(device: _Device = "sim") -> torch.Tensor:
    """Return the state of a device's generator: 16 bytes."""
    return torch.ops.baechi_sim.get_rng_state(_index(device))


def set_rng_state(new_state: torch.Tensor, device: _Device = "sim") -> None:
    """Set the state of a device's generator."""
    torch.ops.baechi_sim.set_rng_state(_index(device), new_state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return what autocast may cast to."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001
    """Return True: the host's kernels have bfloat16."""
    return True


def work(duration: float | str, device: _Device = None) -> None:
    """Keep a device's current stream busy for so long: seconds, or text such as ``"2ms"``."""
    torch.ops.baechi_sim.work(_index(device), nanoseconds(duration))


def use_cpu_kernels(library: str) -> None:
    """Let a library's operators run by its CPU kernels, as PyTorch's own do: ``"bitsandbytes"``.

    A library that also has kernels written in PyTorch's operators, for any device, would run those.
    """
    if not torch.ops.baechi_sim.use_cpu_kernels(library):
        raise ValueError(
            f"no operator of {library!r} has a kernel for the CPU: import the library first,"
            " and name the namespace of its operators, as in torch.ops"
        )


def mismatches() -> list[str]:
    """Return where kernels differed from their meta functions since the last call, if ``checked``.

    A line per operator: number, types, sizes or strides of its results.
    """
    return library.baechi_sim_take_mismatches().decode().splitlines()


def virtual_time() -> float:
    """Return the virtual time, in seconds, at which all work submitted so far has run."""
    return int(library.baechi_sim_virtual_now()) / 1e9


def virtual_host_time() -> float:
    """Return how far the host has come, in virtual seconds: it waited for devices, and it asked."""
    return int(library.baechi_sim_virtual_host()) / 1e9


def host_clock() -> float:
    """Return the seconds that asking has taken: of this thread, or virtual ones."""
    return virtual_host_time() if current().clock == "virtual" else time.thread_time()


def reset_virtual_clock() -> None:
    """Wait for all work and let the virtual clock start at zero."""
    library.baechi_sim_reset_virtual_clock()


def _register() -> None:
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()


def _start_autograd() -> None:
    """Run a backward on the last device there can be.

    Autograd starts one thread per device, for as many as there are at the process's first backward.
    """
    configure(devices=MAX_DEVICES, asynchronous=False)
    x = torch.ones((), device=f"sim:{MAX_DEVICES - 1}", requires_grad=True)
    try:
        (x * 1).backward()
    except RuntimeError as error:
        raise RuntimeError(
            "baechi.torch.sim must be imported before the first backward() of the process: PyTorch"
            " has already decided which devices can take part in one"
        ) from error
    finally:
        reset()


_register()
_start_autograd()
