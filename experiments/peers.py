# SPDX-License-Identifier: Apache-2.0
"""Side by side with what others offer, on the same graphs and in the same simulator."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import baechi
from experiments import pytorch_models
from experiments.outcome import PAPER_METHODS, Outcome, planned, ratio, replayed
from experiments.page import Column, Page, Table, count, cpu_time, gibibytes, milliseconds, times
from experiments.peer_placers import accelerate_placement, mapped_placement, require, saga_placement
from experiments.progress import each
from experiments.scopes import equal_layers
from experiments.workloads import CURRENT, PAPER, Workload

METHODS = (*PAPER_METHODS, "auto")
SAGA_OPERATORS = 2_000  # its schedulers look every task up by a scan
CHOSEN = (0, 2, 6)  # of PAPER


def on_fused(graph: baechi.Graph, cluster: baechi.Cluster, scheduler: str) -> dict[str, str]:
    """SAGA on the Graph Optimizer's graph, each original operator where its stand-in is."""
    optimized = baechi.optimize_graph(graph, cluster)
    plan = saga_placement(optimized.graph, cluster, scheduler)
    return {
        name: plan[fused] for fused in optimized.graph.names for name in optimized.members(fused)
    }


def others(workload: Workload, graph: baechi.Graph, cluster: baechi.Cluster) -> list[Outcome]:
    """What the peers reach."""
    names = [device.name for device in cluster.devices]
    result = [planned(graph, cluster, "single", bounds=False)]
    for kind in ("auto", "sequential"):
        device_map = partial(accelerate_placement, graph, cluster, workload.hand.block, kind)
        found = replayed(f'accelerate, "{kind}"', graph, cluster, device_map)
        if not found.peaks:
            found = replace(found, fallbacks=("offloads to the CPU",))
        result.append(found)
    layers = partial(equal_layers, graph, names, workload.hand.layers)
    result.append(replayed("equal layers", graph, cluster, layers))
    small = len(graph) <= SAGA_OPERATORS
    for scheduler in ("HEFT", "ETF"):
        name = f"SAGA {scheduler}" if small else f"SAGA {scheduler}, fused graph"
        place = partial(saga_placement if small else on_fused, graph, cluster, scheduler)
        result.append(replayed(name, graph, cluster, place))
    mapped = partial(mapped_placement, graph, cluster)
    result.append(replayed("Mt-KaHyPar", graph, cluster, mapped))
    return result


def rows(workload: Workload) -> list[dict[str, Any]]:
    """One row per placer."""
    graph, cluster = workload.graph(), workload.devices()
    outcomes = others(workload, graph, cluster)
    outcomes += [planned(graph, cluster, method, bounds=False) for method in METHODS]
    best = outcomes[-1]
    return [
        {
            "workload": workload.name,
            "operators": len(graph),
            "placer": outcome.method,
            "step": outcome.step_ns,
            "over auto": ratio(outcome, best),
            "peak": max(outcome.peaks.values()) if outcome.peaks else None,
            "capacity": max(device.capacity for device in cluster.devices),
            "seconds": outcome.seconds,
            "note": ", ".join(outcome.fallbacks) or None,
        }
        for outcome in outcomes
    ]


def table(title: str, workloads: Sequence[Workload]) -> Table:
    """All rows."""
    columns = [
        Column("workload", "workload"),
        Column("operators", "operators", count),
        Column("placer", "placed by"),
        Column("step", "step", milliseconds, "OOM"),
        Column("over auto", "of auto's step", times),
        Column("peak", "fullest device, GiB", gibibytes),
        Column("capacity", "of", gibibytes),
        Column("seconds", "placed in", cpu_time),
        Column("note", "took", none=""),
    ]
    found = [
        row
        for workload in each(workloads, lambda workload: workload.name, of=title)
        for row in rows(workload)
    ]
    notes = (
        "Milliseconds per step; OOM: a device holds more than it has (its peak is shown), or the "
        "placer found no placement. *Placed in* is CPU time; ours includes optimising, simulating "
        "and verifying.\n\n- *accelerate*: Hugging Face's `infer_auto_device_map` (for *auto* "
        "after `get_balanced_memory`) on a tree of modules with the graph's scopes and permanent "
        "bytes, no layer split. It sees weights, but neither activations nor time. What it "
        "offloads to the CPU counts as not fitting.\n- *equal layers*: the same number of layers "
        "on each device.\n- *SAGA*: HEFT and ETF of the package anrg-saga. They know neither "
        "memory nor queues nor colocation, so a colocation group goes where most of its work "
        "went. They scan all tasks for each task, so they get graphs of more than "
        f"{SAGA_OPERATORS:,} operators as our Graph Optimizer fused them. They break ties in the "
        "order of sets of names, so `./do experiments` sets `PYTHONHASHSEED` to 0.\n- "
        "*Mt-KaHyPar*: its mapping of a hypergraph onto a graph (`map_onto_graph`, preset "
        "`DETERMINISTIC`, one thread). Nodes are operators or colocation groups, weighted by "
        "time; hyperedges are tensors, weighted by transfer; the graph is devices and links. It "
        "balances work to 3%, and knows neither the order of operators nor memory."
    )
    return Table(title, columns, found, notes)


def summary(rows: list[dict[str, Any]]) -> Table:
    """One row per placer: how often it fits, and how far its steps are from auto's."""
    found = []
    graphs = len({row["workload"] for row in rows})
    for placer in dict.fromkeys(row["placer"].removesuffix(", fused graph") for row in rows):
        mine = [row for row in rows if row["placer"].removesuffix(", fused graph") == placer]
        over = [row["over auto"] for row in mine if row["over auto"] is not None]
        found.append(
            {
                "placer": placer,
                "fits": f"{len(over)} of {graphs}",
                "mean": statistics.geometric_mean(over),
                "least": min(over),
                "largest": max(over),
                "seconds": statistics.median(row["seconds"] for row in mine),
            }
        )
    columns = [
        Column("placer", "placed by"),
        Column("fits", "fits on"),
        Column("mean", "step over auto's, geometric mean", times),
        Column("least", "least", times),
        Column("largest", "largest", times),
        Column("seconds", "placed in, median", cpu_time),
    ]
    return Table("In short", columns, found, "Steps of what fits, over all graphs below.")


def run() -> Page:
    """The page of peers."""
    require()
    generated = table("Generated graphs, costs (a)", [*(PAPER[k] for k in CHOSEN), *CURRENT])
    measured = table("Recorded PyTorch models, costs (b)", pytorch_models.workloads()[1])
    measured.notes = (
        "As above, on four devices of 8 GiB, each a CPU core whose times were measured; sizes: "
        "[pytorch_models.md](pytorch_models.md)."
    )
    return Page(
        "peers",
        "Side by side with other placers",
        "Our Execution Simulator replays all placements, with one transfer at a time per device "
        "and received copies counted in memory. Where a placer gives no order, each device runs "
        "what becomes ready first.",
        "ab",
        [summary([*generated.rows, *measured.rows]), generated, measured],
    )
