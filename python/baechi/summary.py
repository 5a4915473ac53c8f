# SPDX-License-Identifier: Apache-2.0
"""A placed model in a few lines: what a step takes, what every device does and holds."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baechi import _core
from baechi.pipeline import DoesNotFit, place_graph
from baechi.study import explain

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = ("device", "runs on", "operators", "busy", "peak", "capacity", "full")


def in_time(nanoseconds: float) -> str:
    """Write a time with three digits: 12.3 ms."""
    return _core.time_text(round(nanoseconds))


def in_bytes(count: int) -> str:
    """Write a number of bytes with a unit: 1.50 GiB."""
    return _core.bytes_text(count)


def on_one_device(plan: _core.Plan) -> str:
    """Say what the step takes on the best single device of the cluster, each operator run once."""
    no_room = "does not fit without second runs" if plan.recomputed else "does not fit"
    row = next((each for each in plan.methods if each.method == "single"), None)
    if row is not None:
        return no_room if row.makespan_ns is None else in_time(row.makespan_ns)
    try:
        single = place_graph(
            plan.graph, plan.cluster, "single", order=plan.order, bounds=False, suggest=False
        )
    except DoesNotFit:
        return no_room
    return in_time(single.makespan_ns)


def limited_by(plan: _core.Plan) -> str:
    """Say in a clause what a step waits for most."""
    first = str(explain(plan)).split("\n", 1)[0]
    return first.partition("bound by ")[2] or first


@dataclass
class Summary:
    """The lines above a table of devices, the table, and the lines below it."""

    above: list[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        table = [HEAD, *self.rows] if self.rows else []
        widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))] if table else []
        lines = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        return "\n".join([*self.above, *lines, *self.below])

    def html(self) -> str:
        """Return the same as a fragment of a page, for a notebook."""
        cells = [
            "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
            for tag, row in [("th", HEAD), *(("td", row) for row in self.rows)]
        ]
        table = f"<table>{''.join(cells)}</table>" if self.rows else ""
        above, below = (
            "".join(f"<p>{html.escape(line)}</p>" for line in lines)
            for lines in (self.above, self.below)
        )
        return f"<div>{above}{table}{below}</div>"


def summary(
    name: str,
    plan: _core.Plan | None,
    runs_on: Mapping[str, str],
    peaks: Mapping[str, int],
    alone: str = "",
) -> Summary:
    """Describe a placed model.

    Args:
        name: Of the model.
        plan: What it runs by; None where the placement came from elsewhere.
        runs_on: The framework's device for each of the cluster's.
        peaks: The most bytes that each device holds, as whoever runs the plan foresees it; where
            it foresees nothing, the plan's own.
        alone: What `on_one_device` says, where that is known.

    """
    if plan is None:
        placed = ", ".join(f"{device} on {real}" for device, real in runs_on.items())
        return Summary([f"{name}, placed without a plan: {placed}"])
    counts = dict.fromkeys(runs_on, 0)
    for device in plan.device_of.values():
        counts[device] += 1
    used = sum(count > 0 for count in counts.values())
    peaks = {**plan.peaks, **(plan.run_peaks or {}), **peaks}
    rows: list[tuple[str, ...]] = [
        (
            device.name,
            runs_on[device.name],
            _core.count_text(counts[device.name]),
            _core.share_text(plan.busy_ns[device.name] / max(plan.makespan_ns, 1)),
            in_bytes(peaks[device.name]),
            in_bytes(device.capacity),
            _core.share_text(peaks[device.name] / device.capacity),
        )
        for device in plan.cluster.devices
    ]
    gap = "" if plan.gap is None else f", {_core.at_most_above(plan.gap, 'the best possible')}"
    above = (
        f"{name} on {used} of {len(counts)} devices: a step is predicted to take "
        f"{in_time(plan.makespan_ns)}{gap}; on one device: {alone or on_one_device(plan)}"
    )
    return Summary([above], rows, [f"limited by {limited_by(plan)}"])
