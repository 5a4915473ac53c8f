# SPDX-License-Identifier: Apache-2.0
"""Paper Table 5: step time when memory is short; Figure 7: how full each device gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import baechi
from experiments import pytorch_models
from experiments.outcome import PAPER_METHODS, Outcome, planned, ratio, replayed
from experiments.page import Column, Page, Table, gibibytes, milliseconds, times
from experiments.progress import each
from experiments.svg import Bars, grouped_bars
from experiments.workloads import PAPER, Workload

FRACTIONS = (0.4, 0.3)
METHODS = (*PAPER_METHODS, "auto")
RECORDED = ("inception-v3, batch 32", "gnmt, batch 128", "transformer, batch 64")
FIGURE = (0, 2, 6)  # of PAPER, the smaller batch of each model


def with_capacity(cluster: baechi.Cluster, capacity: int) -> baechi.Cluster:
    """The same cluster, each device with so many bytes."""
    return cluster.with_capacities({device.name: capacity for device in cluster.devices})


def need(graph: baechi.Graph, cluster: baechi.Cluster) -> int:
    """What one device holds at its peak when it runs everything."""
    first = cluster.devices[0].name
    return baechi.simulate(graph, cluster, dict.fromkeys(graph.names, first)).peaks[first]


@dataclass(frozen=True)
class Case:
    """A workload on devices of so much memory."""

    workload: Workload
    memory: str  # in words
    graph: baechi.Graph
    cluster: baechi.Cluster
    roomy: Outcome  # auto with sufficient memory

    def outcomes(self) -> dict[str, Outcome]:
        """Place in every way; what others placed keeps its peaks even when it does not fit."""
        graph, cluster = self.graph, self.cluster
        first = cluster.devices[0].name
        result = {
            "single": replayed("single", graph, cluster, lambda: dict.fromkeys(graph.names, first)),
            "expert": replayed(
                "expert", graph, cluster, lambda: self.workload.expert_placement(graph, cluster)
            ),
        }
        return result | {method: planned(graph, cluster, method) for method in METHODS}


def cases(workloads: Sequence[Workload], *, of_memory: bool = True) -> list[Case]:
    """Every workload with parts of its devices' memory, and of what one device would need."""
    result = []
    for workload in each(workloads, lambda workload: workload.name, of="with all memory"):
        graph, cluster = workload.graph(), workload.devices()
        full = cluster.devices[0].capacity
        roomy = planned(graph, cluster, "auto", bounds=False)
        wholes = {f"of {full / 2**30:g} GiB": full} if of_memory else {}
        wholes["of the need"] = need(graph, cluster)
        for words, whole in wholes.items():
            for part in FRACTIONS:
                tight = with_capacity(cluster, int(part * whole))
                result.append(Case(workload, f"{part:.0%} {words}", graph, tight, roomy))
    return result


def row(case: Case, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Step times; None where a placement runs out of memory."""
    best = outcomes["auto"]
    return {
        "workload": case.workload.name,
        "memory": case.memory,
        "capacity": case.cluster.devices[0].capacity,
        **{name: outcome.step_ns for name, outcome in outcomes.items()},
        "auto/roomy": ratio(best, case.roomy),
        "nothing fits": "proved" if best.proved else None,
        "peaks": {name: list(outcome.peaks.values()) for name, outcome in outcomes.items()},
        "fallbacks": {name: list(o.fallbacks) for name, o in outcomes.items() if o.fallbacks},
    }


def rows_of(found: Sequence[Case], of: str) -> list[dict[str, Any]]:
    """Place every case in every way."""
    named = each(found, lambda case: f"{case.workload.name}, {case.memory}", of=of)
    return [row(case, case.outcomes()) for case in named]


def step_times(title: str, rows: list[dict[str, Any]]) -> Table:
    """The paper's Table 5."""
    names = {"single": "one device", "expert": "expert", **{m: m for m in METHODS}}
    columns = [
        Column("workload", "workload"),
        Column("memory", "each device has"),
        Column("capacity", "GiB", gibibytes),
        *(Column(key, head, milliseconds, "OOM") for key, head in names.items()),
        Column("auto/roomy", "auto / with all memory", times),
        Column("nothing fits", "that nothing fits is"),
    ]
    notes = (
        "Milliseconds per step; OOM: the method found no placement that fits. *The need* is the "
        "peak of one device that runs everything. Only the planner's methods have fall-backs; one "
        "device and the expert have none."
    )
    return Table(title, columns, rows, notes)


def fall_backs(rows: list[dict[str, Any]]) -> Table:
    """What the methods took to fit."""
    found = [
        {"where": f"{row['workload']}, {row['memory']}", "method": name, "took": ", ".join(steps)}
        for row in rows
        for name, steps in row["fallbacks"].items()
    ]
    columns = [Column("where", "workload"), Column("method", "method"), Column("took", "took")]
    return Table("What it took to fit", columns, found, "Fall-backs: docs/explanation/planner.md.")


def peaks_figure(cases_of_it: Sequence[Case], rows: Sequence[dict[str, Any]]) -> str:
    """Bars: the peak of every device, by method."""
    panels = [
        Bars(
            f"{case.workload.name} ({case.memory})",
            {name: [peak / 2**30 for peak in peaks] for name, peaks in row["peaks"].items()},
            row["capacity"] / 2**30,
        )
        for case, row in zip(cases_of_it, rows, strict=True)
    ]
    return grouped_bars(panels, "GiB at the peak")


def recorded() -> list[Table]:
    """The same for the recorded PyTorch models of the paper, and for all that were measured."""
    estimated, measured = pytorch_models.workloads()
    chosen = [w for w in estimated if w.name in RECORDED]
    tables = []
    for title, workloads in (
        ("Recorded PyTorch models, costs (a)", chosen),
        ("Recorded PyTorch models, costs (b)", measured),
    ):
        found = cases(workloads, of_memory=False)
        tables.append(step_times(title, rows_of(found, title)))
    tables[0].notes = "As above."
    tables[1].notes = "As above. Clusters and sizes: [pytorch_models.md](pytorch_models.md)."
    tables[1].raw_only = True
    return tables


def run() -> Page:
    """The page of Table 5 and Figure 7."""
    all_cases = cases(PAPER)
    rows = rows_of(all_cases, "Generated graphs, costs (a)")
    chosen = [
        i
        for i, case in enumerate(all_cases)
        if case.workload in [PAPER[k] for k in FIGURE] and case.memory.startswith("40% of 8")
    ]
    figure = peaks_figure([all_cases[i] for i in chosen], [rows[i] for i in chosen])
    caption = (
        "Figure 7: peak memory of each of the four devices. Dashed: its capacity; red: more than "
        "that"
    )
    return Page(
        "insufficient_memory",
        "Step time and peak memory when memory is short (paper Table 5, Figure 7)",
        "Step times and peaks are simulated on four devices, with one transfer at a time per "
        "device. Peaks include received copies of tensors.",
        "ab",
        [step_times("Generated graphs, costs (a)", rows), *recorded(), fall_backs(rows)],
        figures={"peaks": (caption, figure)},
    )
