# SPDX-License-Identifier: Apache-2.0
"""Is the plan true? Planned step times and peaks beside those of steps that really ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.page import Column, Page, Table, milliseconds, nanoseconds, percent, times
from experiments.placed_step import Machine, measured_costs, placed_model, taken
from experiments.progress import each
from experiments.torch_workloads import MEDIUM, TorchWorkload

# A kernel starts in 20 us and then moves 10 GB/s; a device sends one tensor at a time, and receives
# one.
VIRTUAL = Machine("20us,6GB/s", "20us", "10GB/s", communication="duplex")
CASES = ((1, None), (2, None), (4, None), (2, 2), (4, 2))  # devices, micro-batches of a step
WHOLE = {"two-tower"}  # each example's label is its place in the batch: no micro-batches
SMALL = 1 << 16  # bytes; peaks below say nothing


def row(
    workload: TorchWorkload, devices: int, micro_batches: int | None, costs: Any, one: float
) -> dict[str, Any]:
    """What was planned, what was measured, and how far off that is."""
    how = {"costs": costs, "micro_batches": micro_batches}
    with placed_model(workload, VIRTUAL, devices, **how) as (placed, inputs):
        step = taken(placed, inputs)
        plan, peaks = placed.plan, list(placed.peaks.values())
        eager = len(placed.left_out)
    measured = nanoseconds(step.total)
    ratios = [p / m for p, m in zip(peaks, step.peaks, strict=True) if m > SMALL]
    return {
        "workload": workload.name,
        "sizes": workload.sizes(),
        "devices": devices,
        "micro_batches": micro_batches,
        "operators": len(plan.graph),
        "transfers": len(plan.transfers),
        "planned": plan.makespan_ns,
        "measured": measured,
        "error": plan.makespan_ns / measured - 1,
        "gain": (one or measured) / measured,
        "peaks": peaks,
        "measured_peaks": step.peaks,
        "peak_low": min(ratios, default=None),
        "peak_high": max(ratios, default=None),
        "eager": eager,
    }


def rows_of(workloads: Sequence[TorchWorkload]) -> list[dict[str, Any]]:
    """All models in all cases."""
    rows = []
    for workload in each(workloads, lambda workload: workload.name):
        cases = [case for case in CASES if not case[1] or workload.name not in WHOLE]
        costs = {
            parts: measured_costs(workload, VIRTUAL, parts)
            for parts in {micro_batches or 1 for _, micro_batches in cases}
        }
        one = 0.0
        for devices, micro_batches in cases:
            found = row(workload, devices, micro_batches, costs[micro_batches or 1], one)
            one = one or found["measured"]
            rows.append(found)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """Plans, and what they did not foresee."""
    return Table(
        "Virtual clock",
        [
            Column("workload", "model"),
            Column("devices", "devices"),
            Column("micro_batches", "micro-batches", none="a call"),
            Column("operators", "operators"),
            Column("transfers", "tensors sent"),
            Column("planned", "planned", milliseconds),
            Column("measured", "measured", milliseconds),
            Column("error", "error", percent),
            Column("gain", "of one device's, times as fast", times),
            Column("peak_low", "peaks: planned / measured, least", times),
            Column("peak_high", "most", times),
        ],
        rows,
        "Milliseconds of forward and backward: a call and its `backward()`, or `placed.step`. A "
        "kernel takes 20 us plus what it touches at 10 GB/s, a copy 20 us plus its bytes at 6 "
        "GB/s, one out of a device and one into it at a time. The clock is virtual, so the "
        "figures are the same on every machine. two-tower compares all examples of a batch, so it "
        "has no micro-batches.",
    )


def page(rows: list[dict[str, Any]]) -> Page:
    """The page, from its rows."""
    errors = sorted(rows, key=lambda row: abs(row["error"]))
    worst, middle = errors[-1], errors[len(errors) // 2]
    where = f"{worst['workload']} on {worst['devices']} devices"
    return Page(
        "truth",
        "Is the plan true?",
        "PyTorch models of models/pytorch train on simulated accelerators "
        "(docs/reference/torch_sim.md): kernels, streams, events, copies and allocators are "
        "executed, not modelled. The models are small; their sizes are at the end.",
        "d",
        [table(rows)],
        f"Half of the {len(rows)} steps are within {abs(middle['error']):.1%} of their plan; the "
        f"largest error is {worst['error']:+.1%} ({where}).",
        sizes="Settings that differ from docs/lab/models.md.",
    )


def run() -> Page:
    """The page of the truth check."""
    return page(rows_of(list(MEDIUM.values())))
