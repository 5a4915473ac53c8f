# SPDX-License-Identifier: Apache-2.0
"""Paper Figure 8: what profiles that are wrong cost, for every method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import baechi
from experiments.outcome import PAPER_METHODS
from experiments.page import Column, Page, Table, count, milliseconds
from experiments.progress import each
from experiments.svg import Axis, Box, boxes
from experiments.workloads import PAPER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.workloads import Workload

METHODS = (*PAPER_METHODS, "auto")
ERRORS = (0.1, 0.2, 0.4)
SHOWN = 0.2  # in the figure
SAMPLES = 11
CHOSEN = (0, 2, 6)  # of PAPER, the smaller batch of each model
BUDGET = 0.2  # seconds of auto's search, for each sample


def measure(workload: Workload, method: str, off_by: float, samples: int) -> dict[str, Any]:
    """Place with costs that are off, replay with the true ones; ratios are to known costs."""
    found = baechi.sensitivity(
        workload.graph(),
        workload.devices(),
        method,
        off_by=off_by,
        samples=samples,
        budget=BUDGET,
    )
    known = found["makespan"]
    steps = found["steps"]
    return {
        "workload": workload.name,
        "method": method,
        "off by": off_by,
        "known": known,
        **{key: steps[key] / known for key in steps},
        "fit": sum(sample["fits"] for sample in found["samples"]),
        "repaired": sum(sample.get("repaired", False) for sample in found["samples"]),
        "samples": samples,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """One row per workload, method and error."""
    change = {"min": "shortest", "median": "median", "upper_quartile": "upper quartile"}
    change["max"] = "longest"
    columns = [
        Column("workload", "workload"),
        Column("method", "method"),
        Column("off by", "costs off by up to", lambda part: f"{part:.0%}"),
        Column("known", "step, costs known", milliseconds),
        *(Column(key, title, lambda r: f"{r - 1:+.1%}") for key, title in change.items()),
        Column("fit", "fit", count),
        Column("repaired", "after repair", count),
    ]
    notes = (
        "Every compute time and every tensor size is off by a factor of its own, uniform within "
        f"the range; {SAMPLES} wrong profiles each. The plan made with the wrong costs is "
        "replayed with the true ones; the change is against the same method's step time when "
        f"costs are known. `auto` has {BUDGET:g} s for its search, also with known costs; on other "
        "pages it has more."
    )
    return Table("Step times with wrong profiles", columns, rows, notes)


def figure(rows: Sequence[dict[str, Any]], off_by: float) -> str:
    """Boxes: one panel per workload, one box per method."""
    keys = ("min", "lower_quartile", "median", "upper_quartile", "max")
    panels: dict[str, list[Box]] = {}
    for row in rows:
        if row["off by"] == off_by:
            box = Box(row["method"], *(row[key] for key in keys))
            panels.setdefault(row["workload"], []).append(box)
    found = [box for panel in panels.values() for box in panel]
    low, high = min(box.least for box in found), max(box.largest for box in found)
    y = Axis(0.95 * low, 1.05 * high, title="step time / with costs known")
    return boxes(panels, y)


def summary(rows: list[dict[str, Any]]) -> str:
    """Say how much longer steps get, by the size of the error."""
    parts = []
    for off_by in ERRORS:
        medians = [row["median"] - 1 for row in rows if row["off by"] == off_by]
        longest = max(row["max"] - 1 for row in rows if row["off by"] == off_by)
        parts.append(f"{off_by:.0%}: {min(medians):+.1%} to {max(medians):+.1%} ({longest:+.1%})")
    return (
        "The median change of the step time over all models and methods, and the longest of all "
        f"samples in brackets, when costs are off by up to {'; '.join(parts)}. Where it does not "
        "grow with the error, what costs is not the error but that another profile makes another "
        "cut: the Graph Optimizer's result depends on luck (docs/reference/limits.md)."
    )


def run() -> Page:
    """The page of Figure 8."""
    rows = [
        measure(PAPER[k], method, off_by, SAMPLES)
        for k in each(CHOSEN, lambda k: PAPER[k].name)
        for method in METHODS
        for off_by in ERRORS
    ]
    caption = (
        f"Figure 8: step time when every cost is off by up to {SHOWN:.0%}, over the step "
        "time with known costs; least, quartiles, largest"
    )
    return Page(
        "sensitivity",
        "Sensitivity to profiling errors (paper Figure 8)",
        "Step times are simulated by the Execution Simulator on the paper's cluster. Nothing was "
        "run on accelerators.",
        "a",
        [table(rows)],
        summary(rows),
        figures={"boxes": (caption, figure(rows, SHOWN))},
    )
