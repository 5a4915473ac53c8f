#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs the host that a PyTorch model is placed.

Two figures, each a median of ratios taken in turns in one run: the step time of a 12-layer
Transformer placed on one device against the same model unplaced, and the time that one module call
takes more when neighbouring modules are on different logical devices of the CPU, copies left out.

    python bench/torch_overhead.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import baechi.torch
import torch
from baechi.torch.communication import Arrival, Links
from torch import nn


def cpu_time(call: Callable[[], Any]) -> float:
    """Return the processor seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def step(model: nn.Module, inputs: torch.Tensor) -> None:
    """Run one step of training."""
    model.zero_grad()
    model(inputs).square().mean().backward()


def one_device(rounds: int) -> float:
    """Return the step time of the placed model as a multiple of the unplaced one's."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
    plain, placed = nn.TransformerEncoder(layer, 12), nn.TransformerEncoder(layer, 12)
    inputs = torch.randn(4, 64, 128)
    baechi.torch.place(placed, inputs, "1x64GiB", devices=["cpu"])
    step(plain, inputs)
    step(placed, inputs)
    pairs = [
        (cpu_time(lambda: step(placed, inputs)), cpu_time(lambda: step(plain, inputs)))
        for _ in range(rounds)
    ]
    return statistics.median(a / b for a, b in pairs)


def _stay(_: Links, tensor: torch.Tensor, *ends: Any) -> Arrival:  # noqa: ARG001
    return Arrival(tensor, None, None, None)


def per_call(rounds: int, calls: int = 200) -> float:
    """Return the microseconds that interception adds to a module call."""
    plain = nn.Sequential(*(nn.Identity() if i % 2 else nn.Tanh() for i in range(calls)))
    placed = nn.Sequential(*(nn.Identity() if i % 2 else nn.Tanh() for i in range(calls)))
    inputs = torch.randn(1)
    captured = baechi.torch.capture(placed, inputs, training=False)
    device_of = {op.key: f"d{int(op.key) // 2 % 2}" for op in captured.ops}
    Links.send = _stay  # type: ignore[method-assign]
    baechi.torch.assign(placed, captured, device_of, {"d0": "cpu", "d1": "cpu"})
    with torch.no_grad():
        pairs = [
            (cpu_time(lambda: placed(inputs)), cpu_time(lambda: plain(inputs)))
            for _ in range(rounds)
        ]
    return statistics.median((a - b) / calls for a, b in pairs) * 1e6


def main() -> None:
    """Print both figures."""
    torch.set_num_threads(1)
    ratio = one_device(15)
    print(f"12-layer Transformer on one device: {100 * (ratio - 1):+.1f}% step time")
    print(f"interception of a module call: {per_call(30):.1f} us")


if __name__ == "__main__":
    main()
