# SPDX-License-Identifier: Apache-2.0
"""Hold ``auto`` made for one order of the executor against ``auto`` made for the others.

``./do experiments orders --graphs FOLDER`` writes docs/lab/results/orders.md; FOLDER is as
planner_results.py says.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import baechi
from experiments.page import in_words, machine, milliseconds, percent
from experiments.planner_results import instances

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Order: TypeAlias = Literal["planned", "program", "none"]
ORDERS: tuple[Order, ...] = ("planned", "program", "none")
BUDGET = 1.0
TOLERANCE = 0.01  # by which a plan may lose to one that was made for another order
LINK = "5us,50GB/s"
# Beside the instances of `auto`: several devices without queues, training, fast links.
GENERATED: list[tuple[str, dict[str, Any], str, baechi.Cluster]] = [
    ("inception-v3", {}, "4x8GiB", baechi.Cluster("4x8GiB")),
    ("inception-v3", {}, "2x8GiB, 50us,6GB/s", baechi.Cluster("2x8GiB", link="50us,6GB/s")),
    ("gnmt", {}, "4x8GiB", baechi.Cluster("4x8GiB")),
    ("transformer", {}, "4x8GiB", baechi.Cluster("4x8GiB")),
    ("moe", {"training": True}, "8x140GiB", baechi.Cluster("8x140GiB")),
    ("unet", {"training": True}, f"4x8GiB, {LINK}", baechi.Cluster("4x8GiB", link=LINK)),
    ("two-tower", {"training": True}, "4x16GiB", baechi.Cluster("4x16GiB")),
    ("llama", {"training": True}, "4x80GiB", baechi.Cluster("4x80GiB")),
    ("layered", {"operators": 400, "seed": 3}, "4x8GiB", baechi.Cluster("4x8GiB")),
    (
        "layered",
        {"operators": 400, "seed": 3},
        f"4x8GiB, {LINK}, duplex",
        baechi.Cluster("4x8GiB", link=LINK, communication="duplex"),
    ),
]

HEAD = f"""# Plans for the order of the executor

`auto` with a budget of {BUDGET:g} s, made for each of the three
[orders](../../explanation/planner.md#the-order-of-the-executor), and each plan replayed in all of
them. Predicted steps in milliseconds. The first 47 instances are those of [auto](auto.md); the
others are generated, with the clusters that are named and parallel transfers unless it says
otherwise.

{in_words(machine())}; costs are (a) or those of the instances;
`./do experiments orders --graphs FOLDER`.
"""


@dataclass
class Row:
    """One graph on one cluster."""

    graph: str
    cluster: str
    # By the order that the plan was made for and that it runs in; absent: it does not fit so.
    steps: dict[tuple[Order, Order], int] = field(default_factory=dict)

    def own(self, order: Order) -> int:
        """The step of the plan that was made for the order, in it."""
        return self.steps[order, order]

    def ratios(self, order: Order, made_for: Order | None = None) -> list[float]:
        """Over the plans that were made for another order, or that one: own / theirs, in it."""
        others = [each for each in ORDERS if each != order and made_for in (None, each)]
        found = [self.steps.get((other, order)) for other in others]
        return [self.own(order) / step for step in found if step is not None]


def all_instances(folder: Path) -> Iterator[tuple[str, baechi.Graph, str, baechi.Cluster]]:
    """Name, graph, cluster's name and cluster."""
    yield from instances(folder)
    for model, options, where, cluster in GENERATED:
        given = [key if value is True else f"{key} {value}" for key, value in options.items()]
        yield " ".join([model, *given]), baechi.generate(model, **options), where, cluster


def measure(graph: baechi.Graph, cluster: baechi.Cluster, row: Row) -> None:
    """Plan for every order, and replay in every order."""
    for made_for in ORDERS:
        plan = baechi.place_graph(
            graph, cluster, "auto", budget=BUDGET, order=made_for, bounds=False, suggest=False
        )
        for order in ORDERS:
            run = plan if order == made_for else plan.with_order(order)
            if run.fits:
                row.steps[made_for, order] = run.makespan_ns


def mean(ratios: list[float]) -> float:
    """Geometric."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def summary(rows: list[Row]) -> str:
    """Say, by order, how plans made for it compare with those made for another."""
    lines = [
        "| runs in | against the plan made for | instances | differ | geometric mean of those "
        f"| worst | best | worse by more than {TOLERANCE:.0%} |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for order in ORDERS:
        for other in ORDERS:
            if other == order:
                continue
            ratios = [ratio for row in rows for ratio in row.ratios(order, other)]
            differ = [ratio for ratio in ratios if ratio != 1]
            worse = sum(ratio > 1 + TOLERANCE for ratio in ratios)
            figures = [f"{of(differ):.3f}" if differ else "-" for of in (mean, max, min)]
            cells = [order, other, len(ratios), len(differ), *figures, worse]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return (
        "A ratio is the step of the plan that was made for the order it runs in, over that of the "
        "plan that was made for another one and runs in the same; below 1 it is shorter.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def exceptions(rows: list[Row]) -> str:
    """Say which plans lose to one that was made for another order by more than is allowed."""
    found = [
        f"{row.graph} ({row.cluster}), {order}: {max(row.ratios(order)) - 1:.1%}"
        for row in rows
        for order in ORDERS
        if max(row.ratios(order), default=1.0) > 1 + TOLERANCE
    ]
    return f"Longer by more than {TOLERANCE:.0%}: {'; '.join(found) or 'none'}.\n"


def table(rows: list[Row]) -> str:
    """Every instance, a column per replay; what is worse by more than allowed is said."""
    names = [f"{order}: {made}" for order in ORDERS for made in ORDERS]
    lines = [
        "Columns are named by the order that the plan runs in, then the one that it was made for; "
        "`oom`: there is not enough memory in that order.\n",
        f"| graph | cluster | {' | '.join(names)} | worst |",
        "| --- | --- |" + " ---: |" * (len(names) + 1),
    ]
    for row in rows:
        cells = []
        for order in ORDERS:
            for made in ORDERS:
                step = row.steps.get((made, order))
                text = "oom" if step is None else milliseconds(step)
                cells.append(f"**{text}**" if made == order else text)
        worst = max((ratio for order in ORDERS for ratio in row.ratios(order)), default=1.0)
        cells.append(percent(worst - 1))
        lines.append(f"| {row.graph} | {row.cluster} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(folder: Path) -> str:
    """Return the page's text."""
    rows: list[Row] = []
    for name, graph, where, cluster in all_instances(folder):
        rows.append(Row(name, where))
        measure(graph, cluster, rows[-1])
        worst = max((ratio for order in ORDERS for ratio in rows[-1].ratios(order)), default=1.0)
        print(f"{name}, {where}: worst {worst:.3f}", file=sys.stderr, flush=True)
    return "\n".join([HEAD, summary(rows), exceptions(rows), table(rows)])
