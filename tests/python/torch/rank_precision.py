# SPDX-License-Identifier: Apache-2.0
"""What two processes do in rank_precision_test.py: python rank_precision.py FOLDER [CASE...].

They train under autocast, in half precision with scaled gradients, and on simulated accelerators.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext as nothing
from pathlib import Path
from typing import Any

import torch
from baechi.torch.trace.exported import export
from rank_cases import at_random, in_processes, join, own_weights, run_cases, said
from torch import distributed, nn

STEPS = 4
SPOILED = 2  # the step in which one gradient is infinite
SCALE = 2.0**10
BFLOAT, HALF = torch.bfloat16, torch.float16
_graphs: dict[tuple[bool, Any], list[Any]] = {}  # traced once


class Mixed(nn.Module):
    """Has what autocast computes in either precision, and asks for the one that it got."""

    def __init__(self, *, inside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.inside = inside  # it switches autocast itself
        self.first, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.norm, self.average = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with around(x.device.type, BFLOAT) if self.inside else nothing():
            x = self.average(torch.relu(self.first(x)))
            shares = (self.key(x) @ self.value(x).t()).softmax(-1).to(x.dtype)
            y = self.norm(shares @ self.tied(x)) + x
            with torch.autocast(x.device.type, enabled=False):
                y = torch.exp(-self.norm(y.float()))
            return self.last(y)


def mixed_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 6, generator=generator)
    return x, torch.randint(0, 6, (12,), generator=generator)


def around(kind: str, dtype: torch.dtype | None) -> Any:
    """Return autocast; off without a type."""
    return torch.autocast(kind, dtype, enabled=dtype is not None)


def spoil(model: nn.Module) -> None:
    """Put an infinity into the gradient of one weight, where it is."""
    gradient = model.get_parameter("last.weight").grad
    if type(gradient) is torch.Tensor:
        gradient[0, 0] = float("inf")


def train(
    model: nn.Module, step: Callable[[], Any], scaler: Any
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Return losses, scales, and the first gradients; with a scaler one step is skipped."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses, scales = [], []
    gradients: dict[str, torch.Tensor] = {}
    for number in range(STEPS):
        losses.append(step().item())
        if scaler is None:
            optimizer.step()
        else:
            if number == SPOILED:
                spoil(model)
            if number % 2:  # else `step` does
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        here = {n: p.grad for n, p in model.named_parameters() if type(p.grad) is torch.Tensor}
        gradients = gradients or {name: grad.clone().cpu() for name, grad in here.items()}
        optimizer.zero_grad()
    return losses, scales, gradients


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.float(), targets)


def in_one_process(
    kind: str, dtype: torch.dtype | None, parts: int, *, inside: bool = False
) -> Any:
    """Return what the steps are in one process on one device."""
    device = "cpu" if kind == "cpu" else f"{kind}:0"
    model = Mixed(inside=inside).to(device)
    x, targets = (t.to(device) for t in mixed_batch())
    scaler = torch.amp.GradScaler(kind, SCALE) if dtype is HALF else None

    def step() -> torch.Tensor:
        total = torch.zeros(())
        for part, wanted in zip(x.chunk(parts), targets.chunk(parts), strict=True):
            with around(kind, dtype):
                loss = loss_of(model(part), wanted)
            loss = loss / parts
            (loss if scaler is None else scaler.scale(loss)).backward()
            total = total + loss.detach().cpu()
        return total

    return train(model, step, scaler)


def placed_for(
    kind: str, parts: Any, x: torch.Tensor, targets: torch.Tensor, **options: Any
) -> tuple[nn.Module, Any]:
    inside, exported = options.pop("inside", False), options.pop("exported", [])
    device = "cpu" if kind == "cpu" else f"{kind}:0"
    model = Mixed(inside=inside)
    loss: Any = {} if parts is None else {"targets": targets}
    options = {**loss, "loss": None if parts is None else loss_of, "seed": 1, **options}
    seed, replicas = options.pop("seed"), options.get("replicas", 1)
    devices = [device] * (2 // replicas)
    return model, at_random(model, x, parts, seed, devices=devices, exported=exported, **options)


def simulate() -> None:
    sim = importlib.import_module("baechi.torch.sim")
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="100us", seed=3)


def steps(kind: str, dtype: torch.dtype | None, parts: int, *, inside: bool = False) -> Any:
    """Train over ranks, placed and run under autocast."""
    if kind == "sim":
        simulate()
    x, targets = mixed_batch()
    scaler = torch.amp.GradScaler(kind, SCALE) if dtype is HALF else None
    with around(kind, dtype):
        exported = _graphs[inside, dtype]
        model, placed = placed_for(kind, parts, x, targets, inside=inside, exported=exported)

    def step() -> Any:
        with around(kind, dtype):
            return placed.step(x, targets, scaler=scaler)

    found = train(model, step, scaler)
    assert placed.transfers > 0
    return found


def calls(kind: str) -> Any:
    """Train with a loss outside, whose scale all ranks have."""
    x, targets = mixed_batch()
    model, placed = placed_for(kind, None, x, targets, exported=_graphs[False, None])
    scaler = placed.agree_on(torch.amp.GradScaler(kind, SCALE))

    def step() -> Any:
        with around(kind, HALF):
            loss = loss_of(model(x), targets)
        scaler.scale(loss).backward()
        return loss.detach()

    return train(model, step, scaler)


def replicas() -> Any:
    """Two copies; one finds an infinity that the mean of both gradients does not show."""
    x, targets = mixed_batch()
    half = distributed.get_rank()
    mine = x.chunk(2)[half], targets.chunk(2)[half]
    scaler = torch.amp.GradScaler("cpu", SCALE)
    options = {"replicas": 2, "exported": _graphs[False, None]}
    model, placed = placed_for("cpu", 2, *mine, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    with around("cpu", HALF):
        placed.step(*mine, scaler=scaler)
    if half:
        spoil(model)
    before = own_weights(placed)
    scaler.step(optimizer)
    scaler.update()
    same = all(torch.equal(w, before[n]) for n, w in own_weights(placed).items())
    return same, scaler.get_scale()


def turns() -> Any:
    """Return losses of steps and calls in and out of autocast, and what is said on the way."""
    x, targets = mixed_batch()
    rank = distributed.get_rank()
    model, placed = placed_for("cpu", 2, x, targets, exported=_graphs[False, None])
    losses = []
    for dtype in (None, BFLOAT, None, HALF, BFLOAT):
        model.average.reset_running_stats()
        with around("cpu", dtype):
            losses.append(placed.step(x, targets).item())
            with torch.no_grad():
                losses.append(loss_of(model(x), targets).item())
    scaler = torch.amp.GradScaler("cpu", SCALE * (1 + rank))
    other = torch.amp.GradScaler("cpu", SCALE)
    other.scale(torch.zeros(()))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    found = {"scale": said(lambda: placed.step(x, targets, scaler=scaler))}
    found["kind"] = said(lambda: placed.step(x, targets, scaler=1024.0))
    found["alone"] = said(lambda: other.unscale_(optimizer))
    with around("cpu", BFLOAT if rank else None):
        found["on one"] = said(lambda: placed.step(x, targets))
        found["called on one"] = said(lambda: model(x))
    off = torch.amp.GradScaler("cpu", enabled=False)
    found["off"] = said(lambda: placed.step(x, targets, scaler=placed.agree_on(off)))
    return losses, found


CASES: dict[str, Callable[[], Any]] = {
    "bfloat 1": functools.partial(steps, "cpu", BFLOAT, 1),
    "bfloat 3": functools.partial(steps, "cpu", BFLOAT, 3),
    "half 3": functools.partial(steps, "cpu", HALF, 3),
    "called": functools.partial(calls, "cpu"),
    "replicas": replicas,
    "turns": turns,
    "inside": functools.partial(steps, "cpu", None, 3, inside=True),
    "simulated bfloat": functools.partial(steps, "sim", BFLOAT, 3),
    "simulated half": functools.partial(steps, "sim", HALF, 3),
    "simulated inside": functools.partial(steps, "sim", None, 3, inside=True),
}


def main(folder: Path) -> int:
    """Part into two processes; return how many failed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    x, _ = mixed_batch()
    for inside, dtype in ((False, None), (False, BFLOAT), (False, HALF), (True, None)):
        _graphs[inside, dtype] = [export(Mixed(inside=inside), x, autocast=dtype)]

    def work(rank: int) -> None:
        join(folder / "rendezvous", rank, 2)
        run_cases(CASES.items(), folder, rank)

    return sum(code != 0 for code in in_processes(2, folder, work))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
