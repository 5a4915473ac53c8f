# SPDX-License-Identifier: Apache-2.0
"""Steps over memory with operators that run a second time, and how near that is to the best."""

from __future__ import annotations

import functools
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import baechi
from experiments import pytorch_models, stacks
from experiments.insufficient_memory import need, with_capacity
from experiments.page import Column, Page, Table, count, cpu_time, milliseconds, percent, times
from experiments.progress import each
from experiments.second_runs import SecondRuns, repeatable

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.workloads import Workload

DEVICES = (1, 2, 4)
PARTS = (1.0, 0.6, 0.4, 0.3, 0.2)  # of one device's need, for each device
LINK = "10us,12GB/s"
MOST = 2_000  # operators: larger graphs only at 30% on four devices
RANDOM_OR_STATE = ("dropout", "batchnorm", "rand", "bernoulli")
SMALL = range(1, 13)  # seeds of small graphs
SMALL_PARTS = (0.8, 0.65, 0.5)
CHOSEN = {
    "inception-v3, batch 32": "Inception-V3, batch 32",
    "unet, batch 4": "U-Net, batch 4",
    "transformer, batch 64": "Transformer, batch 64",
    "llama, batch 1": "Llama, batch 1",
    "mixtral, batch 1": "Mixtral, batch 1",
    "vit, batch 32": "ViT, batch 32",
    "gnmt, batch 128": "GNMT, batch 128",
    "two-tower, batch 64": "two-tower, batch 64",
}


def marked(graph: baechi.Graph) -> baechi.Graph:
    """Mark by kind what must not run again; the recorded graphs are older than these marks."""
    arrays = baechi.graph_to_arrays(graph)
    kinds = [graph[name].kind.lower() for name in graph.names]
    arrays["recompute"] = np.array([not any(k in kind for k in RANDOM_OR_STATE) for kind in kinds])
    return baechi.graph_from_arrays(graph.names, name=graph.name, **arrays)


def recorded(workload: Workload) -> baechi.Graph:
    """Read one of them."""
    return marked(workload.graph())


def models() -> dict[str, Callable[[], baechi.Graph]]:
    """Graphs by name, each made when it is needed."""
    workloads, _ = pytorch_models.workloads()
    found: dict[str, Callable[[], baechi.Graph]] = {
        CHOSEN[w.name]: functools.partial(recorded, w) for w in workloads if w.name in CHOSEN
    }
    found["GPT-2 medium, batch 8"] = lambda: stacks.gpt2_medium(8, "a100")
    return found


def devices_for(graph: baechi.Graph, number: int) -> baechi.Cluster:
    """So many equal devices of the kind that the graph has costs for."""
    kinds = sorted({kind for name in graph.names for kind in graph[name].times} - {"*"})
    return baechi.Cluster(f"{number}x{kinds[0] if kinds else 'gpu'}:1TiB", link=LINK)


def placed(graph: baechi.Graph, cluster: baechi.Cluster, recompute: Any) -> dict[str, Any]:
    """One plan: its step, how many operators run again, the CPU time of planning."""
    start = time.process_time()
    try:
        plan = baechi.place_graph(
            graph, cluster, recompute=recompute, suggest=False, bounds=recompute == "auto"
        )
    except baechi.DoesNotFit as answer:
        return {"step": None, "seconds": time.process_time() - start, "proved": answer.proved}
    seconds = time.process_time() - start
    bound = max(plan.bounds.values()) if plan.bounds else None
    return {
        "step": plan.makespan_ns,
        "again": len(plan.recomputed),
        "seconds": seconds,
        "bound": bound,
        "right": not baechi.verify(plan),
        "proved": False,
    }


def point(name: str, graph: baechi.Graph, whole: int, devices: int, part: float) -> dict[str, Any]:
    """All ways on one cluster."""
    cluster = with_capacity(devices_for(graph, devices), int(part * whole))
    none, auto = placed(graph, cluster, "none"), placed(graph, cluster, "auto")
    every = placed(graph, cluster, "all")
    try:
        root = placed(SecondRuns(graph).every_root(), cluster, "none")
    except baechi.InputError:  # it would wait for itself: not every set makes a graph
        root = {"step": None}
    return {
        "model": name,
        "devices": devices,
        "part": part,
        "none": none["step"],
        "auto": auto["step"],
        "all": every["step"],
        "root": root["step"],
        "again": auto.get("again"),
        "seconds_none": none["seconds"],
        "seconds_auto": auto["seconds"],
        "right": auto.get("right"),
        "nothing": "proved" if auto["proved"] else None,
        "gain": none["step"] / auto["step"] if none["step"] and auto["step"] else None,
    }


