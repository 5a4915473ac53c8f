# SPDX-License-Identifier: Apache-2.0
"""What three processes do in rank_calls_test.py: python rank_calls.py FOLDER [CASE...].

They call models over ranks, and call backward, as one process does.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rank_cases
import rank_inputs
import rank_leaving
import torch
import torch_models
from baechi.torch.record.capture import call_arguments
from baechi.torch.trace.exported import export
from rank_cases import at_random, join, odd_batch, odd_loss, odd_model, own_weights, said
from torch import distributed, nn

WAITS = 3.0  # seconds that a group waits where a rank does not come
# Of models/pytorch or transformers: model, seed of the placement, for so many ranks.
MODEL_CASES = {2: [("hf:gpt2", 2)], 3: [("two-tower", 1)]}
if "gpt2" not in torch_models.TRANSFORMERS or "gpt2" not in torch_models.ALL:  # not installed
    MODEL_CASES[2] = []
_graphs: dict[str, list[Any]] = {}  # traced once


def training(model: nn.Module, inputs: Any) -> Callable[[], torch.Tensor]:
    """Return what calls a model and its backward."""
    args, kwargs = call_arguments(inputs)

    def step() -> torch.Tensor:
        out: Any = model(*args, **kwargs)
        loss: torch.Tensor = rank_cases.own_loss(out)
        loss.backward()
        return loss.detach()

    return step


def train_called(name: str, seed: int) -> Any:
    model, inputs = rank_cases.built(name)
    placed = at_random(model, inputs, None, seed, exported=_graphs[name], loss=None)
    losses = rank_cases.trained(model, training(model, inputs))
    assert placed.transfers > 0
    return losses, own_weights(placed)


def odd_training(model: nn.Module, where: str = "cpu") -> list[float]:
    """Train with a loss that is computed outside, and look at the model without gradients.

    Two calls have one backward, a call has none, a batch is smaller, and outputs are changed.
    """
    x, targets = (tensor.to(where) for tensor in odd_batch())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for number in range(4):
        found = model(x)
        losses.append(odd_loss(found, targets))
        if number == 1:
            again = model(x * 0.5)
            losses.append(losses.pop() + again["logits"].square().mean())
        if number == 2:
            model(x)  # for nothing
        if number == 3:
            model(x)["logits"].sum().backward()  # gradients add up
        losses[-1].backward()
        found["mask"].zero_()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            left = model(x[:5])["logits"]
            losses.append(left.mul_(2.0).sum())
        model.eval()
        with torch.no_grad():
            losses.append(model(x)["logits"].sum())
        losses.append(model(x)["logits"].detach().sum())
        model.train()
    return [loss.item() for loss in losses]


def train_odd_called(seed: int, where: str = "cpu", **options: Any) -> Any:
    x, _ = odd_batch()
    model = odd_model()
    placed = at_random(model, x, None, seed, exported=_graphs["odd"], loss=None, **options)
    assert bool(placed.plan.recomputed) == ("recompute" in options)
    losses = odd_training(model, where)
    return losses, own_weights(placed)


def also_steps() -> Any:
    """Return the losses of steps and of calls between them; of the plan of a step."""
    x, targets = odd_batch()
    model = odd_model()
    options = {"loss": odd_loss, "targets": targets, "exported": _graphs["odd"]}
    placed = at_random(model, x, 2, 4, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(2):
        losses.append(placed.step(x, targets).item())
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses.append(odd_loss(model(x), targets).item())
        loss = odd_loss(model(x), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, own_weights(placed)


def simulated(apart: bool = False) -> Any:
    """Each process has an accelerator; outputs are where the arguments are.

    With `apart` those of one rank are on its accelerator, and those of the other on the host.
    """
    sim = importlib.import_module("baechi.torch.sim")
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="100us", seed=3)
    where = "sim:0" if apart and distributed.get_rank() else "cpu"
    losses, weights = train_odd_called(2, where, devices=["sim:0"] * 2)
    assert {weight.device.type for weight in weights.values()} == {"sim"}
    return losses, {name: weight.cpu() for name, weight in weights.items()}


def replicas() -> Any:
    """Two copies on a rank each, with half of the batch each."""
    x, targets = odd_batch()
    half = distributed.get_rank()
    model = odd_model()
    mine = x.chunk(2)[half]
    at_random(model, mine, None, 2, exported=_graphs["odd"], loss=None, replicas=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(2):
        odd_loss(model(mine), targets.chunk(2)[half]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach().clone() for n, p in model.named_parameters()}, beside_the_loss(2)


def beside_the_loss(replicas: int) -> dict[str, torch.Tensor]:
    """Return the gradients of a model's own loss and of what it returns beside it."""
    x, targets = odd_batch()
    model = Returning()
    if replicas > 1:
        options: Any = {"loss": None, "replicas": replicas}
        at_random(model, {"x": x, "targets": targets}, None, 1, **options)
    out = model(x, targets)
    (out.loss + out.logits.square().mean()).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@dataclass
class Returned:
    loss: torch.Tensor
    logits: torch.Tensor


