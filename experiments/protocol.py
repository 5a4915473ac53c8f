# SPDX-License-Identifier: Apache-2.0
"""Paper Table 7: what programs bring to a placed PyTorch model over copies made when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baechi.torch.private import call_uncompiled

from experiments.page import Column, Page, Table, milliseconds, nanoseconds, percent
from experiments.placed_step import Machine, Step, measured_costs, placed_model, taken
from experiments.progress import each
from experiments.torch_workloads import MEDIUM, TorchWorkload

MACHINE = Machine("20us,6GB/s", "20us", "10GB/s")
FREE = replace(MACHINE, link="0us,1000GB/s")  # as good as no copies at all
DEVICES = 4
WAYS = ("eager", "program")
METHODS = ("auto", "m-topo")


def row(workload: TorchWorkload, method: str, costs: Any) -> dict[str, Any] | None:
    """Forward and backward of one placement in both ways; None if it sends nothing."""
    with placed_model(workload, MACHINE, DEVICES, costs=costs, method=method) as (placed, inputs):
        plan = placed.plan
        if not plan.transfers:
            return None
        program = taken(placed, inputs)
        call_uncompiled(placed.model)
        eager = taken(placed, inputs)
    with placed_model(workload, FREE, DEVICES, plan=plan, costs=costs) as (placed, inputs):
        free = taken(placed, inputs)
    result: dict[str, Any] = {
        "workload": workload.name,
        "sizes": workload.sizes(),
        "method": plan.method,
        "transfers": len(plan.transfers),
        "planned": plan.makespan_ns,
        "free": nanoseconds(free.total),
        "gain": 1 - program.total / eager.total,
    }
    for name, step in zip(WAYS, (eager, program), strict=True):
        result |= _halves(name, step)
    return result


def _halves(name: str, step: Step) -> dict[str, int]:
    return {
        name: nanoseconds(step.total),
        f"{name} forward": nanoseconds(step.forward),
        f"{name} backward": nanoseconds(step.total - step.forward),
    }


def rows_of(workloads: Sequence[TorchWorkload]) -> list[dict[str, Any]]:
    """Run the placements of some models that send anything."""
    rows = []
    for workload in each(workloads, lambda workload: workload.name):
        costs = measured_costs(workload, MACHINE)
        rows += [found for method in METHODS if (found := row(workload, method, costs))]
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """Step times in both ways."""
    return Table(
        "Step time",
        [
            Column("workload", "model"),
            Column("method", "method"),
            Column("transfers", "tensors sent"),
            *(Column(name, name, milliseconds) for name in WAYS),
            Column("planned", "planned", milliseconds),
            Column("free", "program, copies free", milliseconds),
            Column("gain", "shorter by", percent),
        ],
        rows,
        "Milliseconds. *Eager* is PyTorch with the same placement: operators run in the model's "
        "order, and a tensor is copied when an operator reads it. *Program* runs the plan's order "
        "and sends each tensor, on a stream for copies, as soon as it is made. *Copies free*: "
        "links take no time. A kernel takes 20 us plus what it touches at 10 GB/s, a copy 20 us "
        "plus its bytes at 6 GB/s. Methods are m-TOPO and the one that won under `auto`.",
    )


def page(rows: list[dict[str, Any]]) -> Page:
    """The page, from its rows."""
    gains = [row["gain"] for row in rows]
    return Page(
        "protocol",
        "Communication protocol (paper Table 7)",
        "PyTorch models of models/pytorch train on four simulated accelerators "
        "(docs/reference/torch_sim.md): kernels, streams, events and copies are executed and "
        "timed on a virtual clock. The models are small ([sizes](truth.md#sizes)).",
        "d",
        [table(rows)],
        f"Programs change the steps of these placements by {-max(gains):+.0%} to "
        f"{-min(gains):+.0%}.",
    )


def run() -> Page:
    """The page of Table 7."""
    return page(rows_of(list(MEDIUM.values())))
