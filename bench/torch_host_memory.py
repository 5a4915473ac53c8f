# SPDX-License-Identifier: Apache-2.0
"""Steps on a simulated device with a host's memory behind it, updates included: the virtual clock.

python bench/torch_host_memory.py [--host 10us] prints a table; measured costs, one device of 2 to 8
MiB. With --host asking for a call or a copy takes so long on the clock, as plans measure it.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import torch
from baechi.torch.costs.costs import Costs
from baechi.torch.costs.measured import Clock, measure_updates
from baechi.torch.run.host_time import with_host_time
from torch.optim import AdamW
from torch_steps import CLOCK, SAMPLES, TOKENS, built

import baechi

QUEUES = {"link": sim.Link("5us", "10GB/s"), "communication": "duplex", "asynchronous": False}
FAST = CLOCK | {"memory_bandwidth": "200GB/s"}
HOST = {"host": ("1us", "500MB/s"), "pieces": ("100ns", "20GB/s")}  # of what it computes


def of_one(weight: torch.Tensor) -> torch.optim.Optimizer:
    """Return an optimizer of one weight."""
    return AdamW([weight])


def costs_of(model: torch.nn.Module, example: Any, updates: str) -> Costs:
    """Measure the calls on the device, and AdamW's updates there and on the host."""
    costs = baechi.torch.measure(model, example, devices={"gpu": "sim:0"})
    device, host = torch.device("sim:0"), torch.device("cpu")
    measure_updates(costs, "AdamW", of_one, [torch.float32], {"gpu": Clock(device)})
    with sim.HostOperators(*HOST[updates]):
        clock = Clock(host, lambda: round(1e9 * sim.virtual_host_time()))
        measure_updates(costs, "AdamW", of_one, [torch.float32], {"host": clock})
    return costs


def made(name: str, samples: int) -> tuple[torch.nn.Module, Any]:
    """Return a small model and a batch."""
    if name == "layers":
        torch.manual_seed(0)
        layers = (torch.nn.Linear(128, 128) for _ in range(64))
        return torch.nn.Sequential(*layers), torch.randn(samples, 128)
    model = built(name)
    model.config.use_cache = False
    tokens = torch.randint(1, 64, (samples, TOKENS))
    return model, {"input_ids": tokens, "labels": tokens}


def row(
    name: str,
    memory: str,
    residency: str,
    parts: int | None = None,
    updates: str = "host",
    host: str | None = None,
) -> str:
    """Return a line of the table: the third of three calls with their backward, or of steps."""
    clock = FAST if name == "layers" else CLOCK
    if host is not None:
        clock = clock | {"host_call": host, "host_send": host}
    with sim.configured(devices=1, memory="1GiB", **QUEUES, **clock):
        model, batch = made(name, SAMPLES)
        costs = costs_of(model, made(name, SAMPLES // (parts or 1))[1], updates)
        cluster = baechi.Cluster(f"1x{memory}+1xhost:4GiB", link="5us,10GB/s")
        cluster = with_host_time(cluster, [torch.device("sim:0")])
        how: Any = {"costs": costs, "optimizer": AdamW, "devices": ["sim:0"]}
        how |= {"micro_batches": parts, "residency": residency, "updates": updates}
        placed = baechi.torch.place(model, batch, cluster, **how)
        pieces = updates == "pieces"
        optimizer = placed.optimizer(AdamW) if pieces else AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            gc.collect()
            torch.accelerator.synchronize()
            sim.reset_virtual_clock()
            sim.reset_peak_memory_stats(0)
            if parts is not None:
                placed.step(batch)
            elif name == "layers":
                model(batch).mean().backward()
            else:
                model(**batch).loss.backward()
            torch.accelerator.synchronize()
            before = sim.virtual_time()
            with sim.HostOperators(*HOST[updates]):
                optimizer.step()
            torch.accelerator.synchronize()
        measured, planned = sim.virtual_time(), placed.plan.makespan_ns / 1e9
        peak = sim.max_memory_allocated(0) / placed.plan.peaks["gpu:0"]
        placed.restore()
    gc.collect()
    return (
        f"| {name} | {parts or 'a call'} | {memory} | {residency} | {updates} | "
        f"{1e3 * planned:.1f} | {1e3 * measured:.1f} | {measured / planned:.3f} | "
        f"{1 - before / measured:.0%} | {peak:.3f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", metavar="TIME", help="of asking for one thing")
    host = parser.parse_args().host
    torch.set_num_threads(1)
    print(
        "| model | parts | memory | away | updates | planned, ms | measured, ms | ratio | "
        "of it updates | peak, of planned |"
    )
    print("| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in ("llama", "gpt2"):
        for parts in (None, 4):
            print(row(name, "4MiB", "all", parts, host=host), flush=True)
            print(row(name, "6MiB", "auto", parts, host=host), flush=True)
    for memory, residency in (("2MiB", "all"), ("8MiB", "all"), ("8MiB", "auto")):
        print(row("layers", memory, residency, None, "pieces", host), flush=True)


if __name__ == "__main__":
    main()
