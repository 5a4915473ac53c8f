# SPDX-License-Identifier: Apache-2.0
"""Steps over memory where a host keeps tensors, beside the rules of tools that swap blocks."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from experiments.page import Column, Page, Table, milliseconds, percent
from experiments.progress import each

GIB = 2**30
MODELS = {
    "Llama 8B, batch 1": ("llama --batch 1 --length 2048", (6, 12, 24, 40, 80)),
    "U-Net, batch 4": ("unet --batch 4", (2, 3, 4, 6, 8)),
    "two-tower, batch 4096": ("two-tower --batch 4096", (2, 4, 8)),
}
FOUR = "2xgpu:{large}GiB+2xgpu:{small}GiB@0.5+1xhost:512GiB"
UNEQUAL = {"Llama 8B, batch 1": ((16, 12),), "U-Net, batch 4": ((2, 1),)}
COMMAND = os.environ.get("BAECHI_COMMAND") or shutil.which("baechi") or "baechi"


def place(graph: Path, cluster: str, *options: object) -> dict[str, Any]:
    """What the command answers with --json; what does not fit has no makespan."""
    words = [COMMAND, "place", str(graph), "--cluster", cluster, *map(str, options), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def block_of(name: str) -> int | None:
    """The layer that an operator is of, by its name."""
    parts = name.split("/")
    at = parts.index("layers") if "layers" in parts else None
    digits = parts[at + 1].split("_")[0] if at is not None else ""
    return int(digits) if digits.isdigit() else None


def swapped(graph: dict[str, Any], blocks: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The step in which the last `blocks` layers keep weights, state and updates on the host.

    Each is fetched when the layer before it (backward: behind it) starts, for its forward and again
    for its backward pass: one layer ahead. Made without the planner. Also says where all is.
    """
    operators = graph["operators"]
    layers = 1 + max((block_of(o["name"]) or 0 for o in operators), default=0)
    layer_of = {o["name"]: block_of(o["name"]) for o in operators}
    away = {name for name, of in layer_of.items() if of is not None and of >= layers - blocks}
    on_host = {
        o["name"]
        for o in operators
        if o["name"] in away and (o.get("variable") or o.get("kind", "").endswith("Step"))
    }
    first: dict[tuple[bool, int], str] = {}
    for o in operators:
        block = block_of(o["name"])
        if block is not None and not o.get("variable") and o.get("per") != "step":
            first.setdefault((o["name"].startswith("gradients/"), block), o["name"])
    made: list[dict[str, Any]] = []
    where: dict[str, str] = {}
    outputs = {o["name"]: o.get("outputs", []) for o in operators}
    fetched: set[str] = set()
    for o in operators:
        back = o["name"].startswith("gradients/")
        entry = dict(o)
        if o["name"] in on_host:
            entry.pop("colocate", None)
        elif o.get("per") != "step":
            entry["inputs"] = []
            for name in o.get("inputs", []):
                if isinstance(name, list) or name not in on_host:
                    entry["inputs"].append(name)
                    continue
                fetch = f"{name}>{'backward' if back else 'forward'}"
                entry["inputs"].append(fetch)
                if fetch in fetched:
                    continue
                fetched.add(fetch)
                where[fetch] = "host:0"
                ahead = first.get((back, (block_of(name) or 0) + (1 if back else -1)))
                made.append(
                    {"name": fetch, "kind": "Fetch", "time": {"host": 0}, "inputs": [name],
                     "outputs": outputs[name], "after": [ahead] if ahead else []}
                )  # fmt: skip
        where[o["name"]] = "host:0" if o["name"] in on_host else "gpu:0"
        made.append(entry)
    return {**graph, "operators": made}, where


def block_swap(path: Path, cluster: str, folder: Path) -> int | None:
    """The step with the fewest swapped layers that fit."""
    graph = json.loads(path.read_text())
    layers = 1 + max((block_of(o["name"]) or 0 for o in graph["operators"]), default=0)
    if layers == 1:
        return None
    low, high, best = 0, layers, None
    while low <= high:
        blocks = (low + high) // 2
        step_graph, where = swapped(graph, blocks)
        (folder / "swapped.json").write_text(json.dumps(step_graph))
        expert = {"format": "baechi-placement", "version": 1, "device_of": where}
        (folder / "where.json").write_text(json.dumps(expert))
        options = ("--method", "expert", "--expert", str(folder / "where.json"))
        more = ("--order", "program", "--no-suggest")
        found = place(folder / "swapped.json", cluster, *options, *more).get("makespan")
        if found is None:
            low = blocks + 1
        else:
            best, high = found, blocks - 1
    return best


