# SPDX-License-Identifier: Apache-2.0
"""Place the dnn-partitioning research's published instances for its own two objectives.

    python experiments/dnn_partitioning.py FOLDER > docs/results/dnn_partitioning.md

FOLDER holds ``latency/NAME.json`` and ``throughput/NAME.json`` as published, and perhaps experts'
placements ``NAME_expert.json``. Writes the page: what is placed and scored here, beside what the
published program and other searches reach.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import baechi

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORT, LONG = 0.03, 5.0  # seconds of budget


@dataclass
class Reference:
    """What is known of an instance, in milliseconds of its objective."""

    folder: str
    name: str
    start: float  # of everything on the CPU, or of the human expert
    segments: float  # a dynamic program over one order
    best: float  # the best known
    accelerators: int | None = None  # if not the file's own number


LATENCY = [
    Reference("latency", "layer_bert24_inference", 924.06, 100.219, 100.219),
    Reference("latency", "layer_gnmt_inference", 1824.35, 225.648, 225.648),
    Reference("latency", "layer_resnet50_inference", 1874.55, 1183.93, 1156.88),
    Reference("latency", "op_bert_l-3_inference", 1099.93, 414.430, 408.474),
    Reference("latency", "op_bert_l-6_inference", 1724.79, 444.021, 438.065),
    Reference("latency", "op_resnet50_inference", 6666.67, 660.093, 651.121),
]
MAX_LOAD = [
    Reference("throughput", "layer_bert24_inference", 20.084, 17.7899, 17.7147),
    Reference("throughput", "layer_bert24_training", 49.405, 41.7458, 39.7895),
    Reference("throughput", "layer_gnmt_inference", 46.209, 33.0326, 31.6873),
    Reference("throughput", "layer_resnet50_inference", 43.918, 33.7747, 33.7747),
    Reference("throughput", "layer_resnet50_training", 112.108, 78.6498, 77.2616),
    Reference("throughput", "op_bert_l-3_inference", 0, 27.9186, 21.9084),
    Reference("throughput", "op_bert_l-3_training", 0, 65.3031, 54.2074),
    Reference("throughput", "op_resnet50_inference", 0, 124.349, 124.349),
    Reference("throughput", "op_resnet50_training", 0, 255.194, 255.194),
]


def milliseconds(nanoseconds: int) -> str:
    """Six significant digits, as the published figures."""
    return f"{nanoseconds / 1e6:.6g}"


def at_most(nanoseconds: int, reference: float) -> bool:
    """At or below a published figure, which is rounded to six significant digits."""
    return float(milliseconds(nanoseconds)) <= reference


def expert_placement(path: Path, document: str) -> dict[str, str]:
    """Device by operator name, of an expert's ``{"fpgas": [{"nodes": [...]}], "cpus": [...]}``."""
    names = {
        node["id"]: node.get("name", f"node{node['id']}") for node in json.loads(document)["nodes"]
    }
    expert = json.loads(path.read_text())
    return {
        names[node]: f"{kind}:{i}"
        for kind, field in (("accelerator", "fpgas"), ("cpu", "cpus"))
        for i, device in enumerate(expert[field])
        for node in device["nodes"]
    }


def scored_start(
    objective: str, path: Path, graph: baechi.Graph, cluster: baechi.Cluster
) -> int | None:
    """Score what the reference column scores: all on the CPU, or the expert's placement."""
    if objective == "dnnp-latency":
        placement = dict.fromkeys(graph.names, "cpu:0")
    else:
        expert = path.parent.parent / f"{path.stem.removeprefix('layer_')}_expert.json"
        if not expert.exists():
            return None
        placement = expert_placement(expert, path.read_text())
    return baechi.score(graph, cluster, placement, objective).value_ns


def rows(objective: str, references: Iterable[Reference], folder: Path) -> Iterable[str]:
    """One row of the table per instance; checks each placement with the scorer."""
    for reference in references:
        path = folder / reference.folder / f"{reference.name}.json"
        graph = baechi.Graph.load(path)
        cluster = baechi.Cluster(str(path))
        start = scored_start(objective, path, graph, cluster)
        cells = [reference.name.replace("_", " ")]
        cells.append("-" if start is None else milliseconds(start))
        cells += [f"{reference.start:g}" if reference.start else "-"]
        for budget, bar in ((SHORT, reference.segments), (LONG, reference.best)):
            begin = time.process_time()
            found = baechi.place_for(graph, cluster, objective, budget=budget)
            seconds = time.process_time() - begin
            if found is None:
                raise SystemExit(f"{path}: no placement")
            score = baechi.score(graph, cluster, found.device_of, objective)
            if score.value_ns != found.value_ns or not score.fits:
                raise SystemExit(f"{path}: the placement is not what it says")
            if budget == SHORT:
                cells.append(milliseconds(found.segments_ns))
            verdict = "" if at_most(found.value_ns, bar) else " (missed)"
            cells += [
                f"{milliseconds(found.value_ns)}{verdict}",
                f"{seconds * 1e3:.0f}",
                f"{bar:g}",
            ]
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the page."""
    folder = Path(sys.argv[1])
    print("# The dnn-partitioning research's instances, under its own objectives\n")
    print(
        "`python experiments/dnn_partitioning.py FOLDER > docs/results/dnn_partitioning.md` writes"
        f" this page. Milliseconds\nof the objective; budgets of {SHORT * 1e3:.0f} ms and"
        f" {LONG:.0f} s, and the CPU milliseconds that they took, reading the file not included."
        "\n*Segments* is what the dynamic program over several orders reaches before any search,"
        " *one order* a dynamic program over one order,\n*best* the best placement known from"
        " searches of 45 s. A figure above its column's bar is marked as missed.\n"
    )
    for objective, references, start in (
        ("dnnp-latency", LATENCY, "all on the CPU"),
        ("dnnp-maxload", MAX_LOAD, "human expert"),
    ):
        print(f"## {objective}\n")
        print(
            f"| instance | {start}, scored here | published | segments | short budget | ms |"
            " one order | long budget | ms | best |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for row in rows(objective, references, folder):
            print(row, flush=True)
        print()


if __name__ == "__main__":
    main()
