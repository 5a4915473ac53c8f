# SPDX-License-Identifier: Apache-2.0
"""The accelerators of this machine, real or simulated: their clock, their memory, their names.

Importing `baechi.torch.sim` makes the simulated devices the accelerator of the process, so it is
imported only where they are asked for.
"""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from experiments.peer_placers import Missing

# What the simulated device is to be like where the page is rehearsed.
SIMULATED = {"memory": "1GiB", "operator_time": "20us", "memory_bandwidth": "10GB/s"}
SIMULATED_LINK = ("30us", "3GB/s")


@dataclass(frozen=True)
class Hardware:
    """Accelerators, and how time and memory are read on them."""

    devices: tuple[torch.device, ...]
    clock: str | None = None  # of simulated devices; None: these are real

    @property
    def module(self) -> Any:
        """As `torch.cuda` is."""
        return getattr(torch, self.devices[0].type)

    @property
    def wall(self) -> bool:
        """Whether a step takes what a clock on the wall says."""
        return self.clock != "virtual"

    def synchronize(self) -> None:
        """Wait for all devices."""
        for device in self.devices:
            torch.accelerator.synchronize(device)

    def total_memory(self, device: torch.device) -> int:
        """Return the bytes that a device has."""
        return int(self.module.mem_get_info(device)[1])

    def settle(self) -> None:
        """Let go of all that is not held, so that what is left is known."""
        self.synchronize()
        gc.collect()
        self.module.empty_cache()

    def reset_peaks(self) -> None:
        """Let the peaks start at what is held now."""
        for device in self.devices:
            torch.accelerator.reset_peak_memory_stats(device)

    def allocated(self, device: torch.device) -> int:
        """Return the bytes in live tensors, and in what libraries allocated the same way."""
        return int(torch.accelerator.memory_allocated(device))

    def peak(self, device: torch.device) -> int:
        """Return the most bytes in live tensors since the last reset."""
        return int(torch.accelerator.max_memory_allocated(device))

    def build(self, make: Any) -> Any:
        """Return what `make` builds, its tensors on the first device from the beginning."""
        with self.devices[0]:
            return make()

    def start(self) -> float:
        """Wait for the devices and start the clock."""
        self.synchronize()
        if not self.wall:
            self.module.reset_virtual_clock()
        return time.perf_counter()

    def passed(self, start: float) -> float:
        """Wait for the devices and return the seconds since the clock was started."""
        self.synchronize()
        return time.perf_counter() - start if self.wall else float(self.module.virtual_time())

    def described(self) -> str:
        """Say what the figures were taken on."""
        first = self.devices[0]
        return (
            f"{len(self.devices)} x {_name_of(first, self.module)} "
            f"({self.total_memory(first) / 2**30:.1f} GiB), driver {_driver(first)}, "
            f"torch {torch.__version__}, {torch.get_num_threads()} threads"
        )


def _name_of(device: torch.device, module: Any) -> str:
    name = getattr(module, "get_device_name", None)
    return f"simulated device {device}" if name is None else str(name(device))


def _driver(device: torch.device) -> str:
    """Return what the driver calls itself; one line, and never an error."""
    if device.type != "cuda":
        return "-"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        version = done.stdout.strip().splitlines()[0] if done.returncode == 0 else "unknown"
    except (OSError, IndexError, subprocess.TimeoutExpired):
        version = "unknown"
    return f"{version}, CUDA {torch.version.cuda}"


@contextmanager
def hardware(simulated: str | None = None, count: int = 1) -> Iterator[Hardware]:
    """Have the accelerators of this machine, or simulated ones with that clock.

    Raises:
        Missing: There is no accelerator.

    """
    if simulated is not None:
        with _simulated(simulated, count) as found:
            yield found
        return
    if not torch.accelerator.is_available():
        raise Missing(
            f"this machine has no accelerator that PyTorch {torch.__version__} can use "
            "(--simulated rehearses it on one)"
        )
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "sim":
        raise Missing("the simulated devices are in the way: run it in a process of its own")
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")  # before the libraries start
    devices = [torch.device(accelerator.type, i) for i in range(torch.accelerator.device_count())]
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield Hardware(tuple(devices))
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def _simulated(clock: str, count: int) -> Iterator[Hardware]:
    from baechi.torch import sim

    link = sim.Link(*SIMULATED_LINK)
    settings: dict[str, Any] = {**SIMULATED, "devices": count, "clock": clock, "link": link}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with sim.configured(asynchronous=clock == "real", **settings):
            yield Hardware(tuple(torch.device("sim", i) for i in range(count)), clock)
    finally:
        torch.set_num_threads(threads)
        gc.collect()
