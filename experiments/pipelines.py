# SPDX-License-Identifier: Apache-2.0
"""Steps of several micro-batches: `pipeline` beside the schedules that have names."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import baechi
from experiments import stacks
from experiments.outcome import Outcome, planned
from experiments.page import Column, Page, Table, count, gibibytes, milliseconds, percent, times
from experiments.progress import each

NAMED = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v")
PRESET = "a100"
NVLINK, PCIE = "5us,200GB/s", "10us,12GB/s"
ALL = (1, 4, 8, 16, 32)  # micro-batches
MOST = 160_000  # operators of a step: larger ones are left out
CAP = 0.6  # of what GPipe needs


@dataclass(frozen=True)
class Model:
    """A graph of one micro-batch."""

    name: str
    of: str | Callable[[int, str], baechi.Graph]  # of generate(), or of stacks
    batch: int
    options: dict[str, Any] = field(default_factory=dict)
    chain: bool = True

    def graph(self) -> baechi.Graph:
        """Generate it."""
        if not isinstance(self.of, str):
            return self.of(self.batch, PRESET)
        return baechi.generate(self.of, batch=self.batch, device=f"gpu={PRESET}", **self.options)


TRAINING = {"training": True}
MODELS = (
    Model("Llama 3 8B, 16 layers", "llama", 1, {"layers": 16, **TRAINING}),
    Model("Llama 3 8B", "llama", 1, {"layers": 32, **TRAINING}),
    Model("Mixtral-like, 8 layers", "moe", 1, {"layers": 8, **TRAINING}),
    Model("GPT-2 medium", stacks.gpt2_medium, 2),
    Model("ViT-L", stacks.vit_large, 8),
    Model("U-Net", "unet", 4, TRAINING),
    Model("Transformer", "transformer", 16, chain=False),
    Model("GNMT, length 20", "gnmt", 32, {"length": 20}, chain=False),
    Model("Inception-V3", "inception-v3", 8, chain=False),
    Model("two-tower", "two-tower", 1024, TRAINING, chain=False),
    Model("text, image and sound", stacks.multimodal, 8, chain=False),
)


@dataclass(frozen=True)
class Devices:
    """A cluster with memory for everything."""

    name: str
    devices: str
    link: str
    equal: bool = True

    def cluster(self) -> baechi.Cluster:
        """Make it: one transfer in and one out at a time."""
        return baechi.Cluster(self.devices, link=self.link, communication="duplex")


CLUSTERS = (
    Devices("4 equal, NVLink", "4x1TiB", NVLINK),
    Devices("8 equal, NVLink", "8x1TiB", NVLINK),
    Devices("4 equal, PCIe", "4x1TiB", PCIE),
    Devices("2 + 2 at half speed, PCIe", "2x1TiB+2x1TiB@0.5", PCIE, equal=False),
)
AMPLE = CLUSTERS[0]


def best(outcomes: list[Outcome]) -> Outcome | None:
    """The shortest step of those that fit."""
    fitting = [outcome for outcome in outcomes if outcome.step_ns is not None]
    return min(fitting, key=lambda outcome: outcome.step_ns or 0) if fitting else None


def measured(
    model: Model, graph: baechi.Graph, devices: Devices, micro_batches: int
) -> dict[str, Any]:
    """One row. A single micro-batch is no pipeline: `auto` plans it."""

    def step(method: str, on: baechi.Cluster, **how: Any) -> Outcome:
        return planned(graph, on, method, micro_batches=micro_batches, **how)

    cluster = devices.cluster()
    several = micro_batches > 1
    own = step("pipeline" if several else "auto", cluster, bounds=True)
    equal = [step(name, cluster) for name in NAMED if several]
    divided = best([step(f"{name}-divided", cluster) for name in NAMED if several])
    row: dict[str, Any] = {
        "workload": model.name,
        "chain": model.chain,
        "devices": devices.name,
        "equal_devices": devices.equal,
        "micro_batches": micro_batches,
        "operators": len(graph),
        "own_ns": own.step_ns,
        "gap": own.gap,
        "peak": max(own.peaks.values(), default=None),
        "seconds": own.seconds,
    }
    others = {
        "one": step("pipeline" if several else "single", baechi.Cluster("1x16TiB")),
        "1f1b": equal[NAMED.index("1f1b")] if several else None,
        "equal": best(equal),
        "divided": divided,
    }
    for key, other in others.items():
        if other is not None and other.step_ns is not None and own.step_ns is not None:
            row[key] = other.step_ns / own.step_ns
            row[f"{key}_method"] = other.method.removesuffix("-divided")
    return row


def squeezed(model: Model, graph: baechi.Graph) -> dict[str, Any]:
    """Plan with a part of the memory that GPipe needs on its fullest device."""

    def step(method: str, on: baechi.Cluster) -> Outcome:
        return planned(graph, on, method, micro_batches=8)

    ample = AMPLE.cluster()
    gpipe = max(step("gpipe", ample).peaks.values(), default=0)
    capacity = int(CAP * gpipe)
    cluster = baechi.Cluster(f"4x{capacity}B", link=AMPLE.link, communication="duplex")
    own, wide = step("pipeline", cluster), step("pipeline", ample)
    row: dict[str, Any] = {
        "workload": model.name,
        "gpipe": gpipe,
        "capacity": capacity,
        "own_ns": own.step_ns,
        "fits_1f1b": step("1f1b", cluster).step_ns is not None,
    }
    if own.step_ns is not None and wide.step_ns is not None:
        row["longer"] = own.step_ns / wide.step_ns
    return row


def planning(model: Model, devices: Devices, micro_batches: int) -> dict[str, Any]:
    """How long `auto` plans a step."""
    graph = model.graph()
    found = planned(graph, devices.cluster(), "auto", micro_batches=micro_batches, bounds=False)
    return {
        "workload": model.name,
        "devices": devices.name,
        "operators": len(graph),
        "micro_batches": micro_batches,
        "own_ns": found.step_ns,
        "seconds": found.seconds,
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Say how ours and the named schedules compare."""
    rows = [row for row in rows if row["micro_batches"] > 1]
    shorter = sum(min(row.get("equal", 1), row.get("divided", 1)) < 1 for row in rows)
    equal, unequal = (
        times(statistics.geometric_mean(row["equal"] for row in some if "equal" in row))
        for some in (
            [row for row in rows if row["equal_devices"]],
            [row for row in rows if not row["equal_devices"]],
        )
    )
    gap = statistics.median(row["gap"] for row in rows if row["micro_batches"] >= 8)
    return (
        f"A named schedule is shorter than `pipeline` in {shorter} of {len(rows)} rows. In "
        f"geometric means, the best of them over equal layers takes {equal} as long on equal "
        f"devices and {unequal} on unequal ones. Where M is 8 or more, the median gap to the "
        f"bound is {percent(gap)}."
    )


