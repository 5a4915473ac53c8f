# SPDX-License-Identifier: Apache-2.0
"""A step of a placed model on simulated accelerators: planned, and measured on the virtual clock.

On that clock a kernel takes what the machine says, whatever this computer is busy with, and what
remains between plan and measurement is how PyTorch runs a placed model.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import baechi.torch
import torch
from baechi.torch import sim

import baechi
from experiments.torch_workloads import TorchWorkload
from models.pytorch import loss_of


@dataclass(frozen=True)
class Machine:
    """Simulated accelerators: what a kernel takes, and what a copy takes."""

    link: str
    operator_time: str
    memory_bandwidth: str
    memory: str = "4GiB"  # of each device
    communication: str = "parallel"

    def cluster(self, devices: int) -> baechi.Cluster:
        """Return what the planner is told."""
        names = f"{devices}x{self.memory}"
        return baechi.Cluster(names, link=self.link, communication=self.communication)

    @contextmanager
    def running(self, devices: int) -> Iterator[None]:
        """Have such devices, `sim:0` and on."""
        settings = sim.settings_of(
            self.cluster(devices),
            clock="virtual",
            asynchronous=False,
            operator_time=self.operator_time,
            memory_bandwidth=self.memory_bandwidth,
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with sim.configured(**vars(settings)):
                yield
        finally:
            torch.set_num_threads(threads)
            gc.collect()


@dataclass(frozen=True)
class Step:
    """What a step took, and the most that each device held."""

    forward: float  # seconds; of a step of micro-batches all of it
    total: float
    peaks: list[int]  # bytes by device


def measured_costs(workload: TorchWorkload, machine: Machine, parts: int = 1) -> Any:
    """Return what the calls of a micro-batch take on a device of the machine."""
    with machine.running(1):
        model, inputs = workload.model(), workload.inputs()
        if parts > 1:
            inputs = {name: value.chunk(parts)[0] for name, value in inputs.items()}
        return baechi.torch.measure(model, inputs, loss=loss_of, devices={"gpu": "sim:0"})


@contextmanager
def placed_model(
    workload: TorchWorkload, machine: Machine, devices: int, **how: Any
) -> Iterator[tuple[Any, Any]]:
    """Have a placed model on devices of a machine, and its batch on the first of them."""
    with machine.running(devices):
        model, inputs = workload.model(), workload.inputs("sim:0")
        cluster = () if "plan" in how else (machine.cluster(devices),)
        placed = baechi.torch.place(
            model, inputs, *cluster, loss=loss_of, optimizer="none", verbose=False, **how
        )
        try:
            yield placed, inputs
        finally:
            placed.restore()


def taken(placed: Any, inputs: Any) -> Step:
    """Run a forward and a backward, or a step of micro-batches; the second one counts."""
    devices = range(len(placed.runs_on))
    step = Step(0.0, 0.0, [])
    for _ in range(2):
        placed.model.zero_grad()
        gc.collect()
        for device in devices:
            sim.synchronize(device)
            sim.reset_peak_memory_stats(device)
        sim.reset_virtual_clock()
        # One thread of autograd: devices then get their work in the same order every time.
        with torch.autograd.set_multithreading_enabled(False):
            forward = _forward(placed, inputs)
        total = float(sim.virtual_time())
        peaks = [int(sim.max_memory_allocated(device)) for device in devices]
        step = Step(total if forward is None else forward, total, peaks)
    return step


def _forward(placed: Any, inputs: Any) -> float | None:
    if placed.asked.micro_batches is not None:
        placed.step(inputs)
        return None
    loss = loss_of(placed.model(**inputs))
    forward = float(sim.virtual_time())
    loss.backward()
    return forward
