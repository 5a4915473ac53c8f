# SPDX-License-Identifier: Apache-2.0
"""Profiles of the models in models/pytorch: measured on this machine's CPU, or estimated.

``python -m experiments.profile_models`` measures all models on one core and writes
experiments/profiles; with ``--estimate`` it writes the full-size models' graphs instead, with costs
from a roofline of the devices that they would be trained on. `load` reads either back.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import baechi
from experiments.page import machine, write_whole
from experiments.workloads import all_work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.torch_workloads import TorchWorkload

FOLDER = Path(__file__).resolve().parent / "profiles"
LIST = "profiles.json"
DEVICES = {  # presets with room for a training step
    "inception-v3": "rtx2080",
    "gnmt": "rtx2080",
    "transformer": "rtx2080",
    "llama": "h100",
    "mixtral": "h200",
    "vit": "rtx3090",
    "two-tower": "rtx3090",
    "unet": "rtx3090",
}
KINDS = {"rtx2080": "gpu"}  # as the preset "paper" calls it; others are called as they are


def write(folder: Path, name: str, graph: baechi.Graph) -> Path:
    """Write a graph, compressed; the same graph gives the same bytes."""
    path = folder / f"{name}.json.gz"
    write_whole(path, gzip.compress(graph.to_json().encode(), 9, mtime=0))
    return path


def load(name: str, folder: Path = FOLDER) -> baechi.Graph:
    """Read the profile of a model."""
    path = folder / f"{name}.json.gz"
    if not path.exists():
        known = ", ".join(sorted(p.name.removesuffix(".json.gz") for p in folder.glob("*.gz")))
        raise baechi.InputError(f"no profile of {name!r} in {folder}; there are: {known or 'none'}")
    return baechi.Graph.from_json(gzip.decompress(path.read_bytes()).decode())


def listed(folder: Path) -> dict[str, Any]:
    """Return what is known of the profiles in a folder, by name."""
    listing = folder / LIST
    known: dict[str, Any] = {}
    if listing.exists():
        known = json.loads(listing.read_text())["profiles"]
    return known


def add_to_list(folder: Path, rows: Mapping[str, Any]) -> None:
    """Write down what is known of profiles that were just made."""
    text = json.dumps({"profiles": {**listed(folder), **rows}}, indent=1) + "\n"
    write_whole(folder / LIST, text)


def _row(graph: baechi.Graph, **more: Any) -> dict[str, Any]:
    permanent = sum(graph[name].permanent for name in graph.names)
    return {"operators": len(graph), "work_ns": all_work(graph), "permanent": permanent, **more}


def measure_all(folder: Path, workloads: dict[str, TorchWorkload]) -> dict[str, Any]:
    """Measure models on this machine's CPU; write their graphs."""
    from experiments.torch_workloads import measured_graph

    rows = {}
    for name, workload in workloads.items():
        graph = measured_graph(workload)
        write(folder, name, graph)
        rows[name] = _row(graph, sizes=workload.sizes(), costs="measured on one core")
        print(name, rows[name], flush=True)
    return rows


def estimate_all(folder: Path, names: list[str]) -> dict[str, Any]:
    """Estimate the full-size models' costs on DEVICES; write their graphs."""
    from experiments.torch_workloads import estimated_graph
    from models.pytorch import MODELS

    rows = {}
    for name in names:
        preset = DEVICES[name]
        for batch in MODELS[name].batches:
            graph, _ = estimated_graph(name, batch, {KINDS.get(preset, preset): preset})
            key = f"{name}-{batch}"
            write(folder, key, graph)
            rows[key] = _row(graph, sizes=f"batch {batch}", costs=f"estimated, {preset}")
            print(key, rows[key], flush=True)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Write profiles."""
    from experiments.torch_workloads import PROFILED

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="default: all models")
    parser.add_argument("--estimate", action="store_true", help="full size; do not measure")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the profiles")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in PROFILED]:
        parser.error(f"no model {unknown[0]!r}; there are: {', '.join(PROFILED)}")
    names = chosen.names or list(PROFILED)
    try:
        chosen.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: cannot make {chosen.output}: {error.strerror}")
    if chosen.estimate:
        rows = estimate_all(chosen.output, names)
    else:
        rows = measure_all(chosen.output, {n: PROFILED[n] for n in names})
    add_to_list(chosen.output, {name: {**row, **machine()} for name, row in rows.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
