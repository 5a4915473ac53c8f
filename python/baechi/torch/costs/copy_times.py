# SPDX-License-Identifier: Apache-2.0
"""How long PyTorch takes to copy between devices: the torch side of `baechi calibrate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from baechi._core import InputError
from baechi.calibrate import Device
from baechi.torch.devices import ENDLESS, accelerators, memory_here, usable


def copies(names: Sequence[str]) -> TorchCopies:
    """Return the copies between the named devices; without names, between all accelerators."""
    if any(name.split(":")[0] == "sim" for name in names):
        import baechi.torch.sim  # noqa: F401
    devices = [usable(name) for name in names] or accelerators()
    if not devices:
        raise InputError("no accelerator is found; name devices, e.g. --devices cuda:0,cpu")
    return TorchCopies(devices)


def _capacity(device: torch.device) -> int:
    if device.type == "cpu":
        return memory_here()
    _, total = getattr(torch, device.type).mem_get_info(device)
    return min(int(total), ENDLESS)


class TorchCopies:
    """Copies between devices of PyTorch, one at a time."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.ends = list(devices)
        counts: dict[str, int] = {}
        self.devices: list[Device] = []
        for device in devices:
            kind = "cpu" if device.type == "cpu" else "gpu"
            index = counts[kind] = counts.get(kind, -1) + 1
            self.devices.append(Device(f"{kind}:{index}", kind, _capacity(device)))

    def time(self, source: int, target: int, size: int) -> Callable[[], float]:
        """Return a function that copies `size` bytes and returns the seconds by device events."""
        here, there = self.ends[source], self.ends[target]
        try:
            sent = torch.ones(size, dtype=torch.uint8, device=here)
            received = torch.empty(size, dtype=torch.uint8, device=there)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        clock = next((d for d in (there, here) if d.type != "cpu"), None)

        def by_host() -> float:
            start = time.perf_counter()
            received.copy_(sent)
            return time.perf_counter() - start

        def copied() -> object:
            # From and to the host as placed models copy: into memory of its own, while one waits.
            if here.type != "cpu" and there.type != "cpu":
                return received.copy_(sent, non_blocking=True)
            return sent.to(there)

        def by_events() -> float:
            torch.accelerator.synchronize(clock)
            stream = torch.accelerator.current_stream(clock)
            begin = torch.Event(clock, enable_timing=True)
            end = torch.Event(clock, enable_timing=True)
            stream.record_event(begin)
            copied()
            stream.record_event(end)
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3

        return by_host if clock is None else by_events
