# SPDX-License-Identifier: Apache-2.0
"""A step of a placed model on simulated accelerators: predicted, and measured.

On the virtual clock a kernel takes what the machine says, whatever this computer is busy with, and
what remains between prediction and measurement is how PyTorch runs a placed model. On the real
clock kernels and copies last as long, with the streams' threads and Python's beside each other.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import baechi.torch
import torch
from baechi.torch import sim
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.memory.eager import peak_memory
from baechi.torch.placing import assign

import baechi
from experiments.program_order import in_program_order
from experiments.torch_workloads import TorchWorkload
from experiments.workloads import all_work
from models.pytorch import loss_of


@dataclass(frozen=True)
class Machine:
    """Simulated accelerators: what a kernel takes, and what a copy takes."""

    link: str
    operator_time: str | None = None  # None: kernels take what this computer's CPU takes
    memory_bandwidth: str | None = None
    clock: str = "virtual"
    communication: str = "parallel"
    memory: str = "4GiB"  # of each device

    def cluster(self, devices: int) -> baechi.Cluster:
        """Return what the planner is told."""
        return baechi.Cluster(
            f"{devices}x{self.memory}", link=self.link, communication=self.communication
        )

    @contextmanager
    def running(self, devices: int) -> Iterator[None]:
        """Have such devices, `sim:0` and on."""
        virtual = self.clock == "virtual"
        settings = sim.settings_of(
            self.cluster(devices),
            clock=self.clock,
            asynchronous=not virtual,
            operator_time=self.operator_time or 0.0,
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


@dataclass
class Recorded:
    """A model's step with costs measured on one device of the machine."""

    workload: TorchWorkload
    captured: baechi.torch.Capture
    graph: baechi.Graph

    @property
    def work_ns(self) -> int:
        """All operators, one after the other."""
        return all_work(self.graph)


def record(workload: TorchWorkload, machine: Machine, *, repeats: int = 5) -> Recorded:
    """Record one step on a simulated device and measure its operators.

    Kernels that last as the machine says are measured on the virtual clock, and once is enough;
    those of this computer's CPU on the CPU.
    """
    lasting = machine.operator_time is not None
    with dataclasses.replace(machine, clock="virtual").running(1):
        model, inputs = workload.model().to("sim:0"), workload.inputs("sim:0")
        captured = baechi.torch.capture(model, inputs, loss=loss_of)
        costs = baechi.torch.measure(
            model if lasting else workload.model(),
            inputs if lasting else workload.inputs(),
            captured,
            repeats=1 if lasting else repeats,
            warm_up=0 if lasting else 1,
            loss=loss_of,
        )
    return Recorded(workload, captured, graph_of(captured, costs, optimizer="none").graph)


@dataclass(frozen=True)
class Step:
    """What a step took, and the most that each device held."""

    forward: float  # seconds
    total: float
    processor: float  # of all threads: kernels, Python and waiting that is busy
    kernels: float  # of the kernels alone
    peaks: list[int] = field(default_factory=list)  # bytes by device


@dataclass
class Placement:
    """Where operators run, and what was predicted of it."""

    recorded: Recorded
    machine: Machine
    plan: baechi.Plan

    @classmethod
    def planned(
        cls, recorded: Recorded, machine: Machine, devices: int, method: str, **how: Any
    ) -> Placement:
        """Let baechi place."""
        plan = baechi.place_graph(recorded.graph, machine.cluster(devices), method, **how)
        return cls(recorded, machine, plan)

    @property
    def devices(self) -> list[str]:
        """The names of the cluster's devices."""
        return [device.name for device in self.plan.cluster.devices]

    @property
    def program_order_ns(self) -> int:
        """Predict the step when devices run their operators in the order of the program."""
        chained = in_program_order(self.recorded.graph, self.plan.device_of)
        return baechi.simulate(chained, self.plan.cluster, self.plan.device_of).makespan_ns

    @property
    def peaks(self) -> list[int]:
        """Predict the most bytes on each device, in the order of the program."""
        found = peak_memory(self.recorded.captured, self.plan.device_of, optimizer="none")
        return [found.get(device, 0) for device in self.devices]

    def run(self, mode: str = "streams", *, tier: int = 1, steps: int = 1) -> Step:
        """Train for real: the shortest of `steps` steps after one that does not count.

        Args:
            mode: Of communication, as `assign` has them.
            tier: 1 runs the model's own code, 2 the graph that torch.export makes of it.
            steps: How many to choose from.

        """
        workload = self.recorded.workload
        count = len(self.devices)
        names = {name: f"sim:{i}" for i, name in enumerate(self.devices)}
        with self.machine.running(count):
            model, inputs = workload.model(), workload.inputs()
            placed = assign(
                model,
                self.recorded.captured,
                self.plan.device_of,
                names,
                mode=mode,
                plan=self.plan,
                tier=tier,
            )
            try:
                runs = [
                    trained_step(model, inputs, self.machine.clock, count) for _ in range(1 + steps)
                ]
            finally:
                placed.restore()
        best = min(runs[1:], key=lambda run: run.total)
        peaks = [max(each) for each in zip(*(run.peaks for run in runs[1:]), strict=True)]
        return Step(
            best.forward,
            best.total,
            min(run.processor for run in runs[1:]),
            min(run.kernels for run in runs[1:]),
            peaks,
        )


def trained_step(model: Any, inputs: Mapping[str, torch.Tensor], clock: str, devices: int) -> Step:
    """Run a forward and a backward, from idle devices until they are idle again."""
    model.zero_grad()
    gc.collect()
    for device in range(devices):
        sim.synchronize(device)
        sim.reset_peak_memory_stats(device)
    sim.reset_virtual_clock()
    start, used, computed = time.perf_counter(), time.process_time(), sim.kernel_time()

    def passed() -> float:
        if clock == "virtual":
            return float(sim.virtual_time())
        for device in range(devices):
            sim.synchronize(device)
        return time.perf_counter() - start

    # One thread of autograd: devices then get their work in the same order every time.
    with torch.autograd.set_multithreading_enabled(False):
        loss = model(**inputs)
        forward = passed()
        loss.backward()
    total = passed()
    processor, kernels = time.process_time() - used, sim.kernel_time() - computed
    peaks = [sim.max_memory_allocated(device) for device in range(devices)]
    return Step(forward, total, processor, kernels, peaks)
