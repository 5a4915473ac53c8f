#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pipeline over two processes: planned, beside one process and beside equal layers.

Run it as it is: it trains in one process, then starts two by `torchrun`'s module, which train the
same. Each has one thread and one device, the CPU; with `--gpus` an accelerator each. The layers are
unequal, so a cut in the middle of them leaves one process idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import baechi.torch
import torch
from torch import nn

LAYERS, WIDTH, SAMPLES, MICRO_BATCHES, STEPS = 8, 256, 512, 4, 12
CLUSTER = baechi.Cluster("2x1GiB", link="100us,2GB/s")  # what a step may take, and how it is sent


class Layer(nn.Module):
    """A residual block; later ones are wider inside."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        inside = WIDTH * (1 + index // 2)
        self.wide = nn.Linear(WIDTH, inside)
        self.narrow = nn.Linear(inside, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the input and what was learnt of it."""
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


def setup() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Make the model and a mini-batch, the same in every process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer(index) for index in range(LAYERS)), nn.Linear(WIDTH, 10))
    return model, torch.randn(SAMPLES, WIDTH), torch.randint(10, (SAMPLES,))


def train(model: nn.Module, step: Callable[[], torch.Tensor]) -> tuple[list[float], float]:
    """Train; return the losses and the median of the milliseconds of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses, times = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        losses.append(float(step()))
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.perf_counter() - start) * 1e3)
    return losses, statistics.median(times[2:])


def one_process() -> None:
    """Train as ever, the mini-batch in the same parts."""
    model, samples, targets = setup()

    def step() -> torch.Tensor:
        total = torch.zeros(())
        parts = zip(samples.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True)
        for part, wanted in parts:
            loss = nn.functional.cross_entropy(model(part), wanted) / MICRO_BATCHES
            loss.backward()
            total += loss.detach()
        return total

    losses, taken = train(model, step)
    print(f"one process:   loss {losses[0]:.4f} to {losses[-1]:.4f}, {taken:.0f} ms a step")


def worker(gpus: bool) -> None:
    """Train one of the two processes' parts."""
    model, samples, targets = setup()
    placed = baechi.torch.place(
        model,
        samples,
        cluster="auto" if gpus else CLUSTER,
        loss=nn.functional.cross_entropy,
        targets=targets,
        micro_batches=MICRO_BATCHES,
        optimizer="adamw",
        costs="measure",
    )
    losses, taken = train(model, lambda: placed.step(samples, targets))
    if placed.rank != 0:
        return
    plan = placed.plan
    print(f"two processes: loss {losses[0]:.4f} to {losses[-1]:.4f}, {taken:.0f} ms a step\n")
    print(placed)
    graph, devices = plan.micro_batch_graph, plan.cluster
    print("\npredicted, ms a step:")
    for name, method in (("one device", "single"), ("1F1B over equal layers", "1f1b")):
        other = baechi.place_graph(graph, devices, method, micro_batches=MICRO_BATCHES)
        print(f"  {name:<24}{other.makespan_ns / 1e6:6.1f}")
    print(f"  {'planned':<24}{plan.makespan_ns / 1e6:6.1f}")


def main() -> int:
    """Train in one process, then in two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", action="store_true", help="use an accelerator in each process")
    options = parser.parse_args()
    if "RANK" in os.environ:
        worker(options.gpus)
        return 0
    one_process()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    again = [str(Path(__file__).resolve()), *sys.argv[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *again], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
