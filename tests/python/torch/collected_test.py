# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches, collected and run as one program, train as their parts on one device."""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import baechi.torch
import baechi.torch.sim
import pytest
import torch
from baechi.torch.run.steps import Steps
from places import (
    ON_ONE,
    WIDTH,
    Branches,
    Hooked,
    homes_of,
    machine,
    placed,
    placed_at_random,
    rows,
    same,
    virtual_ns,
)
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclasses.dataclass(slots=True)
class Schedule:
    """What a forward reads and nobody tells of."""

    temperature: float = 1.0


class Scheduled(Branches):
    """A number in slots that changes from step to step, and a count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule, self.calls = Schedule(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.schedule.temperature


class Keeps(Branches):
    """Each micro-batch reads what the one before has left: no stand-in may be seen by it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: torch.Tensor | float = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x + self.kept)
        self.kept = output.detach().mean()
        return output


class Tells(Branches):
    """A forward that looks at a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        return output * 2 if output.sum().item() > 0 else output


class Routed(Branches):
    """A mixture of experts, each of which is left out where no row is for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        choice, output = super().forward(x).argmax(-1), torch.zeros_like(x)
        for i, expert in enumerate((self.a, self.b)):
            (rows,) = (choice == i).nonzero(as_tuple=True)
            if len(rows):
                output.index_add_(0, rows, expert(x[rows]))
        return output


class Versions(Branches):
    """A forward that counts how often a tensor was changed: graphs of PyTorch's say never."""

    before = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = self.norm.num_batches_tracked._version - self.before
        return super().forward(x) * (1 + 0.1 * count)


class HookedWeight(Branches):
    """A hook that is called with the gradient of a weight, clipped as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.a.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, targets)


def targets(seed: int, count: int) -> torch.Tensor:
    return torch.randint(3, (count,), generator=torch.Generator().manual_seed(seed))


def alone(model: nn.Module, batches: list[Any], size: int, change: Any) -> dict[str, torch.Tensor]:
    """Train on one device, part after part."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.double)
        for a, b in zip(x.split(size), y.split(size), strict=True):
            part = loss_of(model(a), b) * (len(a) / len(x))
            part.backward()
            total = total + part.detach().cpu()
        return total

    return trained(model, batches, step, change)


