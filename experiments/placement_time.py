# SPDX-License-Identifier: Apache-2.0
"""Paper Table 3: how long it takes to place a graph, beside a learning-based placer."""

from __future__ import annotations

import re
import statistics
from typing import Any

import numpy as np

import baechi
from experiments.outcome import PAPER_METHODS, Outcome, planned
from experiments.page import Column, Page, Table, count, cpu_time, milliseconds, times
from experiments.policy_gradient import (
    Integers,
    Learned,
    Learning,
    colocation_labels,
    learn,
    united,
)
from experiments.progress import each
from experiments.scopes import home
from experiments.workloads import PAPER, Workload

METHODS = (*PAPER_METHODS, "auto")
REPEATS = 3
LEARNED = (0, 2, 4, 6)  # of PAPER, the smaller batch of each graph
OURS = Learning(samples=2048)  # on the Graph Optimizer's groups, of which there are few


def by_scope(graph: baechi.Graph, workload: Workload) -> Integers:
    """Groups as earlier learners had them: a layer's step, a branch's convolution, a sublayer."""
    scope = re.compile(workload.hand.scope)
    labels = [
        (i, match.group())
        for i, name in enumerate(graph.names)
        if (match := scope.match(home(name)))
    ]
    return united(len(graph), [*colocation_labels(graph), *labels])


def by_optimizer(graph: baechi.Graph, cluster: baechi.Cluster) -> Integers:
    """Groups of the Graph Optimizer: what it fused, and what is colocated with it."""
    index = {name: i for i, name in enumerate(graph.names)}
    optimized = baechi.optimize_graph(graph, cluster)
    labels = [
        (index[name], fused)
        for fused in range(len(optimized.graph))
        for name in optimized.members(fused)
    ]
    return united(len(graph), [*colocation_labels(graph), *labels])


def placed(graph: baechi.Graph, cluster: baechi.Cluster, method: str) -> tuple[Outcome, float]:
    """What a method reaches, and the median of its CPU times to a verified plan."""
    runs = [
        planned(graph, cluster, method, bounds=False)
        for _ in range(1 if method == "auto" else REPEATS)
    ]
    return runs[0], statistics.median(run.seconds for run in runs)


def learned(
    graph: baechi.Graph, cluster: baechi.Cluster, group_of: Integers, how: Learning
) -> Learned:
    """Let the learner search."""
    capacities = np.array([device.capacity for device in cluster.devices], dtype=np.int64)
    return learn(baechi.Simulator(graph, cluster).run, group_of, capacities, how)


def placement_row(workload: Workload) -> dict[str, Any]:
    """Placement and step times of our methods."""
    graph, cluster = workload.graph(), workload.devices()
    row: dict[str, Any] = {"workload": workload.name, "operators": len(graph)}
    for method in METHODS:
        outcome, seconds = placed(graph, cluster, method)
        row |= {method: seconds, f"{method} step": outcome.step_ns}
    return row


def learner_row(
    workload: Workload, groups: str, ours: dict[str, Any], how: Learning
) -> dict[str, Any]:
    """What the learner reaches and what it takes, beside the row of our methods."""
    graph, cluster = workload.graph(), workload.devices()
    group_of = by_scope(graph, workload) if groups == "scopes" else by_optimizer(graph, cluster)
    found = learned(graph, cluster, group_of, how)
    single = planned(graph, cluster, "single", bounds=False).step_ns
    reached = {
        name: None if step is None else found.samples_until(step)
        for name, step in (("single", single), ("m-sct", ours["m-sct step"]))
    }
    return {
        "workload": workload.name,
        "groups": groups,
        "number": int(group_of.max()) + 1,
        "samples": found.samples,
        "seconds": found.seconds,
        "step": found.step_ns,
        "m-sct step": ours["m-sct step"],
        "step/m-sct": found.step_ns and found.step_ns / ours["m-sct step"],
        "time/m-sct": found.seconds / ours["m-sct"],
        "on the machine": found.sampled_ns / 1e9,
        **{f"as {name} after": at and at[0] for name, at in reached.items()},
    }


def ours_table(rows: list[dict[str, Any]]) -> Table:
    """Placement times of our methods."""
    columns = [
        Column("workload", "workload"),
        Column("operators", "operators", count),
        *(Column(method, f"{method}, placed in", cpu_time) for method in METHODS),
    ]
    notes = (
        "CPU time of one thread from the graph in memory to a plan that is optimised, placed, "
        f"expanded, simulated and verified; median of {REPEATS}, but one run of `auto`, whose "
        "budget is a fixed amount of work. The steps are on [step_time](step_time.md)."
    )
    return Table("Ours", columns, rows, notes)


def learner_table(rows: list[dict[str, Any]]) -> Table:
    """What learning takes."""
    columns = [
        Column("workload", "workload"),
        Column("groups", "groups by"),
        Column("number", "groups", count),
        Column("samples", "samples", count),
        Column("seconds", "CPU time", cpu_time),
        Column("time/m-sct", "of m-sct's time", lambda ratio: f"{ratio:,.0f}x"),
        Column("step", "best step", milliseconds, "OOM"),
        Column("m-sct step", "m-sct's", milliseconds),
        Column("step/m-sct", "step of m-sct's", times),
        Column("as single after", "samples until one device's step", count, "never"),
        Column("as m-sct after", "until m-sct's", count, "never"),
        Column("on the machine", "each sample as one real step", cpu_time),
    ]
    notes = (
        "REINFORCE with a moving baseline: one categorical distribution over the devices per "
        "group, 16 samples a batch, Adam, and an entropy bonus that falls to nothing as the "
        "learning rate does (experiments/policy_gradient.py). A sample is a run of our Execution "
        "Simulator. *scopes*: groups as the published learners had them, such as one step of one "
        "LSTM layer; *optimizer*: the Graph Optimizer's groups, which decide most of the "
        "placement already. The last column adds up the steps of all samples: the least time to "
        "measure each by one real step, as the published learners did."
    )
    return Table("A learner on the same graphs and the same simulator", columns, rows, notes)


def summary(ours: list[dict[str, Any]], learners: list[dict[str, Any]]) -> str:
    """Say how the learner compares."""
    by_scopes = [row for row in learners if row["groups"] == "scopes"]
    longer = [row["time/m-sct"] for row in by_scopes]
    worse = [row["step/m-sct"] for row in by_scopes if row["step/m-sct"]]
    slowest = max(row["m-sct"] for row in ours)
    return (
        f"m-SCT places each of these graphs in {cpu_time(slowest)} or less. On groups as the "
        f"published learners had them, the learner takes {min(longer):,.0f} to {max(longer):,.0f} "
        f"times as long, even with simulated samples, and its best step is {min(worse):.2f} to "
        f"{max(worse):.2f} times m-SCT's."
    )


def run() -> Page:
    """The page of Table 3."""
    rows = [
        placement_row(workload)
        for workload in each(PAPER, lambda workload: workload.name, of="ours")
    ]
    learners = [
        learner_row(PAPER[k], groups, rows[k], how)
        for k in each(LEARNED, lambda k: PAPER[k].name, of="learning")
        for groups, how in (("scopes", Learning()), ("optimizer", OURS))
    ]
    return Page(
        "placement_time",
        "Placement time, and a learner's beside it (paper Table 3)",
        "Placement times are measured on this machine's CPU. Step times are simulated on the "
        "paper's cluster: four devices of 8 GiB, one transfer at a time per device.",
        "a",
        [ours_table(rows), learner_table(learners)],
        summary(rows, learners),
    )
