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
from typing import Any, TypeAlias

import baechi.torch
import torch
from baechi.torch import Step
from baechi.torch.graph.graph import graph_of

import baechi
from experiments.hardware import Hardware
from experiments.torch_workloads import LARGE, MEDIUM, PROFILED, TINY, TorchWorkload
from models.pytorch import loss_of

Failures: TypeAlias = list[dict[str, str]]

KIND = "gpu"  # of the accelerators, in graphs and clusters
PART = 0.7  # of a device's memory that a model may need
BLOCK = 512  # bytes that allocators round to
WARM_UP, STEPS, SECONDS = 3, 10, 4.0  # not counted; counted, and when to stop


def candidates(name: str, hardware: Hardware) -> list[TorchWorkload]:
    """Return the sizes of a model to try, the largest first."""
    if hardware.clock is not None:
        return [TINY[name]]
    return [sizes[name] for sizes in (LARGE, PROFILED, MEDIUM, TINY)]


@dataclass
class Subject:
    """A model on the first device, its step and what its calls took there."""

    workload: TorchWorkload
    hardware: Hardware
    model: Any
    inputs: dict[str, torch.Tensor]
    step: Step
    costs: baechi.torch.Costs

    @property
    def graph(self) -> baechi.Graph:
        """The costed graph, without an optimizer: steps here have none."""
        return graph_of(self.step, self.costs, [KIND], "none", calls=True).graph

    def run(self, cluster: baechi.Cluster, devices: Sequence[torch.device], **how: Any) -> Placed:
        """Run steps of the placed model, and put it back as it was.

        Args:
            cluster: What the planner is told of the devices.
            devices: The accelerators.
            how: What else `place` is told.

        """
        placed = baechi.torch.place(
            self.model,
            self.inputs,
            cluster,
            devices=list(devices),
            loss=loss_of,
            costs=self.costs,
            optimizer="none",
            verbose=False,
            **how,
        )
        names = [str(device) for device in devices]
        try:
            run = run_steps(self.hardware, self.model, self.inputs)
            peaks = dict(zip(names, placed.peaks.values(), strict=True))
            return Placed(placed.plan, peaks, placed.left_out, run)
        finally:
            self.hardware.synchronize()
            placed.restore()


@dataclass(frozen=True)
class Placed:
    """A plan, its peaks by physical device, what ran eagerly, and what its steps took."""

    plan: baechi.Plan
    peaks: dict[str, int]
    left_out: list[str]
    run: Run


def subject_of(name: str, hardware: Hardware) -> Subject:
    """Capture and measure a model at the largest size that leaves room on the device.

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
    step = baechi.torch.capture(model, inputs, loss=loss_of)
    room = int(PART * hardware.total_memory(device))
    costs = baechi.torch.measure(model, inputs, step, loss=loss_of, devices={KIND: device})
    found = Subject(workload, hardware, model, inputs, step, costs)
    try:
        baechi.place_graph(found.graph, f"1x{room}B", "single", bounds=False)
    except baechi.DoesNotFit as error:
        raise torch.OutOfMemoryError(f"{workload.name}: {error}") from None
    return found


@dataclass(frozen=True)
class Run:
    """What steps took: the median, and the most memory of any."""

    seconds: float
    submitted: float | None  # when the last kernel was started; None where time is virtual
    peaks: dict[str, int]  # by physical device, with what is held between steps
    held: dict[str, int]  # between steps, beyond weights and inputs


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
    runs: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(runs) < STEPS and (not runs or time.perf_counter() - begin < SECONDS):
        runs.append(_step(hardware, model, inputs))
        if not hardware.wall:
            break
    peaks = {str(d): hardware.peak(d) for d in hardware.devices}
    _clear(model)
    return Run(
        statistics.median(total for total, _ in runs),
        statistics.median(sent for _, sent in runs) if hardware.wall else None,
        peaks,
        held,
    )


def _step(
    hardware: Hardware, model: Any, inputs: Mapping[str, torch.Tensor]
) -> tuple[float, float]:
    """Return the seconds of a step, and those until all of it was started."""
    _clear(model)
    start = hardware.start()
    # One thread of autograd: devices then get their work in the same order every time.
    with torch.autograd.set_multithreading_enabled(False):
        model(**inputs).backward()
    submitted = time.perf_counter() - start
    return hardware.passed(start), submitted


def _clear(model: Any) -> None:
    model.zero_grad(set_to_none=True)


def weights_on(
    devices: Sequence[torch.device], model: Any, inputs: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Return the bytes of weights and inputs by device, rounded up as allocators do."""
    found: dict[str, dict[int, int]] = {str(device): {} for device in devices}
    for tensor in (*model.parameters(), *model.buffers(), *inputs.values()):
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        found.setdefault(str(tensor.device), {})[storage.data_ptr()] = size
    return {str(device): sum(found[str(device)].values()) for device in devices}


def attempt(row: dict[str, Any], key: str, call: Callable[[], Any], failures: Failures) -> Any:
    """Return what `call` returns; None, and a line among the failures, when it fails."""
    try:
        return call()
    except Exception as error:  # a page with a gap says more than none
        line = (str(error).strip().splitlines() or [""])[0]
        what = f"{type(error).__name__}: {line}"[:300]
        failures.append({"workload": row.get("workload", "-"), "what": key, "why": what})
        print(f"    failed: {row.get('workload', '-')}, {key}: {what}", file=sys.stderr, flush=True)
        return None