def curves() -> list[dict[str, Any]]:
    """Steps over memory."""
    rows = []
    for name, make in each(list(models().items()), lambda entry: entry[0], of="models"):
        graph = make()
        whole = need(graph, devices_for(graph, 1))
        for devices in DEVICES:
            for part in PARTS:
                if len(graph.names) <= MOST or (devices, part) in ((4, 1.0), (4, 0.3)):
                    rows.append(point(name, graph, whole, devices, part))
    return rows


def small_graph(seed: int, *, chain: bool) -> baechi.Graph:
    """A training step of eight operators behind an input, with drawn times and sizes."""
    rng = random.Random(seed)
    builder = baechi.GraphBuilder(f"small {seed}")
    builder.add("x", {"gpu": 0}, outputs=[1_000])
    reads: dict[int, list[int]] = {}
    layers = 8
    for i in range(1, layers + 1):
        reads[i] = [i - 1]
        if not chain and i > 1 and rng.random() < 0.5:
            reads[i].append(rng.randrange(i - 1))
        builder.add(
            f"f{i}",
            {"gpu": rng.randint(1_000, 20_000)},
            outputs=[rng.randint(1_000, 30_000)],
            inputs=[(f"f{j}" if j else "x", 0) for j in reads[i]],
        )
    gradients: dict[int, list[tuple[str, int]]] = {i: [] for i in range(layers + 1)}
    for i in range(layers, 0, -1):
        wanted = [j for j in reads[i] if j > 0]
        inputs = [(f"f{j}" if j else "x", 0) for j in reads[i]] + gradients[i]
        builder.add(
            f"b{i}",
            {"gpu": rng.randint(1_000, 20_000)},
            outputs=[rng.randint(100, 3_000) for _ in wanted],
            inputs=inputs + ([(f"f{i}", 0)] if i == layers else []),
            forward=f"f{i}",
        )
        for port, j in enumerate(wanted):
            gradients[j].append((f"b{i}", port))
    return builder.build()


def exhaustive(graph: baechi.Graph, cluster: baechi.Cluster) -> int | None:
    """Return the shortest step of all sets of second runs, in the order of the graph."""
    steps = []
    for choice in SecondRuns(graph).every_choice():
        plan = baechi.simulate(
            choice, cluster, dict.fromkeys(choice.names, "gpu:0"), order="program"
        )
        if plan.fits:
            steps.append(plan.makespan_ns)
    return min(steps, default=None)


def optima() -> list[dict[str, Any]]:
    """Compare `auto` with every choice on small graphs."""
    rows = []
    cases = [(chain, seed) for chain in (True, False) for seed in SMALL]
    for chain, seed in each(cases, str, of="small graphs"):
        graph = small_graph(seed, chain=chain)
        whole = need(graph, baechi.Cluster("1x1GiB"))
        for part in SMALL_PARTS:
            cluster = with_capacity(baechi.Cluster("1x1GiB"), int(part * whole))
            best, found = exhaustive(graph, cluster), placed(graph, cluster, "auto")["step"]
            rows.append(
                {
                    "shape": "chains" if chain else "branches",
                    "choices": 2 ** len(repeatable(graph)),
                    "part": part,
                    "best": best,
                    "auto": found,
                    "gap": found / best - 1 if best and found else None,
                    "missed": bool(best) and not found,
                }
            )
    return rows


