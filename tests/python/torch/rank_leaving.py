# SPDX-License-Identifier: Apache-2.0
"""A case of rank_calls.py: how much a rank grows while it sends many values of one size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rank_cases import at_random, mean_square, resident
from torch import nn

MICRO_BATCHES = 16
SENT = 64 << 20  # bytes of values in a step, and of their gradients
_WIDTH = 16384
_SEED = 5  # of a random placement whose layers are apart


class Widening(nn.Module):
    """What travels is large, and no backward of its sender needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, _WIDTH)
        self.second = nn.Linear(_WIDTH, 8)
        self.third = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


def growth() -> Any:
    """Return whether this rank sends values, what it sends, and how it grows in a step at most."""
    torch.manual_seed(2)
    model = Widening()
    x = torch.randn(SENT // 4 // _WIDTH, 64)
    placed: Any = at_random(model, x, MICRO_BATCHES, _SEED, loss=mean_square)
    where = placed.weight_devices
    assert where["first.weight"] != where["second.weight"]
    transport = placed._stepper.transport
    placed.step(x)
    grown = []
    for _ in range(4):
        model.zero_grad()
        before, sent = resident("VmRSS"), transport.bytes
        Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
        placed.step(x)
        grown.append(resident("VmHWM") - before)
        assert transport.outgoing.held == 0
    here = placed.plan.cluster.devices[placed.rank].name
    return where["first.weight"] == here, transport.bytes - sent, min(grown)
