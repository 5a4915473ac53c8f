# SPDX-License-Identifier: Apache-2.0
"""Calls, steps and updates on a simulated device with a host's memory behind it: the virtual clock.

python bench/torch_host_memory.py prints two tables; measured costs, one device of 1 to 8 MiB.
"""

from __future__ import annotations

import gc
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import torch
from torch_steps import CLOCK, SAMPLES, TOKENS, built

import baechi


def row(name: str, memory: str, residency: str, micro_batches: int | None = None) -> str:
    """Return a line of the table: the third of three calls with their backward, or of steps."""
    link = sim.Link("5us", "10GB/s")
    queues = {"communication": "duplex", "asynchronous": False}
    with sim.configured(devices=1, memory="1GiB", link=link, **queues, **CLOCK):
        model = built(name)
        model.config.use_cache = False
        tokens = torch.randint(1, 64, (SAMPLES, TOKENS))
        batch = {"input_ids": tokens, "labels": tokens}
        cluster = baechi.Cluster(f"1x{memory}+1xhost:4GiB", link="5us,10GB/s")
        how: Any = {"costs": "measure", "devices": ["sim:0"], "micro_batches": micro_batches}
        placed = baechi.torch.place(model, batch, cluster, residency=residency, **how)
        for _ in range(3):
            model.zero_grad()
            gc.collect()
            torch.accelerator.synchronize()
            sim.reset_virtual_clock()
            sim.reset_peak_memory_stats(0)
            if micro_batches is None:
                model(**batch).loss.backward()
            else:
                placed.step(batch)
            torch.accelerator.synchronize()
        measured, planned = sim.virtual_time(), placed.plan.makespan_ns / 1e9
        peak = sim.max_memory_allocated(0) / placed.plan.peaks["gpu:0"]
        placed.restore()
    gc.collect()
    return (
        f"| {name} | {micro_batches or 'a call'} | {memory} | {residency} | {1e3 * planned:.1f} | "
        f"{1e3 * measured:.1f} | {measured / planned:.3f} | {peak:.3f} |"
    )


def update(memory: str) -> str:
    """Return a line of the table of updates: the third one of 64 layers, piece by piece."""
    link = sim.Link("5us", "10GB/s")
    fast = CLOCK | {"memory_bandwidth": "200GB/s", "communication": "duplex", "asynchronous": False}
    with sim.configured(devices=1, memory="1GiB", link=link, **fast):
        model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(64)))
        batch, cluster = torch.randn(4, 128), f"1x{memory}+1xhost:4GiB"
        placed = baechi.torch.place(model, batch, cluster, residency="all", budget="0.1s")
        optimizer = placed.optimizer(torch.optim.AdamW)
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            gc.collect()
            torch.accelerator.synchronize()
            sim.reset_virtual_clock()
            sim.reset_peak_memory_stats(0)
            optimizer.step()
        weights = [*model.parameters()]
        copies = 4 * sum(5e-6 + weight.nbytes / 10e9 for weight in weights)  # gradient and state
        ratio, peak = sim.virtual_time() / copies, sim.max_memory_allocated(0) / 2**20
        placed.restore()
    gc.collect()
    return f"| {memory} | {1e3 * copies:.2f} | {ratio:.3f} | {peak:.2f} |"


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    print(
        "| model | parts | memory | away | planned, ms | measured, ms | ratio | peak, of planned |"
    )
    print("| --- | --- | --- | --- | ---: | ---: | ---: | ---: |")
    for name in ("llama", "gpt2"):
        for parts in (None, 2, 4):
            print(row(name, "4MiB", "all", parts), flush=True)
            print(row(name, "6MiB", "auto", parts), flush=True)
    print("\n| memory | copies to the device, ms | update, of that | peak, MiB |")
    print("| --- | ---: | ---: | ---: |")
    for memory in ("1200KiB", "2MiB", "8MiB"):
        print(update(memory), flush=True)


if __name__ == "__main__":
    main()
