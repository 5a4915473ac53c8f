# SPDX-License-Identifier: Apache-2.0
"""Is the prediction true? Predicted step times and peaks beside those of steps that really ran.

`python -m experiments.truth` runs the virtual clock's tables again, whose figures are the same on
every machine. Those of real clocks in docs/lab/results stay, with the date and the machine that
they are of.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.page import (
    RESULTS,
    Column,
    Page,
    Table,
    milliseconds,
    nanoseconds,
    percent,
    times,
)
from experiments.placed_step import Machine, Placement, Recorded, record
from experiments.progress import each
from experiments.torch_workloads import MEDIUM, TINY
from experiments.truth_default import by_default
from experiments.truth_default import rows_of as default_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from experiments.placed_step import Step
    from experiments.torch_workloads import TorchWorkload

# A kernel starts in 20 us and then moves 10 GB/s; so does what it is to be sent to.
VIRTUAL = Machine("20us,6GB/s", "20us", "10GB/s")
# 250 times slower, so that the kernels of tiny models, and Python, are short beside it.
SLOW = Machine("5ms,24MB/s", "5ms", "40MB/s", clock="real")
CPU = Machine("100us,2GB/s", clock="real")

SUMMARY = """\
**Virtual clock.** On one device the prediction is the step, to a kernel (tested): the measured
costs add up. On several, most placements are within 5%, and none is off by more than 9%. What
remains of `gnmt` is known in part. Transfers of one pair of devices share a stream and so a queue,
which the planner's `parallel` communication has not. Gradients of one tensor are summed before they
are sent, where the planner sends each. Every peak is predicted within 0.1%.

**By default** `place` takes the order of the plan on GNMT and that of the program elsewhere; no
step is over 3% longer than the faster mode's, nor over 9% than predicted.

**Kernels that last.** On one device, where nothing is left to predict, steps are 2 to 3% longer:
the time by which threads wake up late. No placement is further off than 9%; what is beyond the 3%
is the error on the virtual clock, and hand-overs between devices, each of which wakes a thread.
Peaks are predicted 3.3% too low to 1.4% too high: memory that another stream still reads is free a
little later than the program lets go of it, which is up to 6 KiB of these tiny models' 183.