def optimality(rows: list[dict[str, Any]]) -> Table:
    """Sum up by shape and memory."""
    found = []
    for shape in ("chains", "branches"):
        for part in SMALL_PARTS:
            some = [row for row in rows if row["shape"] == shape and row["part"] == part]
            gaps = [row["gap"] for row in some if row["gap"] is not None]
            found.append(
                {
                    "shape": shape,
                    "part": part,
                    "instances": len(some),
                    "fits": sum(row["best"] is not None for row in some),
                    "missed": sum(row["missed"] for row in some),
                    "mean": statistics.mean(gaps) if gaps else None,
                    "worst": max(gaps, default=None),
                }
            )
    columns = [
        Column("shape", "graphs"),
        Column("part", "memory", percent),
        Column("instances", "instances", count),
        Column("fits", "some choice fits", count),
        Column("missed", "`auto` finds none", count),
        Column("mean", "mean gap", percent),
        Column("worst", "largest gap", percent),
    ]
    return Table(
        "Small graphs: every choice tried",
        columns,
        found,
        "Eight operators of the forward pass on one device with parts of what it needs, 256 sets "
        "of second runs at most, each replayed in the order of the file. The graphs with second "
        "runs are made by code of their own (`experiments/second_runs.py`).",
    )


def curve_table(rows: list[dict[str, Any]]) -> Table:
    """Steps over memory."""
    columns = [
        Column("model", "model"),
        Column("devices", "devices", count),
        Column("part", "each has", percent),
        Column("none", "none", milliseconds, "does not fit"),
        Column("auto", "auto", milliseconds, "does not fit"),
        Column("all", "all", milliseconds, "does not fit"),
        Column("root", "every sqrt(n)-th kept", milliseconds, "does not fit"),
        Column("gain", "none / auto", times),
        Column("again", "run again", count),
        Column("seconds_none", "planning none", cpu_time),
        Column("seconds_auto", "planning auto", cpu_time),
        Column("nothing", "that nothing fits is"),
    ]
    notes = (
        "Milliseconds per step. *Each has*: so much of what one device needs that runs everything. "
        "*Every sqrt(n)-th kept*: of the n operators that may run again, in the order of the file, "
        "all others do; placed by `auto` without a choice. Planning is CPU time, for `auto` with "
        f"its bounds. Links: {LINK}."
    )
    return Table("Step over memory", columns, rows, notes)


def met(yes: bool) -> str:
    """In a word."""
    return "met" if yes else "not met"


def goals(rows: list[dict[str, Any]], small: list[dict[str, Any]]) -> Table:
    """What was to be reached."""
    tight = [r for r in rows if r["devices"] == 4 and r["part"] == 0.3]
    fits = [r for r in tight if r["auto"] is not None]
    proved = [r["model"] for r in tight if r["nothing"] == "proved"]
    inception = {
        r["part"]: r["auto"]
        for r in rows
        if r["model"].startswith("Inception") and r["devices"] == 4
    }
    gaps = [r["gap"] for r in small if r["gap"] is not None]
    longer = [r for r in rows if r["none"] and (r["auto"] is None or r["auto"] > r["none"])]
    slowest = max(r["seconds_auto"] for r in rows)
    ratio = inception[0.3] / inception[1.0]
    found = [
        {
            "goal": "a plan at 30% on four devices for all models",
            "found": f"{len(fits)} of {len(tight)}"
            + (f"; proved that nothing fits: {', '.join(proved)}" if proved else ""),
            "met": met(len(fits) == len(tight)),
        },
        {
            "goal": "Inception-V3 on four devices at 30% at most 1.25x its step at 100%",
            "found": times(ratio),
            "met": met(ratio <= 1.25),
        },
        {
            "goal": "planning within the budget of 1 s",
            "found": f"{cpu_time(slowest)} of CPU at most",
            "met": met(slowest <= 1),
        },
        {
            "goal": "mean gap to the best choice at most 5%",
            "found": percent(statistics.mean(gaps)),
            "met": met(statistics.mean(gaps) <= 0.05),
        },
        {
            "goal": "never longer than without second runs, never a plan over a capacity",
            "found": f"{len(longer)} longer, {sum(r['right'] is False for r in rows)} wrong",
            "met": met(not longer and all(r["right"] is not False for r in rows)),
        },
    ]
    columns = [Column("goal", "goal"), Column("found", "found"), Column("met", "")]
    return Table("Goals", columns, found)


def run() -> Page:
    """The page."""
    small = optima()
    rows = curves()
    return Page(
        "recompute",
        "Recomputation: step over memory",
        "Step times and peaks are simulated, and every plan is verified. Nothing was run: the "
        "models' graphs were recorded from PyTorch (pytorch_models.md) or made by "
        "`experiments/stacks.py`.",
        "a",
        [goals(rows, small), curve_table(rows), optimality(small)],
    )