def trained(model: nn.Module, batches: list[Any], step: Any, change: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    found = {}
    for i, (x, y) in enumerate(batches):
        change(model, i)
        found[f"loss {i}"] = step(x, y).cpu()
        if i != 1:  # gradients of two steps add up
            optimizer.step()
            optimizer.zero_grad()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = tensor.detach().to("cpu", copy=True)
    return found


def no_change(model: nn.Module, step: int) -> None:
    pass


def heat(model: Any, step: int) -> None:
    model.schedule.temperature = 1.0 + 0.5 * step


def count(model: Any, step: int) -> None:
    if step == 0:
        model.before = model.norm.num_batches_tracked._version


def tie(model: Any, step: int) -> None:
    if step == 1:
        model.b.weight = model.a.weight


def compared(
    build: Callable[[], nn.Module], seed: int, *, size: int = 3, change: Any = no_change
) -> tuple[str, Steps, nn.Module]:
    """Train three steps, the last of fewer samples; say what differs."""
    torch.manual_seed(seed)
    model = build().double().train()
    twin = copy.deepcopy(model)
    batches = [(rows(i, n), targets(i, n)) for i, n in ((1, 9), (2, 9), (3, 8))]
    with machine(asynchronous=False):
        twin.to("sim:0")
        here = [(x.to("sim:0"), y.to("sim:0")) for x, y in batches]
        expected = alone(twin, here, size, change)
    with machine(seed=seed) as devices:
        torch._dynamo.reset()
        with placed(model, devices, seed, compiled=False) as backend:
            steps = Steps(model, loss_of, backend.placement, 9 // size, 9)
            found = trained(model, batches, lambda x, y: steps(x, y, None), change)
    return same(expected, found), steps, model


class Mixing(torch.autograd.Function):
    """A product with a backward of its own, whose tensors may lie on several devices."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.t(), x.t() @ gradients[0]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 3)
        self.second, self.third = (nn.Parameter(torch.randn(3, 3)) for _ in "23")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Mixing.apply(self.first(x), self.second)
        return Mixing.apply(hidden.tanh(), self.third)


@pytest.mark.parametrize("build", [Branches, Hooked, Mixed], ids=lambda build: build.__name__)
def test_a_step_trains_as_its_parts_do(build: Callable[[], nn.Module]) -> None:
    for seed in (1, 2, 3):
        wrong, steps, _ = compared(build, seed)
        assert wrong == ""
        assert steps.by_calls == ""


class Halves(Branches):
    """Changes its batch in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(0.5))


def masking_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    targets[targets == 0] = -100
    return loss_of(output, targets)


@pytest.mark.parametrize(("host", "home"), [("", "sim:1"), ("+host", "cpu")])
def test_each_micro_batch_changes_its_own_part_of_a_batch(host: str, home: str) -> None:
    torch.manual_seed(1)
    model, x, y = Halves().double(), rows(1, 9), targets(1, 9)
    twin, given = copy.deepcopy(model), (x.clone(), y.clone())
    example = (x.clone(), 1, host)
    how: dict[str, Any] = {"loss": masking_loss, "targets": y.clone(), "micro_batches": 3}
    for a, b in zip(x.split(3), y.split(3), strict=True):
        (masking_loss(twin(a), b) / 3).backward()
    with machine():
        placed = placed_at_random(model, *example, **how)
        there = [tensor.to(home) for tensor in given]
        placed.step(*there)
        for tensor, changed in zip(there, (x, y), strict=True):
            assert torch.equal(tensor.cpu(), changed)
        for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad.cpu(), other.grad)
        assert placed.left_out == []
        placed.restore()


def test_a_step_is_one_program_of_all_its_micro_batches() -> None:
    _, steps, _ = compared(Branches, 1)
    text = str(steps.texts[0])
    calls = [line for line in text.splitlines() if "aten.tanh.default" in line]
    assert len(calls) == 3
    assert " = send " in text


@pytest.mark.parametrize("count", [1, 4])
def test_a_step_asks_for_what_its_plan_has_and_adds_up_the_losses(count: int) -> None:
    how: dict[str, Any] = {"asynchronous": False, "clock": "virtual", "operator_time": "1ms"}
    with baechi.torch.sim.configured(devices=1, memory="1GiB", memory_bandwidth="1000GB/s", **how):
        model, batch = Branches(), rows(1, 8).float()
        placed = baechi.torch.place(
            model, batch, "1x1GiB", costs="measure", micro_batches=count, devices=["sim:0"]
        )
        assert placed.plan is not None
        batch = batch.to("sim:0")
        taken = virtual_ns(lambda: (model.zero_grad(), placed.step(batch)))
        beside = count + (2 if count > 1 else 0)  # gradients to begin with; the mean of the losses
        assert taken - placed.plan.makespan_ns == pytest.approx(1e6 * beside, abs=1e5)
        placed.restore()


def test_what_a_forward_reads_in_slots_is_followed_and_its_calls_are_counted() -> None:
    wrong, steps, model = compared(Scheduled, 1, change=heat)
    assert wrong == ""
    assert steps.by_calls == ""
    assert model.calls == 3 + 3 + 3


def test_a_weight_that_is_tied_after_the_first_step_has_the_gradients_of_both() -> None:
    together = [
        s for s in range(20) if len({homes_of(Branches(), s)[f"{n}.weight"] for n in "ab"}) == 1
    ]
    for seed in together[:2]:  # on one device dynamo does not see it
        wrong, steps, _ = compared(Branches, seed, change=tie)
        assert wrong == ""
        assert steps.by_calls == ""


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (Keeps, "only the loss may"),
        (Tells, "data-dependent"),
        (Routed, "data-dependent"),
        (Versions, "it reads the versions of tensors"),
        (HookedWeight, "a hook of 'a.weight'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_collected_runs_one_after_the_other(
    build: Callable[[], nn.Module], why: str
) -> None:
    if build is HookedWeight:  # a hook of a copy is not copied with it
        wrong, steps = "", compared(build, 1)[1]
    else:
        wrong, steps, _ = compared(build, 1, change=count)
    assert wrong == ""
    assert why in steps.by_calls