def steps(rows: list[dict[str, Any]]) -> Table:
    """Every row."""
    columns = [
        Column("workload", "model"),
        Column("devices", "devices"),
        Column("micro_batches", "M", count),
        Column("operators", "operators", count),
        Column("own_ns", "`pipeline`, ms", milliseconds),
        Column("one", "one device", times),
        Column("1f1b", "1F1B, equal layers", times),
        Column("equal", "best named, equal layers", times),
        Column("equal_method", "which"),
        Column("divided", "best named, our stages", times),
        Column("divided_method", "which"),
        Column("gap", "gap", percent),
        Column("peak", "peak, GiB", gibibytes),
        Column("seconds", "CPU s", "{:.2f}".format),
    ]
    notes = (
        "Steps of one device with enough memory, and of each schedule, over the step of "
        "`pipeline`. Operators are those of one micro-batch. The gap is to the strongest lower "
        "bound. CPU s: planning, with bounds and verification. M = 1: `auto`, for a mini-batch of "
        f"one micro-batch. Steps of more than {MOST:,} operators are left out."
    )
    return Table("Steps", columns, rows, notes)


def gaps(rows: list[dict[str, Any]]) -> Table:
    """How far from the bound, by devices and micro-batches."""
    columns = [Column("devices", "devices")]
    columns += [Column(f"M{number}", f"M = {number}", percent) for number in ALL]
    found = []
    for devices in CLUSTERS:
        row: dict[str, Any] = {"devices": devices.name}
        for number in ALL:
            some = [
                r["gap"]
                for r in rows
                if r["devices"] == devices.name and r["micro_batches"] == number
            ]
            row[f"M{number}"] = statistics.median(some)
        found.append(row)
    return Table("Gap to the bound, median of the models", columns, found)


def memory(rows: list[dict[str, Any]]) -> Table:
    """What little memory costs."""
    columns = [
        Column("workload", "model"),
        Column("gpipe", "GPipe's peak, GiB", gibibytes),
        Column("capacity", "each device has, GiB", gibibytes),
        Column("own_ns", "`pipeline`, ms", milliseconds, "does not fit"),
        Column("longer", "over the step with memory for everything", times),
        Column("fits_1f1b", "1F1B, equal layers, fits", lambda fits: "yes" if fits else "no"),
    ]
    notes = f"{AMPLE.name}, 8 micro-batches."
    return Table(
        f"{CAP:.0%} of the memory that GPipe needs over equal layers", columns, rows, notes
    )


def planning_times(rows: list[dict[str, Any]]) -> Table:
    """What `auto` takes."""
    columns = [
        Column("workload", "model"),
        Column("devices", "devices"),
        Column("operators", "operators", count),
        Column("micro_batches", "M", count),
        Column("own_ns", "`auto`, ms", milliseconds),
        Column("seconds", "CPU s", "{:.2f}".format),
    ]
    return Table("Planning", columns, rows, "`auto` with its usual budget, without bounds.")


def run() -> Page:
    """The page of pipelines."""
    graphs = {model.name: model.graph() for model in MODELS}
    points = [
        (model, graphs[model.name], devices, number)
        for model in MODELS
        for devices in CLUSTERS
        for number in ALL
        if number * len(graphs[model.name]) <= MOST
    ]
    rows = [
        measured(*point)
        for point in each(points, lambda p: f"{p[0].name}, {p[2].name}, {p[3]} micro-batches")
    ]
    tight = [
        squeezed(model, graphs[model.name])
        for model in each(MODELS, lambda model: model.name, of="little memory")
    ]
    plans = [
        planning(MODELS[1], AMPLE, 16),
        planning(Model("GNMT, length 40", "gnmt", 128, {"length": 40}), AMPLE, 8),
        planning(Model("GNMT, length 40", "gnmt", 128, {"length": 40}), CLUSTERS[2], 8),
    ]
    return Page(
        "pipelines",
        "Pipelines: steps of several micro-batches",
        "All steps are simulated; planning times are measured on this machine's CPU. Each graph "
        f"is one micro-batch, by `baechi generate` for the device `{PRESET}` or by "
        "`experiments/stacks.py` (GPT-2 medium, ViT-L; text, image and sound), whose backward "
        "pass is two operators a module. A device sends one tensor and receives one at a time. "
        "Unless a table says otherwise, memory is ample.",
        "a",
        [gaps(rows), memory(tight), planning_times(plans), steps(rows)],
        summary(rows),
    )
