# SPDX-License-Identifier: Apache-2.0
"""A placed model in a few lines: what a step takes, what every device does and holds."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from baechi import _core
from baechi.notebook import timeline
from baechi.pipeline import DoesNotFit, place_graph
from baechi.study import explain
from baechi.tables import Table, in_bytes, in_time

HEAD = ("device", "runs on", "operators", "busy", "peak", "capacity", "full")


def on_one_device(plan: _core.Plan) -> str:
    """Say what the step takes on the best single device of the cluster, each operator run once."""
    no_room = "does not fit without second runs" if plan.recomputed else "does not fit"
    row = next((each for each in plan.methods if each.method == "single"), None)
    if row is not None:
        return no_room if row.makespan_ns is None else in_time(row.makespan_ns)
    graph, how = plan.graph, dict[str, Any](order=plan.order)
    if plan.replicas > 1:  # of which one device needs one
        graph, how = plan.micro_batch_graph, {"micro_batches": plan.micro_batches * plan.replicas}
    try:
        single = place_graph(graph, plan.cluster, "single", bounds=False, suggest=False, **how)
    except DoesNotFit:
        return no_room
    return in_time(single.makespan_ns)


def limited_by(plan: _core.Plan) -> str:
    """Say in a clause what a step waits for most."""
    first = str(explain(plan)).split("\n", 1)[0]
    return first.partition("bound by ")[2] or first


@dataclass
class Summary:
    """The lines above and below a table of devices, the table, and when devices work."""

    above: list[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    plan: _core.Plan | None = None

    def __str__(self) -> str:
        table = [str(Table(HEAD, self.rows, left=2))] if self.rows else []
        return "\n".join([*self.above, *table, *self.below])

    def html(self) -> str:
        """Return the same as a fragment of a page, for a notebook."""
        table = Table(HEAD, self.rows).html() if self.rows else ""
        above, below = (
            "".join(f"<p>{html.escape(line)}</p>" for line in lines)
            for lines in (self.above, self.below)
        )
        picture = timeline(self.plan) if self.plan is not None else ""
        return f"<div>{above}{table}{below}{picture}</div>"


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
    replicas = f" in {plan.replicas} replicas" if plan.replicas > 1 else ""
    above = (
        f"{name} on {used} of {len(counts)} devices{replicas}: a step is predicted to take "
        f"{in_time(plan.makespan_ns)}{gap}; on one device: {alone or on_one_device(plan)}"
    )
    return Summary([above], rows, [f"limited by {limited_by(plan)}"], plan)
