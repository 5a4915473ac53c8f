# SPDX-License-Identifier: Apache-2.0
"""Place the dnn-partitioning research's published instances for its own two objectives.

``./do experiments dnn_partitioning --graphs FOLDER`` writes docs/lab/results/dnn_partitioning.md:
what is placed and scored here, beside what the published program and other searches reach. FOLDER
holds ``dnn-partitioning/latency/NAME.json`` and ``dnn-partitioning/throughput/NAME.json`` as
published, and perhaps experts' placements ``dnn-partitioning/NAME_expert.json``. The command is
$BAECHI_COMMAND, or the one on the PATH.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORT, LONG = 0.02, 1.0  # seconds of budget


@dataclass
class Reference:
    """What is known of an instance, in milliseconds of its objective."""

    folder: str
    name: str
    start: float  # of everything on the CPU, or of the human expert
    segments: float  # a dynamic program over one order
    best: float  # the best known


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


@dataclass
class Command:
    """The baechi command, and the CPU seconds of its last run."""

    path: str
    seconds: float = 0.0

    def run(self, *arguments: str | Path) -> dict[str, Any]:
        """Run a subcommand with --json and return what it prints."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [self.path, *map(str, arguments), "--json"], capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode != 0:
            raise SystemExit(f"dnn_partitioning: {done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def score(self, instance: Path, device_of: dict[str, str], objective: str) -> int:
        """Score a placement, in nanoseconds."""
        document = {"format": "baechi-placement", "version": 1, "device_of": device_of}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(document, file)
            file.flush()
            result = self.run("score", instance, file.name, "--objective", objective)
        value: int = result["value"]
        return value


def node_names(instance: Path) -> dict[int, str]:
    """The operators' names by the nodes' ids."""
    nodes = json.loads(instance.read_text())["nodes"]
    return {node["id"]: node.get("name") or f"node{node['id']}" for node in nodes}


def start_placement(objective: str, instance: Path) -> dict[str, str] | None:
    """Everything on the CPU; or the expert's placement, where there is one."""
    names = node_names(instance)
    if objective == "dnnp-latency":
        return dict.fromkeys(names.values(), "cpu:0")
    path = instance.parent.parent / f"{instance.stem.removeprefix('layer_')}_expert.json"
    if not path.exists():
        return None
    expert = json.loads(path.read_text())
    return {
        names[node]: f"{kind}:{i}"
        for kind, field in (("accelerator", "fpgas"), ("cpu", "cpus"))
        for i, device in enumerate(expert[field])
        for node in device["nodes"]
    }


def rows(
    command: Command, objective: str, references: Iterable[Reference], folder: Path
) -> Iterable[str]:
    """One row of the table per instance; checks each placement with the scorer."""
    for reference in references:
        path = folder / reference.folder / f"{reference.name}.json"
        start = start_placement(objective, path)
        cells = [reference.name.replace("_", " ")]
        cells.append("-" if start is None else milliseconds(command.score(path, start, objective)))
        cells.append(f"{reference.start:g}" if reference.start else "-")
        for budget, bar in ((SHORT, reference.segments), (LONG, reference.best)):
            where = ("-c", path, "--objective", objective, "--budget", f"{budget}s")
            found = command.run("place", path, *where)
            seconds = command.seconds
            if command.score(path, found["device_of"], objective) != found["value"]:
                raise SystemExit(f"{path}: the placement is not what it says")
            if budget == SHORT:
                cells.append(milliseconds(found["segments"]))
            verdict = "" if at_most(found["value"], bar) else " (missed)"
            cells.append(f"{milliseconds(found['value'])}{verdict}")
            cells += [f"{seconds * 1e3:.0f}", f"{bar:g}"]
        if objective == "dnnp-maxload":
            trivial = command.run("place", path, *where[:-1], "100ns")["bound"]
            cells += [f"{bound / found['value']:.1%}" for bound in (trivial, found["bound"])]
        yield "| " + " | ".join(cells) + " |"


def page(folder: Path) -> str:
    """Return the page's text."""
    command = Command(os.environ.get("BAECHI_COMMAND", "baechi"))
    if shutil.which(command.path) is None:
        raise SystemExit(f"dnn_partitioning: there is no command {command.path} (BAECHI_COMMAND)")
    lines = [
        "# The dnn-partitioning research's instances, under its own objectives\n",
        "`./do experiments dnn_partitioning --graphs FOLDER` writes this page. Milliseconds"
        f"\nof the objective; budgets of {SHORT * 1e3:.0f} ms and {LONG:g} s, and the CPU "
        "milliseconds of the whole command, reading the file included\n(a 2-core virtual machine "
        "busy with other work).\n*Segments* is what the dynamic program over several orders reaches"
        " before any search, *one order* a dynamic program over one order,\n*best* the best "
        "placement known from searches of 45 s. A figure above its column's bar is marked as "
        "missed.\n*Load* (or the longest operator alone) and [*bound*](../../explanation/bounds.md"
        "#the-pace-of-a-pipeline) are lower bounds over the long budget's value.\n",
    ]
    for objective, references, start, bounds in (
        ("dnnp-latency", LATENCY, "all on the CPU", []),
        ("dnnp-maxload", MAX_LOAD, "human expert", ["load", "bound"]),
    ):
        lines += [
            f"## {objective}\n",
            f"| instance | {start}, scored here | published | segments | short budget | ms |"
            " one order | long budget | ms | best |" + "".join(f" {name} |" for name in bounds),
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
            + " ---: |" * len(bounds),
            *rows(command, objective, references, folder / "dnn-partitioning"),
            "",
        ]
    return "\n".join(lines)