class Returning(nn.Module):
    """Returns its loss beside what else there is, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = odd_model()

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> Any:
        out = self.odd(x)
        loss = nn.functional.cross_entropy(out["logits"], targets)
        return Returned(loss, out["logits"])


def refused() -> dict[str, str]:
    """Return what is said where ranks do not do the same, and of what cannot be."""
    rank = distributed.get_rank()
    x, targets = odd_batch()
    model = odd_model()
    options = {"exported": _graphs["odd"], "loss": None}
    placed = at_random(model, x, None, 2, **options)
    found = {
        "step": said(lambda: placed.step(x)),
        "part": said(lambda: model.first(x)),
        "argument": said(lambda: model(x.clone().requires_grad_(rank == 1))),
        "batch": said(lambda: model(x[: 8 - 4 * rank])),
        "values": said(lambda: model(x + rank)),
        "grad": said(lambda: model(x) if rank else _without_gradients(model, x)),
        "outputs": said(lambda: at_random(odd_model(), x, None, 2, **options, outputs="all")),
        "targets": said(lambda: at_random(odd_model(), x, None, 2, **options, targets=targets)),
    }
    loss = odd_loss(model(x), targets) * (1 + rank)
    found["loss"] = said(loss.backward)
    column = model(x)["logits"][:, rank]
    found["directions"] = said(column.sum().backward)
    out = model(x)
    found["other"] = said(out["logits" if rank else "size"].sum().backward)
    loss = odd_loss(model(x), targets)
    found["one calls"] = said(loss.backward if rank else lambda: model(x))
    loss = odd_loss(model(x), targets)
    loss.backward(retain_graph=True)
    found["twice"] = said(loss.backward)
    first, second = (model(x)["logits"].sum() for _ in range(2))
    found["order"] = said((first if rank else second).backward)
    found["copied"] = said(lambda: copy.deepcopy(model))
    found["averaged"] = said(lambda: torch.optim.swa_utils.AveragedModel(model))
    found["changed"] = change_between()
    model.zero_grad()
    loss = odd_loss(model(x), targets)
    loss.backward()
    found["then"] = f"loss {loss.item():.9f}"

    returning = Returning()
    at_random(returning, {"x": x, "targets": targets}, None, 1, loss=None)
    out = returning(x, targets)
    found["own loss"] = f"loss {out.loss.item():.9f}"
    found["logits"] = said(lambda: out.logits.sum())
    found["shape"] = f"{tuple(out.logits.shape)}"
    returning = Returning()
    everywhere: Any = {"outputs": "everywhere", "loss": None}
    at_random(returning, {"x": x, "targets": targets}, None, 1, **everywhere)
    found["gathered"] = f"logits {returning(x, targets).logits.sum().item():.9f}"
    found["failing"] = said(lambda: returning(x, targets + 100))  # no such class
    return found


class Tied(nn.Module):
    """Reads a weight by two operators, with others between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(self.embedding(words)))))
        return x @ self.embedding.weight.t()


def change_between() -> str:
    """Return what a backward says behind a step of a weight that two operators read."""
    torch.manual_seed(3)
    model, words = Tied(), torch.arange(8).view(2, 4)
    at_random(model, words, None, 1, loss=None)
    losses = [model(words).square().mean() for _ in range(2)]
    losses[0].backward()
    torch.optim.SGD([model.embedding.weight], 0.1).step()
    return said(losses[1].backward)


def _without_gradients(model: nn.Module, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(x)


def missing(folder: Path, rank: int) -> None:
    """Have rank 1 call no backward; leave what rank 0 says, and after how many seconds."""
    x, targets = odd_batch()
    model = odd_model()
    placed = at_random(model, x, None, 1, exported=_graphs["odd"], loss=None)
    odd_loss(model(x), targets).backward()
    rank_cases.limit_waiting(placed)
    loss = odd_loss(model(x), targets)
    if rank == 1:
        time.sleep(2 * WAITS + 6)
        return
    begin = time.monotonic()
    found = said(loss.backward), time.monotonic() - begin
    torch.save(found, folder / "missing.pt")


def cases_of(world: int) -> dict[str, Callable[[], Any]]:
    """Return what so many ranks run, by name."""
    cases: dict[str, Callable[[], Any]] = {
        f"called {name} {seed}": functools.partial(train_called, name, seed)
        for name, seed in MODEL_CASES[world]
    }
    cases[f"odd called {world}"] = functools.partial(train_odd_called, world)
    for seed in (1, 2):
        of = functools.partial(rank_inputs.gradients_of_arguments, seed, False)
        cases[f"arguments {world} {seed}"] = of
    if world == 3:
        again = {"recompute": "all", "exported": _graphs["odd"]}
        cases["outside"] = functools.partial(rank_inputs.trained_with_what_comes_before, **again)
        cases["inference"] = functools.partial(rank_inputs.inference, False)
        cases["inference as planned"] = functools.partial(rank_inputs.inference, True)
        cases["odd called 3 again"] = functools.partial(train_odd_called, 3, recompute="all")
        cases["steps"] = also_steps
    else:
        cases["simulated"] = simulated
        cases["simulated apart"] = functools.partial(simulated, True)
        of = functools.partial(rank_inputs.gradients_of_arguments, 2, True)
        cases["arguments simulated"] = of
        cases["leaving"] = rank_leaving.growth
        cases["asked"] = rank_inputs.asked_of_weights
        cases["refused"] = refused
        cases["replicas"] = replicas
    return cases


def run(world: int, folder: Path, rank: int) -> None:
    join(folder / f"rendezvous-{world}", rank, world)
    rank_cases.run_cases(cases_of(world).items(), folder, rank)


def main(folder: Path) -> int:
    """Part into three processes; return how many failed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name, seed in [case for cases in MODEL_CASES.values() for case in cases]:
        if not sys.argv[2:] or f"called {name} {seed}" in sys.argv[2:]:
            _graphs[name] = [export(*rank_cases.built(name))]
    _graphs["odd"] = [export(odd_model(), odd_batch()[0])]

    def work(number: int) -> None:
        run(3, folder, number)
        if number < 2:
            run(2, folder, number)
            join(folder / "rendezvous-missing", number, 2)
            missing(folder, number)

    return int(any(rank_cases.in_processes(3, folder, work)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