**Kernels of the CPU.** Predicted work is within 11% of what kernels really take, but for `gnmt`, 12
to 24% too much: costs are measured on the CPU, whose allocator gives memory back, so that this
model takes page faults there, which simulated devices, that keep their memory, do not have. Steps
are predicted within 9%, with two exceptions. On one device
`gnmt` is predicted 20% too long, for the same reason. On two devices, placed by `auto`, five models
are predicted 17 to 23% too short: Python and autograd start the operators of both devices on the
same two cores that compute, and what is missing is less than that work of the host in every row.
Devices that have processors of their own would not wait for it."""
PLACEMENTS = ((2, "auto"), (4, "auto"), (4, "m-topo"))
ON_CLOCKS = ((1, "single"), (2, "auto"), (4, "m-topo"))


def row(placement: Placement, step: Step) -> dict[str, Any]:
    """What was predicted, what was measured, and how far off that is."""
    predicted, measured = placement.program_order_ns, nanoseconds(step.total)
    ratios = [p / m for p, m in zip(placement.peaks, step.peaks, strict=True) if m > 1 << 16]
    return {
        "workload": placement.recorded.workload.name,
        "sizes": placement.recorded.workload.sizes(),
        "devices": len(placement.devices),
        "used": len(set(placement.plan.device_of.values())),
        "method": placement.plan.method,
        "operators": len(placement.recorded.graph),
        "work": placement.recorded.work_ns,
        "plan": placement.plan.makespan_ns,
        "predicted": predicted,
        "measured": measured,
        "error": predicted / measured - 1,
        "peaks": placement.peaks,
        "measured_peaks": step.peaks,
        "peak_low": min(ratios, default=None),
        "peak_high": max(ratios, default=None),
    }


def placements(
    recorded: Recorded, machine: Machine, chosen: Iterable[tuple[int, str]]
) -> list[Placement]:
    """Place a workload in several ways; without bounds, which nobody asks for here."""
    return [
        Placement.planned(recorded, machine, devices, method, bounds=False)
        for devices, method in chosen
    ]


NAMED = [
    Column("workload", "model"),
    Column("devices", "devices"),
    Column("method", "method"),
]
PREDICTED = [
    Column("predicted", "predicted", milliseconds),
    Column("measured", "measured", milliseconds),
    Column("error", "error", percent),
]


def virtual_rows(workloads: Sequence[TorchWorkload]) -> list[dict[str, Any]]:
    """How PyTorch runs placed models, and nothing else."""
    rows = []
    for workload in each(workloads, lambda workload: workload.name, of="virtual clock"):
        recorded = record(workload, VIRTUAL)
        for placement in placements(recorded, VIRTUAL, PLACEMENTS):
            found = row(placement, placement.run())
            if found["used"] > 1:
                ordered = nanoseconds(placement.run("streams+order", tier=2).total)
                found |= {"ordered": ordered, "plan_error": found["plan"] / ordered - 1}
            rows.append(found)
    return rows


def on_the_virtual_clock(rows: list[dict[str, Any]]) -> Table:
    """Predictions, and what they did not foresee."""
    return Table(
        "Virtual clock",
        [
            *NAMED,
            Column("operators", "operators"),
            Column("work", "all work", milliseconds),
            *PREDICTED,
            Column("plan", "predicted by the plan", milliseconds),
            Column("ordered", "measured in its order", milliseconds),
            Column("plan_error", "error", percent),
            Column("peak_low", "peaks: predicted / measured, least", times),
            Column("peak_high", "most", times),
        ],
        rows,
        "Milliseconds. *Predicted* and *measured* are the model's own code with `streams`, which "
        "runs in the order of the program; *in its order* is the graph with `streams+order`. A "
        "kernel takes 20 us plus what it reads and writes at 10 GB/s, a copy 20 us plus its bytes "
        "at 6 GB/s; the clock is virtual, so the figures are the same on every machine.",
    )


def real_rows(workloads: Sequence[TorchWorkload], steps: int) -> list[dict[str, Any]]:
    """Threads, Python and locks in earnest: kernels that sleep need no cores."""
    rows = []
    for workload in each(workloads, lambda workload: workload.name, of="kernels that last"):
        recorded = record(workload, SLOW)
        for placement in placements(recorded, SLOW, ON_CLOCKS):
            found = row(placement, placement.run(steps=steps)) | {"load": load()}
            on_virtual = replace(placement, machine=replace(SLOW, clock="virtual")).run()
            found["virtual"] = nanoseconds(on_virtual.total)
            found["clock_error"] = found["virtual"] / found["measured"] - 1
            rows.append(found)
    return rows


def on_the_real_clock(rows: list[dict[str, Any]]) -> Table:
    """Predictions beside what a clock on the wall says."""
    return Table(
        "Real clock, kernels that last",
        [
            *NAMED,
            *PREDICTED,
            Column("virtual", "measured on the virtual clock", milliseconds),
            Column("clock_error", "its error", percent),
            Column("load", "load"),
        ],
        rows,
        "Milliseconds; tiny models, the shortest of 3 steps. A kernel takes 5 ms plus what it "
        "reads and writes at 40 MB/s, a copy 5 ms plus its bytes at 24 MB/s: streams sleep for as "
        "long, in threads of their own, so that two cores can stand for four devices. *Load* is "
        "how many programs wanted a core; each kernel is late by what its thread waits for one.",
    )


def cpu_rows(workloads: Sequence[TorchWorkload], steps: int) -> list[dict[str, Any]]:
    """The kernels of this machine's CPU, which has fewer cores than there are devices."""
    rows = []
    cores = len(os.sched_getaffinity(0))
    for workload in each(workloads, lambda workload: workload.name, of="kernels of the CPU"):
        recorded = record(workload, CPU)
        for placement in placements(recorded, CPU, ON_CLOCKS):
            step = placement.run(steps=steps)
            found = row(placement, step) | {"load": load()}
            found["kernels"] = nanoseconds(step.kernels)
            found["host"] = nanoseconds(step.processor) - found["kernels"]
            found["work_error"] = found["work"] / found["kernels"] - 1
            found["least"] = max(found["predicted"], nanoseconds(step.processor) // cores)
            rows.append(found)
    return rows


def on_the_cpu(rows: list[dict[str, Any]]) -> Table:
    """What there was to compute, what was computed, and how long it took."""
    return Table(
        "Real clock, kernels of the CPU",
        [
            *NAMED,
            Column("work", "predicted work", milliseconds),
            Column("kernels", "kernels' work", milliseconds),
            Column("work_error", "error", percent),
            Column("host", "the host's work", milliseconds),
            Column("predicted", "predicted step", milliseconds),
            Column("least", "at least, on these cores", milliseconds),
            Column("measured", "measured", milliseconds),
            Column("error", "of the predicted step", percent),
            Column("load", "load"),
        ],
        rows,
        "Milliseconds; the shortest of 5 steps. Operators are measured on one core, in processor "
        "time. A copy takes 100 us plus its bytes at 2 GB/s. *Load* is how many programs wanted a "
        "core, in the mean of the last minute.",
    )


def load() -> float:
    """How many programs want a core of this machine."""
    return round(os.getloadavg()[0], 1)


def page(tables: list[Table]) -> Page:
    """The page, from its tables."""
    return Page(
        "truth",
        "Is the prediction true?",
        "PyTorch models of models/pytorch train on simulated accelerators "
        "(docs/reference/torch_sim.md): kernels, streams, events, copies and allocators are "
        "executed, not modelled. The models are small, so that a step takes a "
        "second or less on one core; their sizes are at the end.",
        "bd",
        tables,
        SUMMARY,
        sizes="What is not as in docs/lab/models.md; where only a batch is named, the sizes are "
        "those of the tests of models/pytorch.",
    )


def run() -> Page:
    """The page of the truth check."""
    medium, tiny = list(MEDIUM.values()), list(TINY.values())
    return page(
        [
            on_the_virtual_clock(virtual_rows(medium)),
            by_default(default_rows(medium, VIRTUAL)),
            on_the_real_clock(real_rows(tiny, 3)),
            on_the_cpu(cpu_rows(medium, 5)),
        ]
    )


def again(folder: Path, workloads: Sequence[TorchWorkload]) -> Page:
    """The page in `folder` with the virtual clock's tables run again."""
    known = json.loads((folder / "truth.json").read_text())
    there = {table["title"]: table for table in known["tables"]}
    on_clocks = [on_the_real_clock([]), on_the_cpu([])]
    virtual = on_the_virtual_clock(virtual_rows(workloads))
    result = page([virtual, by_default(default_rows(workloads, VIRTUAL)), *on_clocks])
    for table in on_clocks:
        table.rows = there[table.title]["rows"]
        made = there[table.title].get("made") or {key: known[key] for key in result.made}
        table.made = None if made == result.made else made
    return result


if __name__ == "__main__":
    if not (RESULTS / "truth.json").exists():
        sys.exit("there is no docs/lab/results/truth.json: ./do experiments truth writes it")
    again(RESULTS, list(MEDIUM.values())).write(RESULTS, "./do experiments truth")
