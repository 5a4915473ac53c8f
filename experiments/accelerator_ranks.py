# SPDX-License-Identifier: Apache-2.0
"""Two processes with one accelerator: a placement over ranks beside the same in one process.

`python -m experiments.accelerator_ranks MODEL CLOCK` is one process of them, as its environment
says; CLOCK is that of simulated devices, or "-". It prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

import baechi.torch
import torch
from baechi.torch.ranks.placed import RankPlaced

from experiments.hardware import Hardware, hardware
from experiments.page import ROOT
from models.pytorch import MODELS

NAMES = ("transformer", "unet")
MICRO_BATCHES, BATCH, STEPS = 2, 8, 5
TIMEOUT = 300  # seconds


def row(name: str, clock: str | None) -> dict[str, Any]:
    """Return what two processes and one take for the same steps, and how their losses differ."""
    (alone,), together = _run(name, clock, 1), _run(name, clock, 2)
    pairs = zip(alone["losses"], together[0]["losses"], strict=True)
    return {
        "workload": name,
        "one": alone["step"],
        "two": max(each["step"] for each in together),
        "messages": sum(each["messages"] for each in together),
        "loss_difference": max(abs(a - b) / max(abs(a), 1e-9) for a, b in pairs),
        "peak_error": max((e["predicted"] / e["peak"] - 1 for e in together), key=abs),
    }


def _run(name: str, clock: str | None, count: int) -> list[dict[str, Any]]:
    """Start so many processes; return what each found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    command = [sys.executable, "-m", "experiments.accelerator_ranks", name, clock or "-"]
    running = []
    for rank in range(count):
        environment = {**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": "0"}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
    try:
        ended = [process.communicate(timeout=TIMEOUT) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, error) in zip(running, ended, strict=True):
        if process.returncode:
            raise RuntimeError((error.strip().splitlines() or ["no word"])[-1])
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


def measured(name: str, found: Hardware) -> dict[str, Any]:
    """Take steps of a model over so many processes, all on one accelerator."""
    count = int(os.environ["WORLD_SIZE"])
    entry = MODELS[name]
    torch.manual_seed(7)
    model, inputs = entry.build(entry.small()), entry.inputs(entry.small(), BATCH)
    device = found.devices[0]
    before = found.allocated(device)
    placed = baechi.torch.place(
        model,
        inputs,
        f"{count}x{found.total_memory(device) // 3}B",
        loss=lambda output: getattr(output, "loss", output),
        micro_batches=MICRO_BATCHES,
        devices=[device] * count,
        method="m-etf",
        bounds=False,
        verbose=False,
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses, took = [], []
    for number in range(STEPS + 1):
        if number == 1:  # what libraries keep for themselves is there
            found.reset_peaks()
        found.synchronize()
        begin = time.perf_counter()
        loss = placed.step(inputs)
        found.synchronize()
        took.append(time.perf_counter() - begin)
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    step = round(1e9 * statistics.median(took[1:]))
    here = placed.plan.cluster.devices[int(os.environ["RANK"])].name
    return {
        "losses": losses,
        "step": step,
        "messages": placed.sent[0] if isinstance(placed, RankPlaced) else 0,
        "predicted": placed.peaks[here],  # of this rank, where there are several
        "peak": found.peak(device) - before,
    }


def main(name: str, clock: str) -> None:
    """Be one of the processes."""
    with hardware(None if clock == "-" else clock) as found:
        print(json.dumps(measured(name, found)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
