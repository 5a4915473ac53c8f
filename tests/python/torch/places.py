# SPDX-License-Identifier: Apache-2.0
"""Models placed at random for tests: every call and weight on a device that a seed draws."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import torch
from baechi.torch.capture.loss import call_arguments, tensors_in
from baechi.torch.private import call_uncompiled
from baechi.torch.run.backend import Backend
from baechi.torch.run.calls import compile_calls
from baechi.torch.run.placement import Placement
from baechi.torch.where import Homes, Installed, install
from baechi.torch.where.homes import named_tensors
from baechi.torch.where.moving import map_tensors
from torch import nn

from models.bank import ENTRIES

WIDTH = 6
DEVICES = 3
CLOSE = 1e-9
ON_ONE: dict[str, Any] = {"devices": ["cpu"] * 2, "method": "single", "bounds": False}


def rows(seed: int, count: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator, dtype=torch.double)


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def doubles(*shapes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(*shape).double() for shape in shapes)


def as_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def virtual_ns(run: Callable[[], Any]) -> float:
    """Return how long the second of two runs takes by the clock of simulated devices."""
    for _ in range(2):
        torch.accelerator.synchronize()
        sim.reset_virtual_clock()
        run()
    torch.accelerator.synchronize()
    return 1e9 * sim.virtual_time()


class Branches(nn.Module):
    """Two branches that meet; a normalisation that keeps averages."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.last = nn.BatchNorm1d(WIDTH), nn.Linear(2 * WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x).tanh(), self.b(x).relu()
        return self.last(torch.cat([self.norm(a + b), b], 1))


class Hooked(Branches):
    """A model whose modules and tensors have hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(lambda _, __, out: out * 1.5)
        self.b.register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        if a.requires_grad:
            a.register_hook(lambda gradient: gradient * 0.5)
        return self.last(torch.cat([self.norm(a), self.b(x)], 1))


class Drawn(dict[str, int]):
    """A device for every key."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 a mapping's
        return hashlib.sha256(f"{self.seed} {key}".encode()).digest()[0] % DEVICES


@contextlib.contextmanager
def machine(*, asynchronous: bool = True, seed: int = 1) -> Iterator[list[torch.device]]:
    """Three simulated devices; by default asynchronous ones with poison and delays."""
    how: dict[str, Any] = {"asynchronous": asynchronous, "poison": asynchronous, "seed": seed}
    if asynchronous:
        how |= {"longest_delay": "100us", "link": sim.Link("50us", "2GB/s")}
    with sim.configured(devices=DEVICES, memory="1GiB", **how):
        yield [torch.device("sim", i) for i in range(DEVICES)]


def homes_of(model: nn.Module, seed: int) -> dict[str, int]:
    """Draw a device for the weights of every module."""
    drawn = Drawn(seed)
    return {n: drawn.get(f"home of {n.rpartition('.')[0]}") for n, _ in named_tensors(model)}


@contextlib.contextmanager
def placed(
    model: nn.Module, devices: list[torch.device], seed: int, *, compiled: bool = True
) -> Iterator[Backend]:
    """Place a model at random, by programs or eagerly."""
    homes = homes_of(model, seed)
    where = {name: devices[i] for name, i in homes.items()}
    installed: Installed = install(model, Homes(model, where), devices)
    backend = Backend(Placement(model, devices, Drawn(seed), homes))
    if compiled:
        torch._dynamo.reset()
        compile_calls(model, backend)
    try:
        yield backend
    finally:
        call_uncompiled(model)
        installed.remove()


Train = Callable[[nn.Module, Any], torch.Tensor]


