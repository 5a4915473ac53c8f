# SPDX-License-Identifier: Apache-2.0
"""What processes do in ranks_test.py: python rank_cases.py FOLDER CASE..., each by its rank.

What a case returns it leaves in the folder. A case's model is trained by `alone` in the test, too.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import baechi.torch
import torch
from step_models import Convolutions, Tied, Twice, language_model
from torch import distributed, nn

STEPS = 3
TIMEOUT = timedelta(seconds=60)  # for a machine that is busy with much else


class Frozen(nn.Module):
    """Branches, a frozen part, one that no loss reads, and what is not on its way at first."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.fixed, self.unread = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left(x).tanh().t().contiguous().t()  # of odd strides
        found: torch.Tensor = self.last(torch.cat([self.fixed(left), self.right(x).relu()], 1))
        return found


@dataclass(frozen=True)
class Case:
    """A model, placed at random, and how it is trained."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Any]
    micro_batches: int
    seed: int = 1
    loss: Callable[..., torch.Tensor] | None = None
    targets: Callable[[], Any] = lambda: None
    sizes: tuple[int, ...] = ()  # of the mini-batches, by default that of the example
    accumulate: bool = False


def mean_square(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output - targets).square().mean()


def of_logits(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.logits.square().mean()
    return found


def rows(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape, dtype=torch.double)


CASES = {
    "twice": Case(Twice, rows(8, 8), 2, 1, mean_square, rows(8, 4)),
    "images": Case(Convolutions, rows(4, 3, 8, 8), 1, 2, mean_square, rows(4, 5)),
    "tied": Case(Tied, lambda: torch.randint(11, (8, 5)), 4, 1, mean_square, rows(8, 5, 11)),
    "gpt2": Case(
        lambda: language_model("gpt2", 2)[0], lambda: language_model("gpt2", 2)[1], 2, 3, of_logits
    ),
    "smaller": Case(Frozen, rows(8, 6), 4, 4, mean_square, rows(8, 3), (8, 7, 8)),
    "accumulated": Case(Frozen, rows(8, 6), 2, 5, mean_square, rows(8, 3), accumulate=True),
}


def built(case: Case) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(7)
    return case.model().double(), case.batch(), case.targets()


def first(value: Any, count: int) -> Any:
    if isinstance(value, dict):
        return {name: part[:count] for name, part in value.items()}
    return None if value is None else value[:count]


def train(case: Case, model: nn.Module, step: Callable[[Any, Any], Any], batch: Any) -> list[float]:
    """Return the losses of some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for size in case.sizes or (10**6,) * STEPS:
        losses.append(float(step(first(batch[0], size), first(batch[1], size))))
        if not case.accumulate or len(losses) == 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def alone(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train in this process, one micro-batch after the other."""
    model, *batch = built(case)
    total = next(iter(tensors(batch[0]))).shape[0]
    size = total // case.micro_batches

    def step(inputs: Any, targets: Any) -> float:
        count = next(iter(tensors(inputs))).shape[0]
        found = 0.0
        for begin in range(0, count, size):
            end = min(begin + size, count)
            part = {k: v[begin:end] for k, v in inputs.items()} if isinstance(inputs, dict) else ()
            output = model(**part) if part else model(inputs[begin:end])
            assert case.loss is not None
            loss = case.loss(output, *([] if targets is None else [targets[begin:end]]))
            (loss * ((end - begin) / count)).backward()
            found += loss.item() * (end - begin) / count
        return found

    losses = train(case, model, step, batch)
    return losses, {n: t.detach() for n, t in named(model)}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    yield from value.values() if isinstance(value, dict) else [value]


def named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def placed_at_random(case: Case, model: nn.Module, batch: Any, **options: Any) -> Any:
    count = distributed.get_world_size() if distributed.is_initialized() else 2
    return baechi.torch.place(
        model,
        batch[0],
        f"{count}x1GiB",
        loss=case.loss,
        targets=batch[1],
        micro_batches=case.micro_batches,
        method="random",
        seed=case.seed,
        bounds=False,
        **{"devices": ["cpu"] * count, **options},
    )


def own(placed: Any) -> dict[str, torch.Tensor]:
    here = placed.planned.names[placed.rank]
    where = placed.weight_devices
    return {n: t.detach().clone() for n, t in named(placed.model) if where[n] == here}


def over_ranks(name: str) -> Any:
    """Train a case; what others have takes no memory."""
    case = CASES[name]
    model, *batch = built(case)
    placed = placed_at_random(case, model, batch)
    losses = train(case, model, placed.step, batch)
    mine = own(placed)
    others = [t for n, t in named(model) if n not in mine]
    assert all(t.untyped_storage().nbytes() <= 16 for t in others)
    assert all(t.isnan().all() for t in others if t.is_floating_point())
    return losses, mine, torch.rand(2)


def main() -> None:
    folder, *cases = sys.argv[1:]
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    rank = distributed.get_rank()
    for case in cases:
        found = over_ranks(case) if case in CASES else globals()[case](Path(folder))
        torch.save(found, Path(folder) / f"{case} {rank}.pt")
        print("done", case, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
