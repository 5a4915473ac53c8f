# SPDX-License-Identifier: Apache-2.0
"""Models of models/pytorch on an accelerator: costs measured there, and steps that run there.

One step is a forward and a backward, from idle devices until they are idle again. Libraries keep
memory of their own through the same allocator (workspaces of matrix products, one per stream): what
is held between steps beyond weights and inputs is told apart from what the step takes.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import baechi.torch
import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.memory.eager import StepContext, held_bytes, peak_memory
from baechi.torch.memory.fit import GraphStep, Memory
from baechi.torch.placing import assign
from baechi.torch.record.capture import capture_on
from baechi.torch.trace.exported import export
from baechi.torch.trace.graph import NotExportedError

import baechi
from experiments.torch_workloads import LARGE, MEDIUM, PROFILED, TINY
from models.pytorch import loss_of

if TYPE_CHECKING:
    from experiments.hardware import Hardware
    from experiments.torch_workloads import TorchWorkload

KIND = "gpu"  # of the accelerators, in graphs and clusters
# Of a device's memory that a model may need: copies between logical devices come on top.
PART = 0.45
WARM_UP, STEPS, SECONDS = 3, 10, 4.0  # not counted; counted, and when to stop
REPEATS = 7  # of a step whose operators are measured


def candidates(name: str, hardware: Hardware) -> list[TorchWorkload]:
    """Return the sizes of a model to try, the largest first."""
    if hardware.clock is not None:
        return [TINY[name]]
    return [sizes[name] for sizes in (LARGE, PROFILED, MEDIUM, TINY)]


@dataclass
class Subject:
    """A model on the first device, its recorded step and what its operators took there."""

    workload: TorchWorkload
    hardware: Hardware
    model: Any
    inputs: dict[str, torch.Tensor]
    captured: baechi.torch.Capture
    costs: baechi.torch.Costs
    _exported: Any = None  # the graph, or why there is none
    _graph_step: GraphStep | None = None  # what was recorded of the graph

    def exported(self) -> list[Any]:
        """Return the model as a graph for tier 2, made once: that takes seconds.

        Raises:
            NotExportedError: There is none.

        """
        if self._exported is None:
            try:
                self._exported = export(self.model, self.inputs)
            except NotExportedError as error:
                self._exported = error
        if isinstance(self._exported, NotExportedError):
            raise self._exported
        return [self._exported]

    @property
    def graph(self) -> baechi.Graph:
        """The costed graph, without an optimizer: steps here have none."""
        return graph_of(self.captured, self.costs, optimizer="none").graph

    def peak(
        self, device_of: Mapping[str, str], physical: Mapping[str, str], tier: int, home: str
    ) -> dict[str, int]:
        """Predict the most bytes of the physical devices in use, also where logical ones share one.

        Args:
            device_of: The logical device of every operator.
            physical: The physical device of every logical one.
            tier: Of the run.
            home: The logical device where the model is called.

        """
        used = [name for name in physical if name in set(device_of.values())]
        memory = Memory(
            self.model,
            self.captured,
            used,
            tiers=(tier,),
            around=StepContext("none", home, held_bytes(self.inputs.values()), memory_of=physical),
            graph=self._recorded([physical[name] for name in used]) if tier == 2 else None,
        )
        return {device: peak.bytes for device, peak in memory.peaks(device_of)[tier].items()}

    def _recorded(self, physical: list[str]) -> GraphStep:
        """Return what is recorded of the graph, once, as it runs on some devices."""
        if self._graph_step is None:
            (exported,) = self.exported()
            self._graph_step = GraphStep(exported, "streams", [], self._record)
        self._graph_step.physical = [torch.device(device) for device in physical]
        return self._graph_step

    def _record(self, units: Any) -> baechi.torch.Capture:
        device = self.hardware.devices[0]
        return capture_on(device, self.model, self.inputs, loss=loss_of, units=units)

    def alone(self) -> dict[str, str]:
        """Return the placement on one device."""
        return {op.key: "all" for op in self.captured.ops}

    def run(
        self, device_of: Mapping[str, str], devices: Mapping[str, str], tier: int, **how: Any
    ) -> Run:
        """Run steps of the placed model, and put it back as it was.

        Args:
            device_of: The logical device of every operator.
            devices: The physical device of every logical one.
            tier: Of the run.
            how: What else `assign` is told.

        """
        placed = assign(
            self.model,
            self.captured,
            device_of,
            devices,
            tier=tier,
            exported=self.exported() if tier == 2 else (),
            **how,
        )
        try:
            return run_steps(self.hardware, self.model, self.inputs)
        finally:
            self.hardware.synchronize()
            placed.restore()


def subject_of(name: str, hardware: Hardware) -> Subject:
    """Record and measure a model at the largest size that leaves room on the device.

    Raises:
        torch.OutOfMemoryError: Not even the smallest one does.

    """
    device = hardware.devices[0]
    for workload in candidates(name, hardware):
        hardware.settle()
        try:
            return _subject(workload, hardware, device)
        except (torch.OutOfMemoryError, baechi.InputError) as error:
            if not isinstance(error.__cause__ or error, torch.OutOfMemoryError):
                raise
    raise torch.OutOfMemoryError(f"no size of {name} leaves room on {device}")


def _subject(workload: TorchWorkload, hardware: Hardware, device: torch.device) -> Subject:
    model = hardware.build(workload.model)
    inputs = workload.inputs(str(device))
    captured = capture_on(device, model, inputs, loss=loss_of)
    need = peak_memory(captured, {op.key: "all" for op in captured.ops}, optimizer="none")["all"]
    if need > PART * hardware.total_memory(device):
        raise torch.OutOfMemoryError(f"{workload.name} needs {need:,} bytes")
    costs = baechi.torch.measure(
        model, inputs, captured, kind=KIND, repeats=REPEATS, warm_up=2, loss=loss_of
    )
    return Subject(workload, hardware, model, inputs, captured, costs)


@dataclass(frozen=True)
class Run:
    """What steps took: the median, and the most memory of any."""

    seconds: float
    submitted: float | None  # when the last kernel was started; None where time is virtual
    steps: int
    peaks: dict[str, int]  # by physical device, with what is held between steps
    held: dict[str, int]  # between steps, beyond weights and inputs
    requested: dict[str, int | None]  # peaks without what the allocator adds
    loss: float


def run_steps(hardware: Hardware, model: Any, inputs: Mapping[str, torch.Tensor]) -> Run:
    """Train without an optimizer; nothing but the model's weights and inputs is kept."""
    for _ in range(WARM_UP if hardware.wall else 1):
        _step(hardware, model, inputs)
    _clear(model)
    hardware.synchronize()
    gc.collect()  # without emptying the allocator's cache: filling it again would take time
    known = weights_on(hardware.devices, model, inputs)
    held = {str(d): hardware.allocated(d) - known[str(d)] for d in hardware.devices}
    hardware.reset_peaks()
    runs: list[tuple[float, float, float]] = []
    begin = time.perf_counter()
    while len(runs) < STEPS and (not runs or time.perf_counter() - begin < SECONDS):
        runs.append(_step(hardware, model, inputs))
        if not hardware.wall:
            break
    peaks = {str(d): hardware.peak(d) for d in hardware.devices}
    requested = {str(d): hardware.requested(d) for d in hardware.devices}
    _clear(model)
    return Run(
        statistics.median(total for total, _, _ in runs),
        statistics.median(sent for _, sent, _ in runs) if hardware.wall else None,
        len(runs),
        peaks,
        held,
        requested,
        runs[-1][2],
    )


