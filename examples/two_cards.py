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
from baechi.torch.where import Homes, install  # `place` refuses what will run out of memory
from torch import nn

WARM_UP = 2  # steps before the one that is measured
ROOM = 0.95  # of a card is for the step; what an optimizer's step takes for itself is no part of it
AfterStep = Callable[[], None]


@dataclass
class Recipe:
    """What to train, and how people split it."""

    build: Callable[[], nn.Module]
    inputs: Any  # of one call: a tensor, or arguments by name
    loss: Callable[[Any], torch.Tensor]
    memory: Sequence[str]  # of each card
    second_card_from: str  # the first module that the split by hand has on the second card
    # Trains WARM_UP + 1 steps, and calls what it is given after each.
    train: Callable[[Recipe, nn.Module, AfterStep], None] | None = None


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
        bytes_of = (baechi.Cluster(f"1x{each}").devices[0].capacity for each in memory)
        self.cluster = "+".join(f"1xgpu:{int(ROOM * each)}B" for each in bytes_of)

    def step_time(self, train: Callable[[AfterStep], None]) -> float:
        """Return the milliseconds of the step behind those that warm up."""
        starts: list[float] = []

        def after_step() -> None:
            for name in self.names:
                torch.accelerator.synchronize(name)
            starts.append(time.perf_counter() if self.real else float(self._sim.virtual_time()))
            if len(starts) == WARM_UP:
                for name in self.names:
                    torch.accelerator.reset_peak_memory_stats(name)

        train(after_step)
        return (starts[WARM_UP] - starts[WARM_UP - 1]) * 1e3

    def peaks(self) -> str:
        """Write what each card held at most, beside what it has."""
        held = (torch.accelerator.max_memory_allocated(name) for name in self.names)
        return ", ".join(
            f"{most / 2**20:.1f} MiB of {has}" for most, has in zip(held, self.memory, strict=True)
        )


def train_by_itself(recipe: Recipe, model: nn.Module, after_step: AfterStep) -> None:
    """Train as scripts do; inputs are where they are."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=1e-4)
    inputs = recipe.inputs
    for _ in range(WARM_UP + 1):
        optimizer.zero_grad()
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        recipe.loss(output).backward()
        optimizer.step()
        after_step()


def trained(recipe: Recipe, cards: Cards, model: nn.Module) -> str:
    """Train a few steps; say what one takes and what the cards hold, or that memory runs out."""
    train = recipe.train or train_by_itself
    try:
        taken = cards.step_time(lambda after_step: train(recipe, model, after_step))
        return f"{taken:.2f} ms a step; {cards.peaks()}"
    except torch.OutOfMemoryError:
        return "out of memory"


def fresh(recipe: Recipe) -> nn.Module:
    """Return the model with its first weights, and nothing of one before it on the cards."""
    gc.collect()
    torch.manual_seed(0)
    return recipe.build()


def split(model: nn.Module, cards: Cards, second_card_from: str | None) -> None:
    """Put the weights from one module on onto the second card, as people write it."""
    names = [name for name, _ in model.named_parameters()]
    cut = len(names)
    if second_card_from is not None:
        cut = next(i for i, name in enumerate(names) if name.startswith(f"{second_card_from}."))
    first, second = (torch.device(name) for name in cards.names)
    homes = {name: first if i < cut else second for i, name in enumerate(names)}
    homes |= {name: first for name, _ in model.named_buffers()}
    install(model, Homes(model, homes), (first, second))


def compare(recipe: Recipe, real: bool) -> None:
    """Print what one card does, what the split by hand does, and what the plan does."""
    cards = Cards(recipe.memory, real)
    for what, start in (("one card:     ", None), ("split by hand:", recipe.second_card_from)):
        model = fresh(recipe)
        split(model, cards, start)
        print(f"{what} {trained(recipe, cards, model)}")
        del model

    model = fresh(recipe)
    placed = baechi.torch.place(
        model,
        recipe.inputs,
        cards.cluster,
        devices=cards.names,
        loss=recipe.loss,
        costs="measure",
    )
    print(f"planned:       {trained(recipe, cards, model)}")
    print(placed)
    placed.restore()
