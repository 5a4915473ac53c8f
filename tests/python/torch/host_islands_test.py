# SPDX-License-Identifier: Apache-2.0
"""Models that compute a part on the CPU on purpose, and functions that want something there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import doubles, trains_the_same
from step_models import module
from torch import nn

pytestmark = pytest.mark.usefixtures("asynchronous_devices")


class Packed(nn.Module):
    """An LSTM over sequences of different lengths."""

    def __init__(self, to_host: bool) -> None:
        super().__init__()
        self.to_host = to_host
        self.embed = nn.Embedding(50, 8)
        self.layer = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.to_host:
            lengths = lengths.cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(x), lengths, batch_first=True, enforce_sorted=False
        )
        y, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.out(y.mean(1))


@module(lambda: {"embed": nn.Embedding(50, 8), "layer": nn.LSTM(8, 8, batch_first=True)})
def Counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    """An LSTM over the lengths that it counts itself, behind work that takes a device its time."""
    tokens = x
    for _ in range(12):
        tokens = tokens * 2 - x
    lengths = (tokens > 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(
        self.embed(x), lengths, batch_first=True, enforce_sorted=False
    )
    return self.layer(packed)[1][0]


@module(lambda host: {"host": host, "first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
def Ordered(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Sorts by NumPy what it computed on the CPU, as DETR matches boxes."""
    h = self.first(x)
    cost = torch.cdist(h.detach(), h.detach())
    if self.host == "cpu":
        cost = cost.cpu()
    elif self.host == "to":
        cost = cost.to("cpu")
    order = (cost * 2 + 1).sum(1)
    assert order.is_cpu or not self.host
    index = torch.from_numpy(order.numpy().argsort().copy())
    return self.second(h[index.to(h.device)])


@module(lambda: {"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
def Offloading(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Computes on the CPU with gradients, and goes on with the result on the device."""
    h = self.first(x)
    if h.sum() > 1e9:
        return h
    there = h.cpu()
    y = (there * there).sin() + there
    assert y.is_cpu
    return self.second(y.to(h.device) + h)


@pytest.mark.parametrize("host", ["", "+1xhost:1GiB"])
@pytest.mark.parametrize("to_host", [False, True])
def test_lengths_of_sequences(to_host: bool, host: str) -> None:
    torch.manual_seed(3)
    inputs = (torch.randint(0, 50, (4, 7)), torch.tensor([7, 5, 3, 2]))
    homes = ("cpu", "sim:1") if to_host else ("cpu",)  # PyTorch itself refuses the others
    trains_the_same(Packed(to_host).double(), inputs, homes=homes, host=host)


def test_lengths_that_a_device_counts() -> None:
    torch.manual_seed(3)
    x = torch.randint(1, 50, (4, 7)) * (torch.arange(7) < torch.tensor([[3], [7], [1], [5]]))
    trains_the_same(Counted().double(), x, homes=("cpu",))


@pytest.mark.parametrize(
    ("build", "homes"),
    [
        (lambda: Ordered("cpu"), ("cpu", "sim:1")),
        (lambda: Ordered("to"), ("cpu", "sim:1")),
        (lambda: Ordered(""), ("cpu",)),  # it only knew the CPU, and looks at its tensors by NumPy
        (Offloading, ("cpu", "sim:1")),  # gradients come back from there
    ],
)
def test_what_was_sent_to_the_cpu_is_computed_there(build: Any, homes: tuple[str, ...]) -> None:
    torch.manual_seed(3)
    trains_the_same(build().double(), doubles((6, 8)), homes=homes)
