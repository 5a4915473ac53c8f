# SPDX-License-Identifier: Apache-2.0
"""Paper Table 8: what the communication protocol brings to a placed PyTorch model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.page import Column, Page, Table, milliseconds, nanoseconds, percent
from experiments.placed_step import Machine, Placement, record
from experiments.progress import each
from experiments.svg import Bars, grouped_bars
from experiments.torch_workloads import MEDIUM, MODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.torch_workloads import TorchWorkload

MACHINE = Machine("20us,6GB/s", "20us", "10GB/s")
PLACEMENTS = {"auto": tuple(MODES), "m-topo": ("plain", "streams")}
FREE = replace(MACHINE, link="0us,1000GB/s")  # as good as no copies at all


def hidden(plain: float, found: float, free: float) -> float | None:
    """Return the share of what copies cost that is no longer waited for."""
    return None if plain - free < 0.001 * free else (plain - found) / (plain - free)


def row(placement: Placement, modes: Sequence[str]) -> dict[str, Any]:
    """Forward and backward of one placement in several modes."""
    free = Placement(placement.recorded, FREE, placement.plan).run()
    result: dict[str, Any] = {
        "workload": placement.recorded.workload.name,
        "sizes": placement.recorded.workload.sizes(),
        "method": placement.plan.method,
        "transfers": len(placement.plan.transfers),
        "predicted": placement.plan.makespan_ns,
        "free": nanoseconds(free.total),
    }
    plain = None
    for name in modes:
        mode, tier = MODES[name]
        step = placement.run(mode, tier=tier)
        plain = plain or step
        result[f"{name} forward"] = nanoseconds(step.forward)
        result[f"{name} backward"] = nanoseconds(step.total - step.forward)
        result[name] = nanoseconds(step.total)
        if step is plain:
            continue
        result[f"{name} gain"] = 1 - step.total / plain.total
        result[f"{name} hidden forward"] = hidden(plain.forward, step.forward, free.forward)
        result[f"{name} hidden backward"] = hidden(
            plain.total - plain.forward, step.total - step.forward, free.total - free.forward
        )
    return result


def rows_of(workloads: Sequence[TorchWorkload]) -> list[dict[str, Any]]:
    """Run the placements of some models that send anything."""
    rows = []
    for workload in each(workloads, lambda workload: workload.name):
        recorded = record(workload, MACHINE)
        for method, modes in PLACEMENTS.items():
            placement = Placement.planned(recorded, MACHINE, 4, method, bounds=False)
            if placement.plan.transfers:
                rows.append(row(placement, modes))
    return rows


NAMED = [Column("workload", "model"), Column("method", "method")]


def step_times(rows: list[dict[str, Any]]) -> Table:
    """Step times by mode."""
    better = [name for name in MODES if name != "plain"]
    return Table(
        "Step time",
        [
            *NAMED,
            Column("transfers", "tensors sent"),
            *(Column(name, name, milliseconds) for name in MODES),
            Column("free", "streams, copies free", milliseconds),
            Column("predicted", "predicted by the plan", milliseconds),
            *(Column(f"{name} gain", f"{name}: shorter by", percent) for name in better),
        ],
        rows,
        "Milliseconds. *Copies free* is the same placement with links that take no time. A "
        "kernel takes 20 us plus what it reads and writes at 10 GB/s, a copy 20 us plus its "
        "bytes at 6 GB/s. *Graph* is tier 2 of docs/explanation/pytorch_runtime.md, in the "
        "order of the program; *streams+order* is in the order of the plan. The method is the one "
        "that won under `auto`, and m-TOPO.",
    )


def halves(rows: list[dict[str, Any]]) -> Table:
    """How much of the copies' cost is hidden, in the forward and in the backward."""
    return Table(
        "Forward and backward",
        [
            *NAMED,
            *(
                Column(f"{name} {part}", f"{part}, {name}", milliseconds)
                for part in ("forward", "backward")
                for name in MODES
            ),
            *(
                Column(f"streams hidden {part}", f"streams hides, {part}", percent)
                for part in ("forward", "backward")
            ),
        ],
        rows,
        "*Hides*: of what copies cost with `plain`, over free ones, the share that is no "
        "longer waited for.",
    )


def figure(rows: list[dict[str, Any]]) -> str:
    """Draw the step time in every mode, as a part of the one with `plain`."""
    panels = [
        Bars(
            row["workload"],
            {name: [100 * row[name] / row["plain"]] for name in MODES},
            100.0,
            may_exceed=True,
        )
        for row in rows
        if all(name in row for name in MODES)
    ]
    return grouped_bars(panels, "step time, plain = 100")


def page(rows: list[dict[str, Any]]) -> Page:
    """The page, from its rows."""
    spread = [row for row in rows if "streams+order gain" in row]
    beyond = {row["workload"]: 1 - row["streams+order"] / row["streams"] for row in spread}
    best, worst = max(beyond, key=beyond.__getitem__), min(beyond, key=beyond.__getitem__)
    hidden_parts = [row["streams hidden backward"] for row in spread]
    least, most = min(hidden_parts), max(hidden_parts)
    later = {row["workload"]: row["streams, graph"] / row["streams"] - 1 for row in spread}
    *others, slowest = sorted(later, key=later.__getitem__)
    next_slowest = max((later[name] for name in others), default=0.0)
    hides = {row["workload"]: row["streams, graph hidden backward"] for row in spread}[slowest]
    return Page(
        "protocol",
        "Communication protocol (paper Table 8)",
        "PyTorch models of models/pytorch train on four simulated accelerators "
        "(docs/reference/torch_sim.md): kernels, streams, events and copies are executed; their "
        "virtual clock counts what they take. The models are small; their sizes are at the end.",
        "d",
        [step_times(rows), halves(rows)],
        f"Streams hide {least:.0%} to {most:.0%} of what copies cost in the backward of the "
        "placements that `auto` finds. Running in the order of the plan as well makes a step up to "
        f"{beyond[best]:.0%} shorter than streams alone ({best}), and at worst "
        f"{-beyond[worst]:.0%} longer ({worst}); m-TOPO cuts the models in a few places and has "
        "little to gain. *Streams* alone is tier 1. A step of the graph of tier 2 in the "
        "order of the program is "
        f"{later[slowest]:.0%} longer on {slowest}, where it hides {hides:.0%} in the backward, "
        f"and at most {next_slowest:.1%} longer on the others.",
        {"modes": ("Step time by mode, placements of auto on four devices", figure(rows))},
        sizes="What is not as in docs/lab/models.md.",
    )


def run() -> Page:
    """The page of Table 8."""
    return page(rows_of(list(MEDIUM.values())))
