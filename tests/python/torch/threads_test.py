# SPDX-License-Identifier: Apache-2.0
"""Threads that share a placed model, and models that have threads of their own."""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from torch import nn

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")


class Slow(nn.Module):
    """Says that its forward runs, and lets other threads come in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        entered.set()
        time.sleep(0.05)
        return self.b(x)


entered = threading.Event()


def test_a_call_while_a_graph_is_made_in_another_thread_is_as_any() -> None:
    torch.manual_seed(1)
    plain = Slow().eval()
    model = copy.deepcopy(plain)
    with torch.no_grad():
        placed = baechi.torch.place(model, torch.randn(2, 4), "2x1GiB", devices=["cpu"] * 2)
        for rank in range(1, 5):  # each gets a graph
            batch, known = torch.randn(*[1] * rank, 3, 4), torch.randn(2, 4)
            found: list[Any] = []

            def call(batch: torch.Tensor = batch, found: list[Any] = found) -> None:
                with torch.no_grad():
                    found.append(model(batch))

            entered.clear()
            other = threading.Thread(target=call)
            other.start()
            entered.wait()
            torch.testing.assert_close(model(known), plain(known))
            other.join()
            torch.testing.assert_close(found[0], plain(batch))
        assert placed.graphs == 5
        placed.restore()


class Mapped(nn.Module):
    """Calls its modules in threads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda layer: layer(x), self.layers), x)


def test_a_forward_with_threads_of_its_own_is_refused() -> None:
    model, x = Mapped(), torch.ones(2, 4)
    with pytest.raises(baechi.InputError, match=r"layers\.\d is called by another thread"):
        baechi.torch.place(model, x, "2x1GiB", devices=["cpu"] * 2)
    model(x)  # nothing is left of the attempt
