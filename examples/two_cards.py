# SPDX-License-Identifier: Apache-2.0
"""Trains a model on one card, split by hand over two, and planned; what the recipes share.

The cards are simulated: a kernel takes 20 us and what it reads and writes at 10 GB/s, a copy 20 us
and its bytes at 6 GB/s, on a virtual clock, so the times are the same on every machine. With
`--gpus` they are the first two accelerators of this one.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import baechi.torch
import torch
from baechi.torch.placing import assign  # `place` refuses what will run out of memory
from torch import nn

WARM_UP = 2  # steps before the one that is measured


@dataclass
class Recipe:
    """What to train, and how people split it."""

    build: Callable[[], nn.Module]
    inputs: torch.Tensor
    loss: Callable[[Any], torch.Tensor]
    memory: Sequence[str]  # of each card
    second_card_from: str  # the first operator that the split by hand has on the second card


def options_of(text: str | None, memory: Sequence[str]) -> argparse.Namespace:
    """Read the command line that all recipes have."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--gpus", action="store_true", help="use the accelerators of this machine")
    parser.add_argument("--memory", nargs=2, default=memory, help="of each card")
    return parser.parse_args()


class Cards:
    """Two cards, their clock and their memory."""

    def __init__(self, memory: Sequence[str], real: bool) -> None:
        self.memory = memory
        self.real = real
        if not real:
            import baechi.torch.sim as sim

            sim.configure(
                devices=2,
                memory=list(memory),
                clock="virtual",
                operator_time="20us",
                memory_bandwidth="10GB/s",
                link=sim.Link("20us", "6GB/s"),
            )
            self._sim = sim
        kind = torch.accelerator.current_accelerator()
        assert kind is not None, "no accelerator is found: leave --gpus out"
        self.names = [f"{kind.type}:{index}" for index in range(2)]
        self.cluster = "+".join(f"1xgpu:{each}" for each in memory)

    def costs(self, recipe: Recipe) -> Any:
        """Measure what the operators take; simulated cards get the room for that meanwhile."""
        if self.real:
            return "measure"
        with self._sim.configured(memory=None):
            model = fresh(recipe)
            captured = baechi.torch.capture(model, recipe.inputs, loss=recipe.loss)
            model.to(self.names[0])
            inputs = recipe.inputs.to(self.names[0])
            return baechi.torch.measure(model, inputs, captured, loss=recipe.loss)

    def step_time(self, step: Callable[[], None]) -> float:
        """Return the milliseconds of a step, after a few that warm up."""
        for _ in range(WARM_UP):
            step()
        for name in self.names:
            torch.accelerator.synchronize(name)
            torch.accelerator.reset_peak_memory_stats(name)
        if not self.real:
            self._sim.reset_virtual_clock()
        start = time.perf_counter()
        step()
        for name in self.names:
            torch.accelerator.synchronize(name)
        if self.real:
            return (time.perf_counter() - start) * 1e3
        return float(self._sim.virtual_time()) * 1e3

    def peaks(self) -> str:
        """Write what each card held at most, beside what it has."""
        held = (torch.accelerator.max_memory_allocated(name) for name in self.names)
        return ", ".join(
            f"{most / 2**20:.1f} MiB of {has}" for most, has in zip(held, self.memory, strict=True)
        )


def trained(recipe: Recipe, cards: Cards, model: nn.Module, inputs: torch.Tensor) -> str:
    """Train a few steps; say what one takes and what the cards hold, or that memory runs out."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        recipe.loss(model(inputs)).backward()
        optimizer.step()

    try:
        return f"{cards.step_time(step):.2f} ms a step; {cards.peaks()}"
    except torch.OutOfMemoryError:
        return "out of memory"


def fresh(recipe: Recipe) -> nn.Module:
    """Return the model with its first weights, and nothing of one before it on the cards."""
    gc.collect()
    torch.manual_seed(0)
    return recipe.build()


def by_hand(recipe: Recipe, cards: Cards, model: nn.Module) -> Any:
    """Put everything from one operator on onto the second card, as people write it."""
    captured = baechi.torch.capture(model, recipe.inputs, loss=recipe.loss)
    names = baechi.torch.plan(
        model, recipe.inputs, "2xgpu:1TiB", loss=recipe.loss, method="single"
    ).graph.names
    forward = [name for name in names if not name.endswith(":backward")]
    behind = set(forward[forward.index(recipe.second_card_from) :])
    device_of = {
        name: "gpu:1" if name.removesuffix(":backward") in behind else "gpu:0" for name in names
    }
    return assign(
        model, captured, device_of, dict(zip(("gpu:0", "gpu:1"), cards.names, strict=True)), tier=1
    )


def compare(recipe: Recipe, real: bool) -> None:
    """Print what one card does, what the split by hand does, and what the plan does."""
    cards = Cards(recipe.memory, real)
    first = cards.names[0]
    model = fresh(recipe).to(first)
    print(f"one card:      {trained(recipe, cards, model, recipe.inputs.to(first))}")

    model = fresh(recipe)
    placed = by_hand(recipe, cards, model)
    print(f"split by hand: {trained(recipe, cards, model, recipe.inputs)}")
    placed.restore()
    del placed

    model = fresh(recipe)
    costs = cards.costs(recipe)
    placed = baechi.torch.place(
        model,
        recipe.inputs,
        cards.cluster,
        devices=cards.names,
        loss=recipe.loss,
        costs=costs,
        gradients="freed",  # each step begins with zero_grad()
    )
    print(f"planned:       {trained(recipe, cards, model, recipe.inputs)}")
    print(placed)
    placed.restore()
