# SPDX-License-Identifier: Apache-2.0
"""What compiled regions bring on the CPU: processor time of a call and its backward.

    python bench/torch_compiled.py

Unplaced, unplaced under `torch.compile`, placed on one device, and that with `compile=True`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import baechi.torch
import torch
from torch import nn

from models.pytorch import llama, vit

REPEATS = 15
SIZES = {
    "Llama": (
        llama.Llama(
            llama.Config(1000, width=256, feed_forward=704, heads=4, key_heads=2, layers=4)
        ),
        {"words": torch.randint(1000, (2, 128)), "labels": torch.randint(1000, (2, 128))},
    ),
    "ViT": (
        vit.Vit(vit.Config(image=64, patch=8, width=256, heads=4, layers=4, classes=100)),
        {"images": torch.randn(4, 3, 64, 64), "labels": torch.randint(100, (4,))},
    ),
}


def stepping(model: nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return a call and its backward, compiled by two of them."""

    def step() -> None:
        model.zero_grad()
        model(**batch).backward()

    step()
    step()
    return step


def main() -> None:
    """Print a table of milliseconds."""
    torch.set_num_threads(1)
    print("model  unplaced  torch.compile  placed  compile=True")
    for name, (model, batch) in SIZES.items():
        steps = [
            stepping(copy.deepcopy(model), batch),
            stepping(torch.compile(copy.deepcopy(model)), batch),
        ]
        for compiled in (False, True):
            placed = copy.deepcopy(model)
            baechi.torch.place(placed, batch, "1x64GiB", devices=["cpu"], compile=compiled)
            steps.append(stepping(placed, batch))
        times: list[list[float]] = [[] for _ in steps]
        for _ in range(REPEATS):
            for step, found in zip(steps, times, strict=True):
                begin = time.process_time()
                step()
                found.append(time.process_time() - begin)
        cells = [f"{1e3 * statistics.median(found):.1f}" for found in times]
        print(f"{name:<6}{cells[0]:>9}{cells[1]:>15}{cells[2]:>8}{cells[3]:>14}")


if __name__ == "__main__":
    main()
