# SPDX-License-Identifier: Apache-2.0
"""Steps of placements over processes, beside their plans and torch.distributed.pipelining's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.page import (
    ROOT,
    Column,
    Page,
    Table,
    count,
    mebibytes,
    milliseconds,
    percent,
    times,
)
from experiments.rank_models import FORWARD

PROCESSES = 4
PLANS = (
    "All layers wait four times as long in *long waits*. Processor time is that of all processes, "
    "which share two cores."
)
WORDS = {
    "ScheduleGPipe": "GPipe",
    "Schedule1F1B": "1F1B",
    "ScheduleZBVZeroBubble": "ZBV",
}


def found(processes: int) -> dict[str, list[dict[str, Any]]]:
    """Run so many processes; return what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": "1048576",  # what is freed is no longer resident
        }
        ran = subprocess.run(
            [sys.executable, "-m", *command, "-m", "experiments.rank_steps", str(result)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not result.is_file():  # it is written last
            raise RuntimeError(f"the processes of experiments.rank_steps failed:\n{ran.stderr}")
        measured: dict[str, list[dict[str, Any]]] = json.loads(result.read_text())
        return measured


def beside(ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the steps of torch's schedules, and how many times ours are as fast."""
    rows = []
    for own in ours:
        same = [r for r in others if all(r[k] == own[k] for k in ("workload", "micro_batches"))]
        theirs = {f"{WORDS[r['schedule']]}_ns": r["measured_ns"] for r in same}
        rows.append(
            {
                **own,
                **theirs,
                "gain": min(theirs.values()) / own["measured_ns"],
            }
        )
    return rows


def compared(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with how far the step is from its plan."""
    planned, measured = row["predicted_ns"], row["measured_ns"]
    return {**row, "error": planned / measured - 1, "more_ns": measured - planned}


def with_long(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the error where all layers wait longer, if that was measured."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[k] for k in ("processes", "replicas", "workload", "micro_batches"))

    long = {key(row): compared(row)["error"] for row in rows if row["wait_ms"] != FORWARD}
    short = [row for row in rows if row["wait_ms"] == FORWARD]
    return [{**compared(row), "long_error": long.get(key(row))} for row in short]


def first() -> str:
    """Say whether other programs wait for these processes."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        return "they wait for these processes, as under `chrt --fifo 50`"
    return f"niceness {os.nice(0)}"


def run() -> Page:
    """The page of ranks."""
    load = os.getloadavg()[0]
    measured = found(PROCESSES)
    every = with_long([*found(2)["ours"], *measured["ours"]])
    ours = [row for row in every if row["processes"] == PROCESSES and row["replicas"] == 1]
    names = [Column("workload", "model"), Column("micro_batches", "M", count)]
    steps = Table(
        "Steps",
        [
            *names,
            Column("predicted_ns", "plan, ms", milliseconds),
            Column("measured_ns", "measured, ms", milliseconds),
            Column("error", "plan's error", percent),
            *(Column(f"{w}_ns", f"{w}, ms", milliseconds) for w in WORDS.values()),
            Column("gain", "the best of these / ours", times),
        ],
        beside(ours, measured["torch"]),
        "A layer waits 2 ms for each of 16 samples, its backward twice as long, so 8 layers wait "
        f"768 ms, which {PROCESSES} devices could do in 192. Plans use measured times of kernels, "
        "waits, messages and what a step takes beside them. For `torch.distributed.pipelining` the "
        "branches are stages of a chain, which hand on what they do not read.",
    )
    plans = Table(
        "Plans beside steps",
        [
            Column("processes", "processes", count),
            Column("replicas", "replicas", count),
            *names,
            Column("predicted_ns", "plan, ms", milliseconds),
            Column("measured_ns", "measured, ms", milliseconds),
            Column("error", "plan's error", percent),
            Column("long_error", "of long waits", percent),
            Column("computed_ns", "processor time, ms", milliseconds),
        ],
        [row for row in every if row not in ours or row["micro_batches"] == 8],
        PLANS,
    )
    talk = Table(
        "Messages",
        [Column("what", "what"), Column("measured_ns", "measured, ms", milliseconds)],
        measured["talk"],
        "All ranks agree at the start of every step, whose first kernels run meanwhile, and at "
        "its end.",
    )
    memory = Table(
        "Memory of a rank",
        [
            Column("rank", "rank", count),
            Column("built", "built"),
            Column("own_bytes", "own weights, MiB", mebibytes),
            Column("placing_bytes", "at most while it is placed, MiB", mebibytes),
            Column("training_bytes", "behind two steps, MiB", mebibytes),
            Column("predicted_bytes", "predicted, MiB", mebibytes),
        ],
        [row for row in measured["memory"] if row["rank"] == 1],
        "24 layers of 4 MiB, placed at random, with AdamW without `foreach`. Figures are resident "
        "memory above that before the model was built. *On the meta device*: weights come from a "
        "safetensors file.",
    )
    return Page(
        "ranks",
        "Placements over processes",
        f"Measured with {PROCESSES} processes (or 2) on one machine, linked by gloo over loopback; "
        "medians of 5 steps. A layer mostly waits, so few cores can stand for four devices. "
        f"Other programs share those cores (load {load:.1f} at the start; {first()}).",
        "b",
        [steps, plans, talk, memory],
    )
