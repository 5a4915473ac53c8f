# SPDX-License-Identifier: Apache-2.0
"""Is the prediction true of what users call? `place` with its defaults, and the modes it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import baechi.torch

from experiments.page import Column, Table, milliseconds, nanoseconds, percent
from experiments.placed_step import Machine, trained_step
from experiments.progress import each
from models.pytorch import loss_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.torch_workloads import TorchWorkload

DEVICES = (2, 4)
MODES = ("auto", "streams", "streams+order")


def _costs(workload: TorchWorkload, machine: Machine) -> baechi.torch.Costs:
    with machine.running(1):
        model, inputs = workload.model().to("sim:0"), workload.inputs("sim:0")
        return baechi.torch.measure(model, inputs, repeats=1, warm_up=0, loss=loss_of)


def _run(
    workload: TorchWorkload, machine: Machine, devices: int, costs: baechi.torch.Costs, mode: str
) -> dict[str, Any]:
    """Place a model and train it: what was predicted and what it takes."""
    with machine.running(devices):
        model, inputs = workload.model(), workload.inputs()
        placed = baechi.torch.place(
            model,
            inputs,
            machine.cluster(devices),
            loss=loss_of,
            costs=costs,
            optimizer="none",
            mode=mode,
        )
        try:
            for _ in range(2):  # the first does not count
                step = trained_step(model, inputs, machine.clock, devices)
        finally:
            placed.restore()
    assert placed.plan is not None
    return {
        "mode": placed.mode,
        "tier": placed.tier,
        "predicted": placed.plan.makespan_ns,
        "measured": nanoseconds(step.total),
    }


def row(workload: TorchWorkload, machine: Machine, devices: int, costs: Any) -> dict[str, Any]:
    """The default beside the modes that can be asked for."""
    by_default = _run(workload, machine, devices, costs, "auto")
    found = {"workload": workload.name, "sizes": workload.sizes(), "devices": devices, **by_default}
    found["error"] = found["predicted"] / found["measured"] - 1
    for mode in MODES[1:]:
        same = by_default["mode"] == mode
        asked = by_default if same else _run(workload, machine, devices, costs, mode)
        found |= {f"{mode} {figure}": asked[figure] for figure in ("predicted", "measured")}
    fastest = min(found[f"{mode} measured"] for mode in MODES[1:])
    return found | {"behind": found["measured"] / fastest - 1}


def rows_of(workloads: Sequence[TorchWorkload], machine: Machine) -> list[dict[str, Any]]:
    """All models on all numbers of devices."""
    rows = []
    for workload in each(workloads, lambda workload: workload.name, of="by default"):
        costs = _costs(workload, machine)
        rows += [row(workload, machine, devices, costs) for devices in DEVICES]
    return rows


def by_default(rows: list[dict[str, Any]]) -> Table:
    """Predictions and measurements of the default call."""
    return Table(
        "Virtual clock, `place` as it is called by default",
        [
            Column("workload", "model"),
            Column("devices", "devices"),
            Column("mode", "mode taken"),
            Column("tier", "tier"),
            Column("predicted", "predicted", milliseconds),
            Column("measured", "measured", milliseconds),
            Column("error", "error", percent),
            *(
                Column(f"{mode} {figure}", f"{mode}: {figure}", milliseconds)
                for mode in MODES[1:]
                for figure in ("predicted", "measured")
            ),
            Column("behind", "longer than the faster mode", percent),
        ],
        rows,
        "Milliseconds. `place` with nothing but the model, its inputs, the cluster, the loss and "
        "measured costs; beside it what `mode` can ask for, each with a plan of its own.",
    )
