# SPDX-License-Identifier: Apache-2.0
"""Hold placements of the published TensorFlow prototype against ours, on the same graphs.

``./do experiments prototype_placements --graphs FOLDER`` prints the table in
docs/explanation/placers.md: step times in milliseconds on the paper's cluster, as our simulator
sees them, with ample memory.
``FOLDER/paper`` holds the graphs (NAME.json.gz) and ``prototype_placements.json.gz``: for each
graph and method the device index of every node.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import baechi

CLUSTER = baechi.Cluster("4x64GiB", link="134us,5.701254276GB/s", communication="sequential")


def _operator(node: dict[str, Any], forward: bool) -> dict[str, Any]:
    """Return a node as our format has it, without edges; `forward`: its group names a forward."""
    operator: dict[str, Any] = {
        "name": node["name"],
        "time": {"gpu": int(node["compute_us"] * 1000)},
        "memory": {"permanent": node["persistent_bytes"], "temporary": node["temp_bytes"]},
        "outputs": node["output_bytes"],
        "inputs": [],
        "after": [],
        "colocate": [node["group"]],
        "backward": bool(node["backward"]),
    }
    if node["backward"] and forward:
        operator["forward"] = node["group"].removeprefix("loc:@")
    return operator


def read_graph(path: Path) -> baechi.Graph:
    """Convert one of the prototype's profiled graphs.

    Its persistent bytes are part of the outputs; here they are permanent memory and the outputs
    keep their size, since that is what a transfer moves.
    """
    with gzip.open(path, "rt") as file:
        source: dict[str, Any] = json.load(file)
    names = [node["name"] for node in source["nodes"]]
    forward = {node["name"] for node in source["nodes"] if not node["backward"]}
    operators = [
        _operator(node, node["group"].removeprefix("loc:@") in forward) for node in source["nodes"]
    ]
    for edge in source["edges"]:
        target = operators[edge["dst"]]
        if edge["tensor"].startswith("^"):
            target["after"].append(names[edge["src"]])
            continue
        base, _, port = edge["tensor"].rpartition(":")
        port = int(port) if base and port.isdigit() else 0
        target["inputs"].append([names[edge["src"]], port])
    document = {
        "format": "baechi-graph",
        "version": 1,
        "name": source["name"],
        "operators": operators,
    }
    return baechi.Graph.from_json(json.dumps(document))


def milliseconds(plan: baechi.Plan) -> float:
    """Return the step time."""
    return plan.makespan_ns / 1e6


def page(folder: Path) -> str:
    """Return the table: one row per graph and method."""
    folder = folder / "paper"
    with gzip.open(folder / "prototype_placements.json.gz", "rt") as file:
        placements: dict[str, Any] = json.load(file)
    lines = [
        "| graph | method | prototype | ours, unoptimised | ours | one device |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    ratios: dict[str, list[float]] = {}
    for name, methods in placements.items():
        graph = read_graph(folder / f"{name}.json.gz")
        single = baechi.place_graph(graph, CLUSTER, "single", bounds=False)
        for method, entry in methods.items():
            device_of = {
                operator: f"gpu:{device}"
                for operator, device in zip(graph.names, entry["device"], strict=True)
            }
            theirs = milliseconds(baechi.simulate(graph, CLUSTER, device_of))
            ours = method.split()[0]  # "m-etf fused" is m-etf
            plain = milliseconds(
                baechi.place_graph(graph, CLUSTER, ours, optimize="none", bounds=False)
            )
            full = milliseconds(baechi.place_graph(graph, CLUSTER, ours, bounds=False))
            ratios.setdefault(ours, []).append(full / theirs)
            lines.append(
                f"| {name} | {method} | {theirs:.1f} | {plain:.1f} | {full:.1f} "
                f"| {milliseconds(single):.1f} |"
            )
    for method, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        lines.append(f"\n{method}: ours / prototype, geometric mean {mean:.2f}")
    return "\n".join(lines) + "\n"
