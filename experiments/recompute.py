# SPDX-License-Identifier: Apache-2.0
"""Steps over memory with operators that run a second time, and how near that is to the best."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

import baechi
from experiments import pytorch_models, stacks
from experiments.insufficient_memory import need, with_capacity
from experiments.outcome import ratio
from experiments.page import Column, Page, Table, count, cpu_time, milliseconds, percent, times
from experiments.progress import each
from experiments.recompute_small import again, optima, optimality
from experiments.second_runs import SecondRuns
from experiments.workloads import Workload

DEVICES = (1, 2, 4)
PARTS = (1.0, 0.6, 0.4, 0.3, 0.2)  # of one device's need, for each device
LINK = "10us,12GB/s"
RANDOM_OR_STATE = ("dropout", "batchnorm", "rand", "bernoulli")
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


def point(name: str, graph: baechi.Graph, whole: int, devices: int, part: float) -> dict[str, Any]:
    """All ways on one cluster."""
    cluster = with_capacity(devices_for(graph, devices), int(part * whole))
    none, auto = again(graph, cluster, "none"), again(graph, cluster)
    every = again(graph, cluster, "all")
    try:
        root = again(SecondRuns(graph).every_root(), cluster, "none").step_ns
    except baechi.InputError:  # it would wait for itself: not every set makes a graph
        root = None
    return {
        "model": name,
        "devices": devices,
        "part": part,
        "none": none.step_ns,
        "auto": auto.step_ns,
        "all": every.step_ns,
        "root": root,
        "again": len(auto.plan.recomputed) if auto.plan else None,
        "seconds_none": none.seconds,
        "seconds_auto": auto.seconds,
        "right": not baechi.verify(auto.plan) if auto.plan else None,
        "nothing": "proved" if auto.proved else None,
        "gain": ratio(none, auto),
    }


def curve(job: tuple[str, int]) -> list[dict[str, Any]]:
    """Steps over memory of a model on so many devices."""
    name, devices = job
    graph = models()[name]()
    whole = need(graph, devices_for(graph, 1))
    return [point(name, graph, whole, devices, part) for part in PARTS]


def curves(names: Sequence[str]) -> list[dict[str, Any]]:
    """Steps over memory, in as many processes as there are cores: times are processor time."""
    jobs = [(name, devices) for name in names for devices in DEVICES]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        found = pool.map(curve, jobs)
        return [row for _ in each(jobs, str, of="models") for row in next(found)]


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
        "Milliseconds per step. *Each has* is a share of the peak of one device that runs "
        "everything. *Every sqrt(n)-th kept*: of the n operators that may run again, in the order "
        "of the file, every sqrt(n)-th is kept and all others run again; `auto` only places. "
        f"Planning is CPU time, for `auto` with its bounds. Links: {LINK}."
    )
    return Table("Step over memory", columns, rows, notes)


def summary(rows: list[dict[str, Any]], small: list[dict[str, Any]]) -> str:
    """Say what second runs bring."""
    fit = [row for row in rows if row["auto"] is not None]
    alone = sum(row["none"] is None for row in fit)
    longer = sum(r["none"] is not None and (r["auto"] or math.inf) > r["none"] for r in rows)
    missed = sum(r["auto"] is None and (r["all"] or r["root"]) is not None for r in rows)
    assert all(row["right"] for row in fit), "every plan keeps every rule"
    gaps = [(r["mean"], r["fits"] - r["missed"]) for r in small if r["mean"] is not None]
    gap = sum(mean * number for mean, number in gaps) / sum(number for _, number in gaps)
    slowest = max(rows, key=lambda row: row["seconds_auto"])
    return (
        f"`auto` fits in {len(fit)} rows, {alone} of which do not fit when each operator runs "
        f"once. Its step is longer than that in {longer} rows. In {missed} of the others it finds "
        "nothing where every sqrt(n)-th kept fits. On small graphs it is on average "
        f"{percent(gap)} above the best of all choices. It plans for "
        f"{cpu_time(slowest['seconds_auto'])} at most ({slowest['model']})."
    )


def run() -> Page:
    """The page."""
    rows, small = curves(list(models())), optima()
    return Page(
        "recompute",
        "Recomputation: step over memory",
        "Step times and peaks are simulated, and every plan is verified. The graphs were recorded "
        "from PyTorch (pytorch_models.md) or made by `experiments/stacks.py`.",
        "a",
        [curve_table(rows), optimality(small)],
        summary(rows, small),
    )