def trained(model: nn.Module, batches: list[Any], loss: Train) -> dict[str, torch.Tensor]:
    """Train three steps of AdamW; return losses, weights, buffers and gradients, on the host."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    found: dict[str, torch.Tensor] = {}
    for i, batch in enumerate(batches):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        found[f"loss {i}"] = value.detach().cpu()
    for name, tensor in named_tensors(model):
        found[name] = tensor.detach().to("cpu", copy=True)
        if tensor.grad is not None:
            found[f"gradient of {name}"] = tensor.grad.detach().to("cpu", copy=True)
    return found


def same(
    expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], close: float = CLOSE
) -> str:
    """Name the first that differs; "" where none does."""
    if expected.keys() != found.keys():
        return f"only one has {sorted(expected.keys() ^ found.keys())[0]}"
    for name, a in expected.items():
        b = found[name]
        if a.is_floating_point():
            off = float((a - b).abs().max()) if a.numel() else 0.0
            if not off <= close * max(1.0, float(a.abs().max()) if a.numel() else 1.0):
                return f"{name} is off by {off:.2g}"
        elif not torch.equal(a, b):
            return f"{name} differs"
    return ""


def assert_alike(model: nn.Module, alone: nn.Module) -> None:
    """Assert that a placed model has the weights of another one on the CPU."""
    for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-12, msg=name)


def compared(
    build: Callable[[], nn.Module],
    batch: Callable[[int], Any],
    loss: Train,
    *,
    seed: int = 1,
    compiled: bool = True,
) -> tuple[str, Backend]:
    """Train on one device, and placed at random on three; say what differs."""
    torch.manual_seed(seed)
    model = build().double().train()
    alone = copy.deepcopy(model)
    batches = [batch(i) for i in (1, 2, 1)]

    def there(home: str) -> list[Any]:
        return [map_tensors(lambda t: as_double(t).to(home), each) for each in batches]

    with machine(asynchronous=False):
        alone.to("sim:0")
        expected = trained(alone, there("sim:0"), loss)
        alone.to("cpu")
    with machine(seed=seed) as devices, placed(model, devices, seed, compiled=compiled) as backend:
        home = "cpu" if seed % 2 else "sim:0"  # of the batch
        found = trained(model, there(home), loss)
    return same(expected, found), backend


def loss_like(output: Any) -> torch.Tensor:
    """Return an output's own loss, else the sum of the mean squares of its tensors."""
    own = getattr(output, "loss", None)
    return sum(t.square().mean() for t in tensors_in(output)) if own is None else own


def placed_at_random(
    model: nn.Module, inputs: Any, seed: int = 1, host: str = "", **more: Any
) -> Any:
    """Place a model by the one call that users have, by a plan that a seed draws.

    With a host, all weights that may be away are away.
    """
    torch._dynamo.reset()
    devices = [f"sim:{i}" for i in range(DEVICES)]
    how: dict[str, Any] = {"method": "random", "seed": seed, "bounds": False, "devices": devices}
    how |= {"residency": "all"} if host else {}
    return baechi.torch.place(model, inputs, f"{DEVICES}x1GiB{host}", **how | more)


def trains_the_same(
    model: nn.Module,
    inputs: Any,
    *,
    seeds: Iterable[int] = (1,),
    homes: Sequence[str] = ("cpu", "sim:1"),
    host: str = "",
    loss: Callable[[Any], torch.Tensor] = loss_like,
    close: float = CLOSE,
) -> list[str]:
    """Check that a model that `place` placed trains as on the host; return what ran eagerly."""

    def called(model: nn.Module, batch: Any) -> torch.Tensor:
        args, kwargs = call_arguments(batch)
        return loss(model(*args, **kwargs))

    def batches(home: str) -> list[Any]:
        return [map_tensors(lambda t: t.clone().to(home), inputs) for _ in range(3)]

    expected = trained(copy.deepcopy(model), batches("cpu"), called)
    why: list[str] = []
    for seed in seeds:
        mine = copy.deepcopy(model)
        with machine(seed=seed):
            placed = placed_at_random(mine, inputs, seed, host)
            found = trained(mine, batches(homes[seed % len(homes)]), called)
            torch.accelerator.synchronize()
            why += placed.left_out
            placed.restore()
        assert same(expected, found, close) == "", f"seed {seed}"
    return why


def of_the_bank_trains_the_same(name: str, **how: Any) -> None:
    """Check `trains_the_same` of a model of the bank."""
    entry = ENTRIES[name]
    torch.manual_seed(3)
    inputs = map_tensors(as_double, entry.inputs(4, 1))
    trains_the_same(entry.build().double(), inputs, loss=entry.loss, **how)
