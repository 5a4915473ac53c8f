# SPDX-License-Identifier: Apache-2.0
"""A model whose calls have to stay in order, since they change what others read."""

from __future__ import annotations

import functools
from typing import Any

import torch
from baechi.torch.trace.exported import export
from random_placement import placed_at_random
from torch import nn


class Changing(nn.Module):
    """Changes in place what others read, through views and after it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.readers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.tanh(self.first(x)) * 1
        early = self.readers[0](x)
        view = x[:, :2]
        with torch.no_grad():
            self.seen += x.mean(0)
        x = x.clone() + 0
        early = early + x.sum(1, keepdim=True)
        late = x[:, 2:]
        late.mul_(2)
        early = early + x.sum(1, keepdim=True)
        x.add_(1)
        middle = self.readers[1](x) + self.readers[2](x).relu_()
        return {"all": early + middle + self.seen, "view": self.readers[3](x)[:, :2] + view}


def changing() -> Any:
    torch.manual_seed(7)
    return Changing()


@functools.cache
def changing_graph() -> Any:
    return export(changing(), torch.randn(2, 4))


def changing_placed(seed: int, devices: int | list[str] = 3, **options: Any) -> Any:
    known = [changing_graph()]
    inputs = torch.randn(2, 4)
    return placed_at_random(
        changing(), inputs, devices, seed=seed, tier=2, exported=known, **options
    )
