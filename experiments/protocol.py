# SPDX-License-Identifier: Apache-2.0
"""Paper Table 8: what the communication protocol brings to a placed PyTorch model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from baechi.torch.communication import MODES

from experiments.page import Column, Page, Table, milliseconds, percent
from experiments.placed_step import Machine, Placement, record
from experiments.torch_workloads import MEDIUM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.torch_workloads import TorchWorkload

MACHINE = Machine("20us,6GB/s", "20us", "10GB/s")
PLACEMENTS = ((4, "auto"), (4, "m-topo"))
FREE = replace(MACHINE, link="0us,1000GB/s")  # as good as no copies at all


def nanoseconds(seconds: float) -> int:
    """Return what the tables hold."""
    return round(seconds * 1e9)


def hidden(plain: float, found: float, free: float) -> float | None:
    """Return the share of what copies cost that is no longer waited for."""
    return None if plain - free < 0.001 * free else (plain - found) / (plain - free)


def row(placement: Placement) -> dict[str, Any]:
    """Forward and backward of one placement in every mode."""
    free = Placement(placement.recorded, FREE, placement.plan).run()
    steps = {mode: placement.run(mode) for mode in MODES}
    plain = steps["plain"]
    result: dict[str, Any] = {
        "workload": placement.recorded.workload.name,
        "sizes": placement.recorded.workload.sizes(),
        "method": placement.plan.method,
        "transfers": len(placement.plan.transfers),
        "predicted": placement.plan.makespan_ns,
        "free": nanoseconds(free.total),
    }
    for mode, step in steps.items():
        result[f"{mode} forward"] = nanoseconds(step.forward)
        result[f"{mode} backward"] = nanoseconds(step.total - step.forward)
        result[mode] = nanoseconds(step.total)
        if mode != "plain":
            result[f"{mode} gain"] = 1 - step.total / plain.total
            result[f"{mode} hidden forward"] = hidden(plain.forward, step.forward, free.forward)
            result[f"{mode} hidden backward"] = hidden(
                plain.total - plain.forward,
                step.total - step.forward,
                free.total - free.forward,
            )
    return result


def tables(workloads: Sequence[TorchWorkload]) -> list[Table]:
    """Step times by mode, and how much of the copies' cost each mode hides."""
    rows = []
    for workload in workloads:
        recorded = record(workload, MACHINE)
        for devices, method in PLACEMENTS:
            placement = Placement.planned(recorded, MACHINE, devices, method, bounds=False)
            if placement.plan.transfers:
                rows.append(row(placement))
    named = [Column("workload", "model"), Column("method", "method")]
    better = [mode for mode in MODES if mode != "plain"]
    return [
        Table(
            "Step time",
            [
                *named,
                Column("transfers", "tensors sent"),
                *(Column(mode, mode, milliseconds) for mode in MODES),
                Column("free", "streams, copies free", milliseconds),
                Column("predicted", "predicted by the plan", milliseconds),
                *(Column(f"{mode} gain", f"{mode}: shorter by", percent) for mode in better),
            ],
            rows,
            "Milliseconds. *Copies free* is the same placement with links that take no time. A "
            "kernel takes 20 us plus what it reads and writes at 10 GB/s, a copy 20 us plus its "
            "bytes at 6 GB/s.",
        ),
        Table(
            "Forward and backward",
            [
                *named,
                *(
                    Column(f"{mode} {part}", f"{part}, {mode}", milliseconds)
                    for part in ("forward", "backward")
                    for mode in MODES
                ),
                *(
                    Column(f"{mode} hidden {part}", f"{mode} hides, {part}", percent)
                    for mode in better
                    for part in ("forward", "backward")
                ),
            ],
            rows,
            "*Hides*: of what copies cost with `plain`, over free ones, the share that is no "
            "longer waited for.",
        ),
    ]


def run() -> Page:
    """The page of Table 8."""
    return Page(
        "protocol",
        "Communication protocol (paper Table 8)",
        "PyTorch models of models/pytorch train on four simulated accelerators "
        "(docs/torch_sim.md): kernels, streams, events and copies are executed; their virtual "
        "clock counts what they take.",
        "d",
        tables(list(MEDIUM.values())),
    )
