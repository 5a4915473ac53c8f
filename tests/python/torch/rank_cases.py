# SPDX-License-Identifier: Apache-2.0
"""What processes do in ranks_test.py: python rank_cases.py FOLDER CASE..., each by its rank.

What a case returns it leaves in the folder. A case's model is trained by `alone` in the test, too.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import os
import random
import signal
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import torch
from baechi.torch.program import Run, parse
from baechi.torch.ranks import placing as planning
from baechi.torch.ranks import transport
from baechi.torch.run import graphs
from baechi.torch.where.homes import plain_parts
from quantised_test import X as ROWS
from quantised_test import model as adapted
from quantised_test import quantised
from step_models import Convolutions, Tied, Twice, module
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

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
        return self.last(torch.cat([self.fixed(left), self.right(x).relu()], 1))


class Whole(nn.Module):
    """Matrices in whole numbers, and small ones beside them that are trained."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(6, 6, dtype=torch.double) for _ in range(3))
        self.bases = nn.ModuleList(quantised(layer) for layer in layers)
        self.downs = nn.ModuleList(nn.Linear(6, 2, bias=False) for _ in range(3))
        self.ups = nn.ModuleList(nn.Linear(2, 6, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for base, down, up in zip(self.bases, self.downs, self.ups, strict=True):
            x = torch.tanh(base(x) + up(down(x)))
        return x


class Words(nn.Module):
    """Attention, between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 32), nn.Linear(32, 11)
        kind = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(kind(32, 4, 64, 0.0, batch_first=True) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x.neg().neg() if x.device.type == "cpu" else x  # as models choose by the kind
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@module(lambda: {"weight": nn.Parameter(torch.ones(64))})
def Drops(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Random numbers, which the gradient shows: half of the inputs twice."""
    return nn.functional.dropout(x * self.weight, 0.5, self.training)


@module(lambda: {"drops": Drops(), "norm": nn.BatchNorm1d(64)})
def Normed(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Keeps means of what random numbers make."""
    return self.norm(self.drops(x))


class Counts(Frozen):
    """Counts in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return super().forward(x)


@dataclass(frozen=True)
class Case:
    """A model, placed at random, and how it is trained."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Any]
    micro_batches: int | None  # None: by calls of the model
    seed: int = 1
    loss: Callable[..., torch.Tensor] | None = None
    targets: Callable[[], Any] = lambda: None
    sizes: tuple[int, ...] = ()  # of the mini-batches, by default that of the example
    accumulate: bool = False
    replicas: int = 1  # which the best plan found has, on devices of so much memory
    memory: str = "1GiB"


def mean_square(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output - targets).square().mean()


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def rows(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape, dtype=torch.double)


CASES = {
    "twice": Case(Twice, rows(8, 8), 2, 1, mean_square, rows(8, 4)),
    "images": Case(Convolutions, rows(4, 3, 8, 8), 1, 2, mean_square, rows(4, 5)),
    "tied": Case(Tied, lambda: torch.randint(11, (8, 5)), 4, 1, mean_square, rows(8, 5, 11)),
    "words": Case(Words, lambda: {"tokens": torch.randint(11, (4, 6))}, 2, 3, mean),
    "whole": Case(Whole, rows(8, 6), 2, 5, mean),
    "smaller": Case(Frozen, rows(8, 6), 4, 4, mean_square, rows(8, 3), (8, 7, 8)),
    "accumulated": Case(Frozen, rows(8, 6), 2, 5, mean_square, rows(8, 3), accumulate=True),
}
CASES |= {
    "copies": dataclasses.replace(CASES["twice"], replicas=2),
    "copied words": dataclasses.replace(CASES["words"], replicas=2),
    "copied parts": dataclasses.replace(CASES["tied"], replicas=2, memory="6KiB"),
    "copied branches": dataclasses.replace(
        CASES["smaller"], replicas=2, memory="4KiB", sizes=(8, 7, 5, 1), accumulate=True
    ),
}


CALLED = ("images", "words", "whole", "smaller", "accumulated")
CASES |= {f"called {n}": dataclasses.replace(CASES[n], micro_batches=None) for n in CALLED}


FROZEN = Case(Frozen, rows(8, 6), 2, 3, mean_square, rows(8, 3))
RESUMED = dataclasses.replace(CASES["tied"], seed=5)
COPIES = dataclasses.replace(CASES["copied parts"], seed=5)


def built(case: Case) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(7)
    return case.model().double(), case.batch(), case.targets()


def first(value: Any, count: int) -> Any:
    if isinstance(value, dict):
        return {name: part[:count] for name, part in value.items()}
    return None if value is None else value[:count]


def train(
    case: Case,
    model: nn.Module,
    step: Callable[[Any, Any], Any],
    batch: Any,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    """Return the losses of some steps."""
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for size in case.sizes or (10**6,) * STEPS:
        losses.append(float(step(first(batch[0], size), first(batch[1], size))))
        if not case.accumulate or len(losses) == 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def alone(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train in this process, one micro-batch after the other.

    Buffers go on from those behind the micro-batches of the first replica.
    """
    model, *batch = built(case)
    total = next(iter(tensors(batch[0]))).shape[0]
    size = total // (case.micro_batches or 1)

    def step(inputs: Any, targets: Any) -> float:
        count = next(iter(tensors(inputs))).shape[0]
        found, buffers = 0.0, {}
        for begin in range(0, count, size):
            end = min(begin + size, count)
            part = {k: v[begin:end] for k, v in inputs.items()} if isinstance(inputs, dict) else ()
            output = model(**part) if part else model(inputs[begin:end])
            assert case.loss is not None
            loss = case.loss(output, *([] if targets is None else [targets[begin:end]]))
            (loss * ((end - begin) / count)).backward()
            found += loss.item() * (end - begin) / count
            if end == count // case.replicas:
                buffers = {name: t.clone() for name, t in model.named_buffers()}
        for name, value in buffers.items():
            model.get_buffer(name).copy_(value)
        return found

    losses = train(case, model, step, batch)
    return losses, {n: t.detach() for n, t in named(model)}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    yield from value.values() if isinstance(value, dict) else [value]


def named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers; of those that wrap others, which no file holds, their parts."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        for place, part in enumerate(plain_parts(tensor)):
            yield f"{name}{'' if part is tensor else place}", part


def placed_at_random(case: Case, model: nn.Module, batch: Any, **options: Any) -> Any:
    count = distributed.get_world_size() if distributed.is_initialized() else 2
    found: dict[str, Any] = {"method": "random"}
    if case.replicas > 1 and options.get("ranks", True):
        found = {"replicas": case.replicas, "budget": "300ms"}
    return baechi.torch.place(
        model,
        batch[0],
        options.pop("cluster", f"{count}x{case.memory}"),
        loss=case.loss,
        targets=batch[1],
        micro_batches=case.micro_batches,
        seed=case.seed,
        bounds=False,
        **{"devices": ["cpu"] * count, **found, **options},
    )


def own(placed: Any) -> dict[str, torch.Tensor]:
    known, part = placed._weights.home_of, placed.processes.part
    return {n: t.detach().cpu().clone() for n, t in named(placed.model) if known[id(t)] == part}


def step_of(case: Case, placed: Any) -> Callable[[Any, Any], Any]:
    """Return what trains a placed model by a mini-batch, and returns the loss."""
    if case.micro_batches is not None:
        step: Callable[[Any, Any], Any] = placed.step
        return step

    def call(inputs: Any, targets: Any) -> torch.Tensor:
        model, loss = placed.model, case.loss
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        assert loss is not None
        found = loss(output, *([] if targets is None else [targets.to(output.device)]))
        if not any(True for _ in model.buffers()):  # which every call moves on
            with torch.no_grad():
                again = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            assert torch.equal(again, output)
        found.backward()
        return found.detach()

    return call


def over_ranks(name: str) -> Any:
    """Train a case, of which nothing stays."""
    found, model = trained(CASES[name])
    gc.collect()
    assert model() is None
    return found


def trained(case: Case) -> tuple[Any, weakref.ref[nn.Module]]:
    """Train a case; what others have takes no memory, and replicas are never in step."""
    model, *batch = built(case)
    placed = placed_at_random(case, model, batch)
    assert placed.plan.replicas == case.replicas
    if case.replicas > 1:
        delay(distributed.get_rank())
    losses = train(case, model, step_of(case, placed), batch)
    for program in placed._steps.texts if placed._steps else ():
        assert str(parse(str(program), program.table)) == str(program)
        names = [one.name for one in program.code if isinstance(one, Run)]
        if case.memory != "1GiB":  # several devices, one of which reduces before the other ends
            behind = names[min(names.index(n) for n in names if n.endswith(":reduce")) :]
            assert not all(name.endswith((":reduce", ":sums")) for name in behind)
    if case.model is Whole:
        state, given = placed.state_dict(), built(case)[0].state_dict()
        for key in ("bases.0.weight", "bases.1.weight", "bases.2.weight"):
            assert type(state[key]) is type(given[key])
            assert all(map(torch.equal, plain_parts(state[key]), plain_parts(given[key])))
    mine = own(placed)
    others = [t for n, t in named(model) if n not in mine]
    assert all(t.untyped_storage().nbytes() <= 16 for t in others)
    assert all(t.isnan().all() for t in others if t.is_floating_point())
    return (losses, mine, torch.rand(2)), weakref.ref(model)


def delay(seed: int) -> None:
    """Have every message of this process wait a moment, as if devices were slow."""
    drawn = random.Random(seed)
    for name in ("send", "expect", "take"):
        known = getattr(transport.Transport, name)

        def late(*given: Any, known: Any = known) -> Any:
            time.sleep(drawn.choice([0, 0, 0.003, 0.02]))
            return known(*given)

        setattr(transport.Transport, name, late)


def fail_once(name: str, calls: int = 0, among: Any = transport) -> None:
    """Have a function of a module fail behind so many calls that do not."""
    known, left = vars(among)[name], iter(range(calls))

    def fails(*given: Any) -> Any:
        if next(left, None) is not None:
            return known(*given)
        vars(among)[name] = known
        raise RuntimeError("the device is gone")

    vars(among)[name] = fails


def said_by(function: Callable[[], Any]) -> str:
    """Return what a call raises, in one line, or what it returns."""
    try:
        return f"returned {function()}"
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())


def failing(placed: Any, *batch: Any) -> tuple[str, str]:
    """Return what a step raises, and whether gradients and stand-ins are as they were before."""

    def gradients() -> list[Any]:
        mine, weights = own(placed), placed.model.named_parameters()
        return [w.grad.clone() if n in mine and w.grad is not None else w.grad for n, w in weights]

    before = gradients()
    said = said_by(lambda: placed.step(*batch))
    pairs = zip(before, gradients(), strict=True)
    same = [a is b or (type(a) is type(b) is torch.Tensor and torch.equal(a, b)) for a, b in pairs]
    return said, f"{all(same)} of {len(same)}"


class Changes(Frozen):
    """Changes its batch in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x * 1)
        x.mul_(found.detach().mean())
        return found


class Shows(Frozen):
    """Returns what it makes on the host, too, draws there, and reads what is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(3, dtype=torch.double)

    def forward(self, x: torch.Tensor) -> Any:
        drawn = torch.randn(6, dtype=torch.double).to(x.device)
        found = super().forward(x + drawn - drawn) + self.shift.to(x.device)
        return found.cpu(), found


@module(lambda: {"a": nn.Linear(6, 3), "b": nn.Linear(3, 3)})
def Breaks(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A model that looks at a value."""
    x = self.a(x)
    return self.b(x) if float(x.sum()) > 0 else x


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    return model


def parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    return parallelize_module(model, mesh, {"left": ColwiseParallel()})


class Clips(torch.optim.SGD):
    """Clips by the norm of all gradients that it sees, as LAMB does."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


def faults(_: Path) -> dict[str, str]:
    """Return what is said where ranks do not agree, or where something cannot be over ranks."""
    rank = distributed.get_rank()
    said: dict[str, str] = {}
    case = FROZEN
    torch.manual_seed(rank)
    said["weights"] = said_by(lambda: placed_at_random(case, Frozen().double(), built(case)[1:]))
    _, *batch = model, x, targets = built(case)
    known = vars(planning)["__version__"]
    vars(planning)["__version__"] = f"0.{rank}"
    said["versions"] = said_by(lambda: placed_at_random(case, model, batch))
    vars(planning)["__version__"] = known
    kinds = {"shard": sharded, "tensor parallel": parallel}
    kinds["data parallel"] = nn.parallel.DistributedDataParallel
    for name, of in kinds.items():
        given = of(built(case)[0])
        said[name] = said_by(functools.partial(placed_at_random, case, given, batch))
    said["devices"] = said_by(lambda: baechi.torch.place(model, x, "3x1GiB", micro_batches=2))
    host = "2x1GiB+1xhost:1GiB"
    said["host"] = said_by(lambda: placed_at_random(case, model, batch, cluster=host))
    placed = placed_at_random(case, model, batch)
    said["sizes"] = said_by(lambda: placed.step(x[: 8 - 2 * rank], targets[: 8 - 2 * rank]))
    said["values"] = said_by(lambda: placed.step(x + rank, targets))
    said["order"] = said_by(lambda: placed.step(x.flip(0) if rank else x, targets))
    with torch.autocast("cpu", torch.bfloat16, enabled=rank == 1):
        said["autocast"] = said_by(lambda: placed.step(x, targets))
    said["which"] = said_by(
        lambda: placed.step(x, targets) if rank else placed.clip_grad_norm_(1.0)
    )
    said["called values"] = said_by(lambda: model(x + rank))
    said["called with"] = said_by(lambda: model(x, rank=rank))
    said["called apart"] = said_by(lambda: (model(x) * (1 + rank)).sum().backward())
    said["called for others"] = said_by(lambda: (model(x) * (1 - 2 * rank)).sum().backward())
    turns = model(x).sum(), model(2 * x).sum()
    said["called in turns"] = said_by(lambda: turns[rank].backward())
    said["called or not"] = said_by(lambda: model(x) if rank else placed.step(x, targets))
    with torch.set_grad_enabled(rank == 0):
        said["called to learn"] = said_by(lambda: model(x))
    with torch.compiler.set_stance("force_eager"):
        said["called eagerly"] = said_by(lambda: model(x))
    model(x)
    if rank == 1:
        fail_once("plain", among=graphs)  # behind what dynamo does, before the first message
    said["called early"] = said_by(lambda: model(x + rank))
    again = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(again).sum(), again)
    total = model(again).sum()
    said["called twice"] = said_by(lambda: total.backward(create_graph=True))
    around = torch.compile(lambda: model(x).sum(), backend="eager")
    said["called inside"] = f"{around().item() == model(x).sum().item()}, {slope.sum():.6f}"
    said["state"] = said_by(model.state_dict)
    said["restore"] = said_by(placed.restore)
    said["step"] = str(placed.step(x, targets).item())
    norm = torch.nn.utils.clip_grad_norm_
    said["clip"] = said_by(lambda: norm(model.parameters(), 1.0))
    said["norm"] = str(placed.clip_grad_norm_(0.5).item())
    said["mixes"] = said_by(Clips(model.parameters(), 0.1).step)
    said["mixes own"] = said_by(type("Own", (torch.optim.SGD,), {})(own(placed).values(), 0.0).step)
    if rank == 1:
        fail_once("_laid_out", 5)  # where others have made a part of their gradients
    said["laid"], said["laid kept"] = failing(placed, x, targets)
    changes = placed_at_random(case, Changes().double(), batch)
    changes.load_state_dict(built(case)[0].state_dict())
    changes.model(again := x.clone())
    said["called to change"] = f"{again.sum():.9f}"
    said["changes"] = said_by(lambda: changes.step(again, targets))
    counts = placed_at_random(case, Counts().double(), batch)
    said["counts"] = said_by(lambda: counts.step(x, targets))
    breaks = placed_at_random(case, Breaks().double(), batch)
    said["breaks"] = said_by(lambda: breaks.step(x, targets))
    said["called in parts"] = said_by(lambda: breaks.model(x))
    words = placed_at_random(CASES["tied"], *(lambda m, *b: (m, b))(*built(CASES["tied"])))
    tokens, wanted = built(CASES["tied"])[1:]
    words.step(tokens, wanted)
    said["raises"], said["kept"] = failing(words, tokens + 5, wanted)
    words.model.zero_grad()
    said["called raises"] = said_by(lambda: words.model(tokens + 5))
    said["again"] = str(words.step(tokens, wanted).item())
    return said


def copied_faults(_: Path) -> dict[str, str]:
    """Return what is said of replicas, and loss and norm of a step."""
    rank, said = distributed.get_rank(), {}
    case = dataclasses.replace(CASES["copied branches"], micro_batches=2)
    model, *batch = built(case)

    def placed_with(replicas: int, **options: Any) -> Any:
        return said_by(lambda: placed_at_random(case, model, batch, replicas=replicas, **options))

    said["differ"] = placed_with(1 + rank % 2)
    said["odd"] = placed_with(3)
    said["alone"] = placed_with(2, ranks=False)
    with torch.device("meta"):
        empty = Frozen().double()
    state = {name: value + rank // 2 for name, value in model.state_dict().items()}
    said["values"] = said_by(lambda: placed_at_random(case, empty, batch, weights=state))
    plan = placed_at_random(case, model, batch).plan
    by_plan = placed_at_random(case, built(case)[0], batch, plan=plan)
    said["shown"] = f"{by_plan!r}\n{by_plan}"
    words, *given = built(COPIES)
    broken = placed_at_random(COPIES, words, given)
    tokens = given[0] + 11 * (torch.arange(8) >= 4).long()[:, None]  # the second replica's
    said["raises"], said["kept"] = failing(broken, tokens, given[1])
    said["again"] = str(broken.step(*given).item())
    if rank == 1:
        fail_once("_laid_out")  # where a device says that it has failed
    began = time.monotonic()
    said["laid"], said["laid kept"] = failing(broken, *given)
    said["soon"] = str(time.monotonic() - began < TIMEOUT.total_seconds() / 2)
    words.zero_grad()
    said["after"] = str(broken.step(*given).item())
    said["called"] = said_by(lambda: by_plan.model(batch[0]))
    with torch.no_grad():
        said["called to see"] = str(by_plan.model(batch[0]).sum().item())
    said["step"] = str(by_plan.step(*batch).item())
    said["norm"] = str(by_plan.clip_grad_norm_(0.5).item())
    return said


def dropped(_: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient of replicas that draw numbers for equal inputs, and a mean of a call."""
    case = Case(Drops, lambda: torch.ones(2, 64).double(), 2, loss=torch.Tensor.sum, replicas=2)
    model, *batch = built(case)
    placed_at_random(case, model, batch).step(batch[0])
    gradient = next(model.parameters()).grad
    assert gradient is not None
    case = dataclasses.replace(case, model=Normed, batch=rows(4, 64))
    model, *batch = built(case)
    placed_at_random(case, model, batch)
    with torch.no_grad():
        model(torch.rand(2, 64).double())
    return gradient, model.norm.running_mean


def drawn_beside(_: Path) -> list[torch.Tensor]:
    """Return gradients of steps with random numbers of a device that is not the current one."""
    sim.configure(devices=2, memory="1GiB")
    case = Case(Drops, lambda: torch.ones(2, 64).double(), 1, loss=torch.Tensor.sum)
    model, *batch = built(case)
    options = {"cluster": "1x1KiB+1x1GiB", "method": "auto", "devices": ["sim:0", "sim:1"]}
    placed, found = placed_at_random(case, model, batch, **options), []
    for x in batch[:1] * 2:
        placed.step(x)
        found += [weight.grad.cpu() for name, weight in named(model) if name in own(placed)]
        model.zero_grad()
    return found


def copied_infinite(folder: Path) -> Any:
    return infinite(folder, replicas=2)


def mixed_infinite(folder: Path) -> Any:
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="2ms")
    return infinite(folder, devices=["cpu", "sim"])


def called_infinite(_: Path) -> Any:
    return infinite(_, micro_batches=None, method="single")  # one rank has no weights


def infinite(_: Path, replicas: int = 1, micro_batches: int | None = 2, **options: Any) -> Any:
    """Return scale and weights of training with infinities that one rank has."""
    case = dataclasses.replace(FROZEN, replicas=replicas, micro_batches=micro_batches)
    model, x, targets = built(case)
    placed = placed_at_random(case, model, (x, targets), **options)
    scaler = torch.amp.GradScaler(placed.processes.device.type, init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scales = []
    for number in range(3):
        wrong = targets.clone()
        if number == 1:
            wrong[0, 0] = float("inf")
        if micro_batches is None:
            scaler.scale(mean_square(model(x), wrong)).backward()
        else:
            placed.step(x, wrong, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales, own(placed)


def copied_checkpoint(folder: Path) -> Any:
    return checkpointed(folder / "copied", COPIES)


def checkpointed(folder: Path, case: Case = RESUMED) -> Any:
    """Save behind a step, go on; with a part of the ranks' memory from a file, and by states."""
    model, *batch = built(case)
    placed = placed_at_random(case, model, batch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    stepped(placed, optimizer, batch)
    placed.save(folder / "checkpoint", optimizer=optimizer)
    state, kept = placed.state_dict(), placed.optimizer_state_dict(optimizer)
    losses = [stepped(placed, optimizer, batch) for _ in range(2)]
    with torch.device("meta"):
        empty = Tied().double()
    other = dataclasses.replace(case, seed=9)
    again = placed_at_random(other, empty, batch, weights=folder / "checkpoint")
    fresh = torch.optim.AdamW(empty.parameters(), 1e-2)
    again.load(folder / "checkpoint", optimizer=fresh)
    losses += [stepped(again, fresh, batch) for _ in range(2)]
    again.load_state_dict(state)
    again.load_optimizer_state_dict(fresh, kept)
    return [*losses, *(stepped(again, fresh, batch) for _ in range(2))], state


def quantised_model(seed: int) -> nn.Module:
    """Return layers with adapters, whose weights wrap others, or keep some (bitsandbytes)."""
    beside = "bitsandbytes" if importlib.util.find_spec("bitsandbytes") else "plain"
    return nn.Sequential(adapted("plain", seed)[0], adapted(beside, seed)[0])


def quantised_steps(seed: int, folder: Path, resumes: bool = True, **options: Any) -> list[float]:
    """Return the losses around where a checkpoint is written, or read: as weights, and behind."""
    case, path = Case(nn.Identity, lambda: None, 2, seed, mean), folder / "quantised"
    model, batch = quantised_model(seed), (ROWS, None)
    options["weights"] = path if resumes else None
    placed = placed_at_random(case, model, batch, **options)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = [stepped(placed, optimizer, batch)]  # so what goes on is a program that has run
    for state in (getattr(layer.base.weight, "quant_state", None) for layer in model.children()):
        if resumes and state is not None:
            state.absmax.zero_()
    (placed.load if resumes else placed.save)(path, optimizer=optimizer)
    return [*losses, *(stepped(placed, optimizer, batch) for _ in range(2))]


def quantised_saved(folder: Path) -> Any:
    return quantised_steps(1, folder, resumes=False)


def quantised_resumed(folder: Path) -> Any:
    return quantised_steps(2, folder)


def copied_simulated(folder: Path) -> Any:
    return simulated(folder, "copied words")


def hosted(
    folder: Path, name: str = "words", cluster: str = "1x250KiB+1x300KiB+1xhost:2MiB"
) -> Any:
    """Train with weights and activations in a host's memory, which both devices fetch."""
    options = {"method": "auto", "residency": "all", "budget": "0.1s"}
    return simulated(folder, name, cluster=cluster, **options)


def called_simulated(folder: Path) -> Any:
    return simulated(folder, "called words")


def called_replayed(folder: Path) -> Any:
    return simulated(folder, "called words", replay=True)


def called_hosted(folder: Path) -> Any:
    return hosted(folder, "called words", "1x120KiB+1x160KiB+1xhost:2MiB")


def shown(model: nn.Module, x: torch.Tensor) -> str:
    """Return where the first result of `Shows` is, and train by both, of a batch on the host."""
    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        weight.register_hook(lambda gradient: gradient * 2)
    first, second = model(x)
    (first.square().sum() + second.sum().cpu()).backward()
    return str(first.device)


def called_to_host(_: Path) -> Any:
    """Train by what is on the host; return its place, gradients, and what another tensor does."""
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="2ms")
    found = []
    for devices in (["cpu"] * 2, None):
        case = dataclasses.replace(FROZEN, model=Shows, loss=lambda outputs: outputs[0].sum())
        model, x, _ = built(dataclasses.replace(case, micro_batches=None))
        placed = placed_at_random(case, model, (x, None), devices=devices)
        place = shown(model, x.requires_grad_())
        weights, part = model.named_parameters(), {*own(placed)}
        given = {n: w.grad for n, w in weights if n in part and w.grad is not None}
        gradients = {name: gradient.cpu() for name, gradient in given.items()}
        model.shift += distributed.get_rank()
        found.append((place, x.grad, gradients, said_by(functools.partial(model, x))))
    return found


def called_mixed(folder: Path) -> Any:
    sim.configure(devices=1, memory="1GiB")
    return simulated(folder, "called words", cluster="1xcpu:1GiB+1x1GiB")


def mixed(folder: Path) -> Any:
    """Train on a CPU and a simulated device; what is measured, each measures for its kind."""
    sim.configure(devices=1, memory="1GiB")
    cluster, case = "1xcpu:1GiB+1x1GiB", CASES["whole"]
    model, *batch = built(case)
    refused = said_by(lambda: placed_at_random(case, model, batch, devices=None, cluster=cluster))
    assert "'bases.0.weight' wraps other tensors" in refused
    return simulated(folder, cluster=cluster, costs="measure")


def simulated(_: Path, name: str = "words", **options: Any) -> Any:
    """Train on a simulated device in each process; return its peak beside what is said of it."""
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="2ms")
    case = CASES[name]
    gc.collect()
    before = sim.memory_allocated(0)  # of earlier cases
    model, *batch = built(case)
    placed = placed_at_random(case, model, batch, devices=None, **options)
    assert (placed.plan.cluster.sends == "free") == (options.get("costs") != "measure")
    here, device = placed.planned.names[placed.rank], placed.processes.traced

    def call() -> None:
        assert case.loss is not None
        case.loss(model(**{name: value.to(device) for name, value in batch[0].items()})).backward()

    if (kind := placed.runs_on[here]) != "sim:0":
        assert (kind, placed.rank) == ("cpu", 0)
        losses = train(case, model, step_of(case, placed), batch)
        assert "_for_cpu" not in placed.program  # a kernel that others have not
        found = own(placed)
        if case.micro_batches is None:
            call()
        return losses, 0, 0, found
    peaks, run = [], step_of(case, placed)

    def step(*given: Any) -> torch.Tensor:
        sim.reset_peak_memory_stats(0)
        loss: torch.Tensor = run(*given)
        peaks.append(sim.max_memory_allocated(0) - before)
        return loss

    by_pieces = placed.optimizer(torch.optim.AdamW, lr=1e-2)  # of what is on the host
    losses = train(case, model, step, batch, by_pieces)
    if case.micro_batches is None:
        sim.reset_peak_memory_stats(0)
        found = own(placed)
        call()
        if options.get("replay"):  # whose memory stays
            return losses, 0, 0, found
        return losses, sim.max_memory_allocated(0) - before, placed.peaks[here], found
    for program in (one.part.program for one in placed._steps.last):
        assert str(parse(str(program), program.table)) == str(program)
    return losses, peaks[-1], placed.peaks[here], own(placed)


def late(_: Path) -> tuple[str, str, bool]:
    """Fail in a kernel that others wait for; return what is said, what is kept, and of the next."""
    sim.configure(devices=1, memory="1GiB", poison=True, longest_delay="2ms")
    case = CASES["tied"]
    model, *batch = built(case)
    placed = placed_at_random(case, model, batch, devices=None, method="single")
    placed.step(*batch)
    for _i in range(8):  # the kernels of the others that fail end earlier or later
        said, kept = failing(placed, batch[0] + 5, *batch[1:])
    return said, kept, bool(placed.step(*batch).isfinite())


def stepped(placed: Any, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    loss = placed.step(*batch)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def lost() -> None:
    """Train until a rank is killed or hangs, or a link is cut; print what is said and when."""
    how, patience = sys.argv[2], float(sys.argv[3])
    distributed.init_process_group("gloo", timeout=timedelta(seconds=patience))
    rank = distributed.get_rank()
    model, x, targets = built(FROZEN)
    placed = placed_at_random(FROZEN, model, (x, targets))
    placed.step(x, targets)
    print("began", time.time(), flush=True)
    if rank == distributed.get_world_size() - 1 and how != "cut":
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises":
            raise ValueError("of the user's")
        time.sleep(patience + 30)
    try:
        placed.step(x, targets)
        while how == "cut":
            placed.step(x, targets)
    finally:
        print("ended", time.time(), flush=True)


def main() -> None:
    if sys.argv[1] == "lost":
        lost()
        return
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