def test_that_micro_batches_run_one_after_the_other_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compared(Keeps, 2)
    said = [str(each.message) for each in caught if "one after the other" in str(each.message)]
    assert len(said) == 1


def test_a_scaler_scales_the_gradients_and_not_the_loss() -> None:
    model = Branches().double()
    with (
        machine(asynchronous=False) as devices,
        placed(model, devices, 1, compiled=False) as backend,
    ):
        steps = Steps(model, loss_of, backend.placement, 4, 8)
        x, y = rows(1, 8).to("sim:0"), targets(1, 8).to("sim:0")
        plain = steps(x, y, None)
        gradient = model.last.weight.grad
        assert gradient is not None
        kept = gradient.clone()
        model.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.ones(()))

        class Scaler:
            def scale(self, value: torch.Tensor) -> torch.Tensor:
                return value * 4.0

        assert torch.allclose(steps(x, y, Scaler()), plain)
        scaled = model.last.weight.grad
        assert scaled is not None
        assert torch.allclose(scaled, kept * 4.0)


def test_each_of_many_models_in_one_process_has_graphs_of_its_own() -> None:
    """Dynamo keeps eight for one code; of more it runs calls eagerly, and steps not at all."""
    x = torch.randn(4, 4)
    for number in range(18):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        count = 2 if number % 2 else None
        placed = baechi.torch.place(model, x, "2x1GiB", micro_batches=count, **ON_ONE)
        placed.step(x) if count else model(x).sum().backward()
        assert "aten" in placed.program
        assert placed.left_out == []


@pytest.mark.parametrize("count", [None, 2])
@pytest.mark.parametrize("restored", [False, True])
def test_a_placed_model_that_nobody_has_any_more_gives_its_memory_back(
    sim: Any, count: int | None, restored: bool
) -> None:
    sim.configure(devices=2, memory="1MiB")
    before = [sim.memory_allocated(i) for i in range(2)]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    x = torch.randn(8, 64)
    options: dict[str, Any] = {"devices": ["sim:0", "sim:1"], "method": "random", "bounds": False}
    placed = baechi.torch.place(model, x, "2x1MiB", micro_batches=count, **options)
    placed.step(x) if count else model(x).sum().backward()
    if restored:
        placed.restore()
    gone = weakref.ref(model)
    del model, placed, x
    gc.collect()
    assert gone() is None
    assert [sim.memory_allocated(i) for i in range(2)] == before


def test_a_step_without_torch_compile_is_refused() -> None:
    model, x = nn.Linear(4, 4), torch.randn(4, 4)
    placed = baechi.torch.place(model, x, "2x1GiB", micro_batches=2, **ON_ONE)
    with (
        torch.compiler.set_stance("force_eager"),
        pytest.raises(baechi.InputError, match="switched off"),
    ):
        placed.step(x)
    assert model.weight.grad is None


def test_a_step_that_was_broken_off_leaves_nothing_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(4, 4)
    model(x).mean().backward()
    wanted = model.weight.grad
    model.weight.grad = None
    placed = baechi.torch.place(model, x, "2x1GiB", micro_batches=2, **ON_ONE)
    taken = placed._steps._collected_or_why  # type: ignore[union-attr]

    def stopped(args: Any, *more: Any) -> str:
        if args[0][0, 0] == x[2, 0]:
            raise KeyboardInterrupt
        return taken(args, *more)

    with monkeypatch.context() as broken:
        broken.setattr(placed._steps, "_collected_or_why", stopped)
        with pytest.raises(KeyboardInterrupt):
            placed.step(x)
    model.weight.grad = None
    placed.step(x)
    assert wanted is not None
    torch.testing.assert_close(model.weight.grad, wanted)
