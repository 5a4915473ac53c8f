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

PROCESSES = 4
WORDS = {
    "ScheduleGPipe": "GPipe",
    "Schedule1F1B": "1F1B",
    "ScheduleZBVZeroBubble": "ZBV",
}


def found() -> dict[str, list[dict[str, Any]]]:
    """Run the processes; return what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
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
                "error": own["predicted_ns"] / own["measured_ns"] - 1,
                "gain": min(theirs.values()) / own["measured_ns"],
            }
        )
    return rows


def at_best(ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each model: ours and torch's shortest steps over all numbers."""
    rows = []
    for name in dict.fromkeys(row["workload"] for row in ours):
        mine, theirs = ([r for r in each if r["workload"] == name] for each in (ours, others))
        own, other = (min(each, key=lambda row: row["measured_ns"]) for each in (mine, theirs))
        planned = min(mine, key=lambda row: row["predicted_ns"])
        rows.append(
            {
                "workload": name,
                "planned_micro_batches": planned["micro_batches"],
                "micro_batches": own["micro_batches"],
                "measured_ns": own["measured_ns"],
                "schedule": f"{WORDS[other['schedule']]}, {other['micro_batches']}",
                "other_ns": other["measured_ns"],
                "gain": other["measured_ns"] / own["measured_ns"],
            }
        )
    return rows


def run() -> Page:
    """The page of ranks."""
    load = os.getloadavg()[0]
    measured = found()
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
        beside(measured["ours"], measured["torch"]),
        "A layer waits 2 ms for each of 16 samples, its backward twice as long, so 8 layers wait "
        f"768 ms, which {PROCESSES} devices could do in 192. Plans use measured times of kernels "
        "and exact waits. For `torch.distributed.pipelining` the branches are stages of a chain, "
        "which hand on what they do not read.",
    )
    best = Table(
        "Each at its best",
        [
            Column("workload", "model"),
            Column("planned_micro_batches", "M of the shortest plan", count),
            Column("micro_batches", "M measured best", count),
            Column("measured_ns", "measured, ms", milliseconds),
            Column("schedule", "the best schedule, its M"),
            Column("other_ns", "its step, ms", milliseconds),
            Column("gain", "it / ours", times),
        ],
        at_best(measured["ours"], measured["torch"]),
        "Each has its best M, which a user may choose. The first column is the M of our shortest "
        "plan, chosen without "
        'a measurement, as `micro_batches="auto"` does.',
    )
    idle = Table(
        "Steps that do not wait",
        [
            *names,
            Column("parts", "calls", count),
            Column("messages", "messages", count),
            Column("measured_ns", "measured, ms", milliseconds),
            Column("each_ns", "for a call, ms", milliseconds),
        ],
        [{**r, "each_ns": r["measured_ns"] / r["parts"]} for r in measured["idle"]],
        "The same models without waits: what a step costs beside its kernels. Calls are those of "
        "all ranks, including views and sums of gradients.",
    )
    talk = Table(
        "Messages",
        [Column("what", "what"), Column("measured_ns", "measured, ms", milliseconds)],
        measured["talk"],
        "All ranks exchange a message at the start and at the end of every step. If one differs "
        "or failed, every rank raises an error.",
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
        measured["memory"],
        "24 layers of 4 MiB, placed at random, with AdamW without `foreach`. Figures are resident "
        "memory above that before the model was built. *On the meta device*: weights come from a "
        "safetensors file.",
    )
    return Page(
        "ranks",
        "Placements over processes",
        f"Measured with {PROCESSES} processes on one machine, linked by gloo over loopback; "
        "medians of 5 steps. A layer mostly waits, so a few cores can stand for four devices. "
        f"Python, gloo and other programs share those cores: the load was {load:.1f} at the start.",
        "b",
        [steps, best, idle, talk, memory],
    )
