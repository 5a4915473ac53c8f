#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model that runs out of memory on one device trains on four.

          2 GiB, simulated                       4 x 2 GiB, simulated
      sim:0 [all 24 layers] -> out of memory     sim:0 [.....] -> sim:1 [.....] -> sim:2 -> sim:3

Needs `baechi[torch]` and a C++ compiler; no accelerator. Takes a minute or two the first time, when
the simulator is compiled. `--gpus` uses the accelerators of this machine instead.
"""

from __future__ import annotations

import argparse
import gc
import time

import baechi.torch
import torch
from torch import nn

WIDTH, LAYERS, BATCH = 32, 24, 480_000  # wide in what it keeps, cheap to compute


class Layer(nn.Module):
    """A residual block with a plain sum in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the input and what was learnt of it."""
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))))


def train(model: nn.Module, inputs: torch.Tensor, steps: int) -> None:
    """A training loop as anybody writes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        print(f"  step {step}: loss {loss.item():.6f}")


def main() -> None:
    """Fail on one device, then train on four."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", action="store_true", help="use real accelerators")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--memory", default="2GiB", help="of each device")
    options = parser.parse_args()
    if not options.gpus:
        from baechi.torch import sim

        sim.configure(devices=4, memory=options.memory, asynchronous=False)
    device = torch.accelerator.current_accelerator()
    assert device is not None
    torch.manual_seed(0)
    inputs = torch.randn(options.batch, WIDTH)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))

    print(f"one device of {options.memory}:")
    try:
        train(model.to(device), inputs.to(device), 1)
    except torch.OutOfMemoryError as error:
        print(f"  OutOfMemoryError: {error}")
    model.to("cpu").zero_grad()
    gc.collect()  # what the attempt left on the device

    start = time.perf_counter()
    placed = baechi.torch.place(
        model,
        inputs,
        "auto" if options.gpus else f"4x{options.memory}",
        optimizer="sgd",
    )
    print(f"planned in {time.perf_counter() - start:.1f} s; the most each device holds:")
    for name, peak in placed.peaks.items():
        print(f"  {name}: {peak / 2**30:.2f} GiB")
    train(model, inputs, options.steps)
    placed.restore()


if __name__ == "__main__":
    main()