def point(
    name: str, path: Path, cluster: str, memory: str, smaller: dict[str, Path]
) -> dict[str, Any]:
    """All ways on one cluster; on one card `auto` begins with plans of smaller ones."""
    folder, four = path.parent, "+2x" in cluster
    ways = {
        "auto": ("--residency", "auto", "--recompute", "none"),
        "both": ("--residency", "auto"),
        "all": ("--residency", "all"),
        "recompute": ("--recompute", "all", "--no-suggest"),
    }
    found = {}
    for way, options in ways.items():
        plan = folder / f"{way}_{memory}.json"
        keep = ("-o", plan) if way in ("auto", "both") else ()
        begin = ("--expert", smaller[way]) if way in smaller and not four else ()
        found[way] = place(path, cluster, *options, *begin, *keep)
        if keep and "makespan" not in found[way]:
            continue
        if way == "both" and found["auto"].get("makespan", math.inf) < found[way]["makespan"]:
            found[way] = place(path, cluster, *options, "--expert", smaller["auto"], *keep)
        if keep:
            smaller[way] = plan
    row: dict[str, Any] = {"model": name, "memory": memory}
    row |= {way: plan.get("makespan") for way, plan in found.items()}
    row["swap"] = None if four else block_swap(path, cluster, folder)
    bounds = found["both"].get("bounds") or found["auto"].get("bounds") or []
    row["bound"], row["by"] = (bounds[0]["value"], bounds[0]["name"]) if bounds else (None, None)
    best = min((row[way] for way in ("auto", "both") if row[way]), default=None)
    row["above"] = best / row["bound"] - 1 if best and row["bound"] else None
    return row


def points() -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, (model, budgets) in each(list(MODELS.items()), str, of="models"):
            path = folder / "graph.json"
            smaller: dict[str, Path] = {}
            costs = ("--precision", "bf16", "--device", "gpu=rtx4090,host=cpu", "-o", str(path))
            words = ["generate", *model.split(), "--training", "--variables", *costs]
            subprocess.run([COMMAND, *words], check=True, capture_output=True)
            clusters = {f"{size}": f"1xgpu:{size}GiB+1xhost:512GiB" for size in budgets}
            for large, small in UNEQUAL.get(name, ()):
                clusters[f"2 x {large}, 2 x {small}"] = FOUR.format(large=large, small=small)
            rows += [point(name, path, line, memory, smaller) for memory, line in clusters.items()]
    return rows


def run() -> Page:
    """The page."""
    columns = [
        Column("model", "model"),
        Column("memory", "GiB"),
        Column("auto", "away", milliseconds, "does not fit"),
        Column("both", "away, again", milliseconds, "does not fit"),
        Column("all", "all away", milliseconds, "does not fit"),
        Column("recompute", "all again", milliseconds, "does not fit"),
        Column("swap", "block swap", milliseconds),
        Column("bound", "bound", milliseconds),
        Column("above", "above it", percent),
        Column("by", "which"),
    ]
    notes = (
        "Milliseconds per step. *Away*: `--residency auto --recompute none`; *away, again*: "
        "`--residency auto`, which also recomputes; on one card both begin with their plan of the "
        "next smaller memory (`--expert`), the latter with that of *away* where it is longer; "
        "*all away*: `--residency all`; *all again*: "
        "`--recompute all`, without a host. *Block swap*, made without the planner: the weights, "
        "state and updates of the fewest last layers are on the host, and each layer is fetched "
        "while the layer before it runs (-: nothing fits, the model has no layers, or there are "
        "four cards). Of four cards, the smaller two are half as fast. Beside the best of all "
        "choices of what is kept, away, streamed or made again, 28 steps of two layers are 2.9% "
        "shorter, since gradients may be away, too; 28 of four without weights are as short "
        "(`build/release/baechi_tests -tc='residency: bounds*'`), 12 behind slow links 5.3% longer "
        "(`-tc='residency: what fits*'`)."
    )
    return Page(
        "host_memory",
        "Host memory: step over memory",
        "Step times are simulated, and every plan is verified. The cards share one PCIe 4 link to "
        "a host of 512 GiB, with one queue each way. Adam takes 16 bytes per parameter; the "
        "host's memory limits the updates there.",
        "a",
        [Table("Step over memory", columns, points(), notes)],
    )
