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


def run() -> Page:
    """The page of ranks."""
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
        "A layer waits 2 ms for each of 16 samples, its backward twice as long, so the work of 8 "
        f"layers is 768 ms and {PROCESSES} devices could do it in 192. Branches are stages of a "
        "chain for `torch.distributed.pipelining`, which hand on what they do not read.",
    )
    sent = Table(
        "What is sent",
        [
            *names,
            Column("messages", "messages", count),
            Column("bytes", "bytes sent", count),
            Column("planned_bytes", "bytes in the plan", count),
        ],
        measured["ours"],
        "In one step, of all ranks together. The plan also has copies of the batch, which every "
        "rank is given, and counts the whole mini-batch for those of a micro-batch.",
    )
    idle = Table(
        "Steps that do not wait",
        [
            *names,
            Column("parts", "parts", count),
            Column("messages", "messages", count),
            Column("measured_ns", "measured, ms", milliseconds),
            Column("each_ns", "for a part, ms", milliseconds),
        ],
        [{**r, "each_ns": r["measured_ns"] / r["parts"]} for r in measured["idle"]],
        "What a step costs beside its kernels: the same models without waits. A part is the "
        "forward or backward of an operator of a micro-batch; every rank goes through all of them.",
    )
    memory = Table(
        "Memory of a rank",
        [
            Column("rank", "rank", count),
            Column("deferred", "built"),
            Column("own_bytes", "own weights, MiB", mebibytes),
            Column("placing_bytes", "at most while it is placed, MiB", mebibytes),
            Column("training_bytes", "behind two steps, MiB", mebibytes),
            Column("predicted_bytes", "predicted, MiB", mebibytes),
        ],
        measured["memory"],
        "24 layers of 4 MiB, placed at random, AdamW without `foreach`: resident memory beyond "
        "that before the model was built. `deferred`: inside `baechi.torch.deferred_weights()`.",
    )
    return Page(
        "ranks",
        "Placements over processes",
        f"Measured: {PROCESSES} processes on one machine, linked by gloo over loopback, each the "
        "median of 5 steps. Most of a layer is a wait, so that few cores stand for four devices; "
        "what Python and gloo take beside it shares those cores.",
        "b",
        [steps, sent, idle, memory],
    )