def _step(
    hardware: Hardware, model: Any, inputs: Mapping[str, torch.Tensor]
) -> tuple[float, float, float]:
    """Return the seconds of a step, those until all of it was started, and the loss."""
    _clear(model)
    start = hardware.start()
    # One thread of autograd: devices then get their work in the same order every time.
    with torch.autograd.set_multithreading_enabled(False):
        loss = model(**inputs)
        loss.backward()
    submitted = time.perf_counter() - start
    total = hardware.passed(start)
    return total, submitted, loss.item()


def _clear(model: Any) -> None:
    model.zero_grad(set_to_none=True)


def weights_on(
    devices: Sequence[torch.device], model: Any, inputs: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Return the bytes of weights and inputs by device, in the blocks of the allocators."""
    result = {str(device): 0 for device in devices}
    held = (*model.parameters(), *model.buffers(), *inputs.values())
    for device in result:
        result[device] = held_bytes(t for t in held if str(t.device) == device)
    return result


@dataclass
class Spread:
    """A placement over logical or physical devices."""

    subject: Subject
    plan: baechi.Plan
    physical: dict[str, torch.device]  # by name of the plan's device

    def run(self, mode: str, tier: int) -> Run:
        """Run steps of the placed model."""
        devices = {name: str(device) for name, device in self.physical.items()}
        return self.subject.run(self.plan.device_of, devices, tier, mode=mode, plan=self.plan)

    def peaks(self, tier: int) -> dict[str, int]:
        """Predict the most bytes of each physical device, also where logical ones share it."""
        memory_of = {name: str(device) for name, device in self.physical.items()}
        first = self.subject.hardware.devices[0]  # where the inputs are
        home = next(name for name, device in self.physical.items() if device == first)
        return self.subject.peak(self.plan.device_of, memory_of, tier, home)


def attempt(
    row: dict[str, Any], key: str, call: Callable[[], Any], failures: list[dict[str, str]]
) -> Any:
    """Return what `call` returns; None, and a line among the failures, when it fails."""
    try:
        return call()
    except Exception as error:  # a page with a gap says more than none
        line = (str(error).strip().splitlines() or [""])[0]
        what = f"{type(error).__name__}: {line}"[:300]
        failures.append({"workload": row.get("workload", "-"), "what": key, "why": what})
        print(f"    failed: {row.get('workload', '-')}, {key}: {what}", file=sys.stderr, flush=True)
        return None
