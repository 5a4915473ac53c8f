# SPDX-License-Identifier: Apache-2.0
"""Models whose weights and activations lie in the host's memory while nobody reads them."""

from __future__ import annotations

import copy
import gc
import itertools
import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.costs.costs import Costs
from baechi.torch.costs.measured import Clock, measure, measure_updates
from baechi.torch.planned_step import PlannedStep
from baechi.torch.program import parse
from baechi.torch.run import executor
from baechi.torch.run.away import Away, PlannedFetch
from baechi.torch.run.interpreter import Interpreter
from baechi.torch.where.pinned import unpin
from collected_test import Mixed, Mixing
from places import assert_alike, mean_square
from step_models import module
from torch import nn
from torch.utils.checkpoint import checkpoint

import baechi

# PyTorch 2.14.0 says once what it leaves out of a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")

WIDTH, ROWS = 32, 16


class Block(nn.Module):
    """Weights of several sizes, a buffer, and an activation that is read again in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.down(torch.relu(self.up(self.norm(x)))) + self.shift


class Blocks(nn.Module):
    """A chain that returns its loss."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(count)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).square().mean()


class Remade(nn.Module):
    """A function of weights that runs again in the backward, behind a look at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.3 for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 1e9:
            x = x * 2
        return checkpoint(self.part, x, use_reentrant=False).square().mean()

    def part(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = (x @ weight).tanh() * weight.abs().mean()
        return x


def made(seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return Blocks().double(), torch.randn(ROWS, WIDTH, dtype=torch.float64)


Step = Callable[[torch.Tensor], torch.Tensor]


def trained(model: nn.Module, x: torch.Tensor, step: Step | None = None) -> Iterator[float]:
    """Yield the losses of three steps of AdamW; the second adds up the gradients of two batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batches in ([x], [x, x.flip(0) * 0.5], [x]):
        optimizer.zero_grad()
        for batch in batches:
            if step is None:
                loss = model(batch)
                loss.backward()
            else:
                loss = step(batch)
            yield loss.item()
        optimizer.step()


def assert_trains_alike(
    model: nn.Module, x: torch.Tensor, alone: nn.Module, step: Step | None = None
) -> None:
    """Assert that a placed model has the losses and weights of another one on the CPU."""
    losses = list(trained(model, x, step))
    assert losses == pytest.approx(list(trained(alone, x.cpu())), abs=1e-12)
    assert_alike(model, alone)


def normed() -> nn.Module:
    """Return what reads a copy of a weight in the forward and in the backward."""
    model = Blocks(1)
    nn.utils.parametrizations.spectral_norm(model.blocks[0].up)
    return model


@pytest.mark.parametrize("build", [Blocks, Remade, normed])
def test_all_that_may_be_away_trains_as_on_one_device(sim: ModuleType, build: Any) -> None:
    sim.configure(devices=1, memory="160KiB", poison=True, longest_delay="0.2ms")
    torch.manual_seed(1)
    model, x = build().double(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    alone = copy.deepcopy(model)
    placed = baechi.torch.place(model, x, "1x160KiB+1xhost:1GiB", residency="all")
    written = ("._u", "._v")  # by the forward
    homes = placed.weight_devices.items()
    assert {home for name, home in homes if not name.endswith(written)} == {"host:0"}
    assert_trains_alike(model, x, alone)
    assert not placed.left_out
    for weight in model.parameters():
        assert weight.device.type == weight.grad.device.type == "cpu"
        assert weight.is_pinned()


class Owning(Mixed):
    """Functions with a backward of their own, whose weights are away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = Mixing.apply(self.second, self.third)
        return (super().forward(x) @ both).square().mean()


@pytest.mark.parametrize("parts", [None, 2])
def test_functions_with_a_backward_of_their_own_train(sim: ModuleType, parts: int | None) -> None:
    sim.configure(devices=2, memory="1MiB", poison=True)
    torch.manual_seed(1)
    model = Owning().double()
    x = torch.randn(ROWS, model.first.in_features, dtype=torch.float64)
    alone, cluster = copy.deepcopy(model), "2x1MiB+1xhost:1GiB"
    how: dict[str, Any] = {"residency": "all", "budget": "0.1s", "loss": as_is}
    placed = baechi.torch.place(model, x, cluster, micro_batches=parts, **how)
    assert_trains_alike(model, x, alone, placed.step if parts else None)
    assert not placed.left_out


def test_peaks_are_exact_and_programs_have_a_text(sim: ModuleType) -> None:
    sim.configure(devices=1, memory="1GiB", asynchronous=False)
    model, x = made()
    x = x.to("sim:0")
    placed = baechi.torch.place(model, x, "1x150KiB+1xhost:1GiB", residency="all")
    for _ in range(2):
        gc.collect()
        sim.reset_peak_memory_stats(0)
        before = sim.memory_allocated(0) - x.nbytes
        model(x).backward()
    assert sim.max_memory_allocated(0) - before == placed.peaks["gpu:0"]
    assert placed.peaks["gpu:0"] < 1.1 * placed.plan.peaks["gpu:0"]
    assert " = fetch %" in placed.program
    assert " = put %" in placed.program
    for program in placed._backend.frames[0].programs.values():
        assert str(parse(str(program), program.table)) == str(program)


class Looking(Blocks):
    """A forward that looks at a value, and so is several graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks[0](x)
        return self.blocks[1](y * 2 if y.sum().item() > 0 else y).square().mean()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which dynamo asks for
def test_graphs_of_a_forward_that_looks_at_values_read_what_is_away(sim: ModuleType) -> None:
    sim.configure(devices=1, memory="1MiB", poison=True, longest_delay="1ms")
    torch.manual_seed(0)
    model, x = Looking().double(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    alone = copy.deepcopy(model)
    placed = baechi.torch.place(model, x, "1x1MiB+1xhost:1GiB", residency="all", budget="0.1s")
    assert_trains_alike(model, x, alone)
    with torch.no_grad():
        found = [model(batch).item() for batch in (x, x * 0.5)]
        assert found == pytest.approx([alone(batch).item() for batch in (x, x * 0.5)])
    assert sum(not frame.eager for frame in placed._backend.frames) >= 4


def as_is(loss: torch.Tensor) -> torch.Tensor:
    return loss


@pytest.mark.parametrize(
    ("parts", "residency", "again"),
    [(2, "all", "none"), (4, "auto", "none"), (2, "auto", "all"), (None, "all", "all")],
)
def test_steps_and_second_runs_train_as_on_one_device(
    sim: ModuleType, parts: int | None, residency: str, again: str
) -> None:
    sim.configure(devices=1, memory="280KiB", poison=True, longest_delay="0.2ms")
    model, x = made()
    alone = copy.deepcopy(model)
    how: dict[str, Any] = {"residency": residency, "loss": as_is, "micro_batches": parts}
    how |= {"recompute": again, "budget": "0.1s"}
    placed = baechi.torch.place(model, x, "1x240KiB+1xhost:1GiB", **how)
    assert bool(placed.planned.again) == (again == "all")
    assert_trains_alike(model, x, alone, placed.step if parts else None)
    assert not placed.left_out
    homes = placed.weight_devices
    assert "host:0" in homes.values()
    for name, weight in model.named_parameters():
        there = "cpu" if homes[name] == "host:0" else "sim"
        assert weight.device.type == weight.grad.device.type == there
    assert placed.peaks["gpu:0"] < 1.1 * placed.plan.peaks["gpu:0"]  # of many small tensors
    first = str(placed._steps.texts[0]) if placed._steps else placed.program
    assert " = put " in first
    assert 0 < first.count(" = fetch ") <= placed.plan.to_json().count('"readers"')


@pytest.mark.parametrize(("parts", "residency"), [(None, "auto"), (2, "all")])
def test_two_unequal_devices_share_a_host(
    sim: ModuleType, parts: int | None, residency: str
) -> None:
    sim.configure(devices=2, memory="320KiB", poison=True, longest_delay="0.2ms")
    torch.manual_seed(0)
    model, x = Blocks(4).double(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    alone, cluster = copy.deepcopy(model), "1x200KiB+1x250KiB+1xhost:2MiB"
    how: dict[str, Any] = {"residency": residency, "loss": as_is, "micro_batches": parts}
    placed = baechi.torch.place(model, x, cluster, budget="0.1s", **how)
    assert {"gpu:0", "gpu:1"} <= {*placed.planned.device_of_key.values()}
    assert "host:0" in placed.weight_devices.values()
    assert_trains_alike(model, x, alone, placed.step if parts else None)
    assert not placed.left_out
    for name in ("gpu:0", "gpu:1"):
        assert placed.peaks[name] < 1.1 * placed.plan.peaks[name]
    first = str(placed._steps.texts[0]) if placed._steps else placed.program
    assert 0 < first.count(" = fetch ") <= placed.plan.to_json().count('"readers"')
    assert " = send " in first


def test_other_mini_batches_and_calls_run_beside_steps(sim: ModuleType) -> None:
    sim.configure(devices=1, memory="1MiB", poison=True, longest_delay="0.2ms")
    model, x = made()
    alone = copy.deepcopy(model)
    placed = baechi.torch.place(
        model, x, "1x240KiB+1xhost:1GiB", budget="0.1s", loss=as_is, micro_batches=2
    )
    for rows in (ROWS, ROWS + 4, ROWS // 2):
        batch = torch.randn(rows, WIDTH, dtype=torch.float64)
        placed.step(batch)
        model(batch).backward()
        for _ in range(2):
            alone(batch).backward()
    for (name, one), same in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), same[1].grad, rtol=0, atol=1e-12, msg=name)
    assert not placed.left_out


def random_away(planned: PlannedStep, seed: int) -> Away:
    """Return random fetches of random weights and results, whatever the plan says."""
    pick = random.Random(seed)
    graph, parts = planned.plan.graph, planned.plan.micro_batches
    away = Away(1, parts=parts)
    known = list(planned.step.keys.values())
    keys = [away.named(key, part) for part in range(parts) for key in known]
    back = {
        away.named(key, part) for part in range(parts) for key in known if is_back(planned, key)
    }
    readers: dict[tuple[str, int], list[str]] = {}
    for key in keys:
        for maker, port in graph[key].inputs:
            if graph[maker].variable or maker in keys:
                readers.setdefault((maker, port), []).append(key)
    found: dict[tuple[str, int], tuple[PlannedFetch, ...]] = {}
    for (maker, port), those in readers.items():
        cuts = sorted(pick.sample(range(len(those)), pick.randint(0, len(those))))
        if not graph[maker].variable:
            cuts = [cut for cut in cuts if keys.index(those[cut]) > keys.index(maker)]
        groups = [those[a:b] for a, b in itertools.pairwise([*cuts, len(those)])]
        fetches = []
        for group in groups:
            first = keys.index(group[0])
            behind = pick.choice([None, *keys[:first]])
            mine = [key in back for key in group if parts == 1 or key.endswith("@0")]
            spans = any(mine) and not all(mine)
            moment = pick.randrange(100)
            fetches.append(PlannedFetch(moment, len(found), behind, frozenset(group), spans))
        if fetches:
            bare = maker.removesuffix(f"@{maker[-1]}") if maker in keys and parts > 1 else maker
            place = planned.graph.place_of.get((bare, port), 0)
            found[maker, place] = tuple(fetches)
    puts = {key: (pick.randrange(100), pick.choice(keys)) for key in keys}
    return Away(1, found, puts, parts=parts)


def is_back(planned: PlannedStep, key: str) -> bool:
    return planned.graph.graph[key].backward


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(9))
def test_whatever_is_away_numbers_are_the_same(
    sim: ModuleType, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    sim.configure(devices=1, memory="4MiB", poison=True, longest_delay="0.2ms", seed=seed)
    pick, parts = random.Random(seed), (None, 2, 4)[seed // 3]
    model, x = made(seed)
    stored = [name for name, _ in model.named_parameters() if pick.random() < 0.6]
    homes = {name: "host:0" if name in stored else "gpu:0" for name, _ in model.named_parameters()}
    homes |= {n: pick.choice(["host:0", "gpu:0"]) for n, _ in model.named_buffers()}
    monkeypatch.setattr(PlannedStep, "homes", homes)
    away = property(lambda planned: random_away(planned, seed))
    monkeypatch.setattr(PlannedStep, "away", away)
    if seed % 3 == 2:
        monkeypatch.setattr(executor, "compile", Interpreter)
    alone = copy.deepcopy(model)
    placed = baechi.torch.place(
        model, x, "1x4MiB+1xhost:1GiB", budget="0.1s", loss=as_is, micro_batches=parts
    )
    assert_trains_alike(model, x, alone, placed.step if parts else None)
    assert not placed.left_out


@module(lambda: {"table": nn.Embedding(12, 8, sparse=True), "out": nn.Linear(8, 3)})
def Table(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A table whose gradient has the rows that were read."""
    return self.out(self.table(x).tanh()).square().sum()


@pytest.mark.parametrize("stance", ["default", "force_eager"])
def test_a_table_with_a_sparse_gradient_is_read_on_the_host(sim: ModuleType, stance: Any) -> None:
    torch.manual_seed(3)
    sim.configure(devices=1, memory="1MiB", poison=True, longest_delay="0.2ms")
    model, x = Table().double(), torch.tensor([1, 2, 2, 5])
    alone = copy.deepcopy(model)
    baechi.torch.place(model, x, "1x1MiB+1xhost:1GiB", residency="all")
    for one in (model, alone):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for shift in range(3):
            optimizer.zero_grad()
            with torch.compiler.set_stance(stance):
                one(x + shift).backward()
            assert one.table.weight.grad.is_sparse
            optimizer.step()
    assert_alike(model, alone)


class LoRA(nn.Module):
    """A frozen weight and a small one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x).tanh() + self.up(self.down(x))


def adamw(weight: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight])


def charged_costs(model: nn.Module, x: torch.Tensor, sim: ModuleType, host: Any) -> Costs:
    """Return measured costs, with updates on the virtual clock."""
    costs = measure(model, x, loss=mean_square, devices={"gpu": "sim:0"})
    device = {"gpu": Clock(torch.device("sim:0"))}
    measure_updates(costs, "AdamW", adamw, [x.dtype], device)
    with host:
        clock = Clock(torch.device("cpu"), lambda: round(1e9 * sim.virtual_host_time()))
        measure_updates(costs, "AdamW", adamw, [x.dtype], {"host": clock})
    return costs


@pytest.mark.parametrize(
    ("updates", "residency", "host_speed"),
    [("host", "all", "1GB/s"), ("host", "auto", "1GB/s"), ("pieces", "all", "20GB/s")],
)
def test_a_step_takes_what_was_planned_with_its_updates(
    sim: ModuleType, updates: str, residency: str, host_speed: str
) -> None:
    clock: dict[str, Any] = {"clock": "virtual", "operator_time": "2us", "communication": "duplex"}
    clock |= {"memory_bandwidth": "200GB/s", "link": sim.Link("5us", "10GB/s")}
    sim.configure(devices=1, memory="1GiB", asynchronous=False, poison=True, **clock)
    torch.manual_seed(0)
    x = torch.randn(8, 64, dtype=torch.float64)
    model, host = nn.Sequential(*(nn.Linear(64, 64) for _ in range(24))).double(), sim.HostOperators
    costs = charged_costs(model, x, sim, host("100ns", host_speed))
    cluster = baechi.Cluster("1x1MiB+1xhost:1GiB", link="5us,10GB/s")
    of: dict[str, Any] = {"optimizer": torch.optim.AdamW, "loss": mean_square, "costs": costs}
    how: dict[str, Any] = {"residency": residency, "updates": updates, "budget": "0.1s"}
    plan = baechi.torch.plan(model, x, cluster, **of, **how)
    alone, placed = copy.deepcopy(model), baechi.torch.place(model, x, plan=plan, **of)
    mine, same = (torch.optim.AdamW(one.parameters()) for one in (model, alone))
    if updates == "pieces":
        mine = placed.optimizer(torch.optim.AdamW)
    before = 0.0
    for _ in range(3):
        gc.collect()
        torch.accelerator.synchronize()
        sim.reset_virtual_clock()
        loss, other = mean_square(model(x)), mean_square(alone(x))
        loss.backward()
        other.backward()
        before = sim.virtual_time()
        with host("100ns", host_speed):
            mine.step()
        torch.accelerator.synchronize()
        same.step()
        assert loss.item() == pytest.approx(other.item(), abs=1e-12)
        for optimizer in (mine, same):
            optimizer.zero_grad()
    assert_alike(model, alone)
    taken = 1e9 * sim.virtual_time()
    assert taken == pytest.approx(placed.plan.makespan_ns, rel=0.05)
    assert 1e9 * before < 0.8 * taken
    assert ("there take" if updates == "host" else "in pieces on devices and there") in str(placed)


def test_frozen_weights_are_never_put_back_and_memory_need_not_be_pinned(sim: ModuleType) -> None:
    gc.collect()
    unpin(())  # nothing that other tests left is used again
    sim.configure(devices=1, memory="1MiB", poison=True, pinned="16KiB")
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(), LoRA(), LoRA()).double()
    alone, x = copy.deepcopy(model), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"^weights on the host are not all in pinned memory: "):
        placed = baechi.torch.place(
            model, x, "1x64KiB+1xhost:1GiB", residency="all", loss=mean_square, micro_batches=1
        )
    with pytest.warns(UserWarning, match="the system pins no more"):
        first = placed.step(x)
    assert first.item() == pytest.approx(mean_square(alone(x)).item())
    mean_square(alone(x)).backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert one.requires_grad or one.grad is None
        torch.testing.assert_close(one.grad, other.grad)
    assert not placed.left_out
    puts = [line for line in placed.program.splitlines() if " = put " in line]
    assert sum(f" {2 * WIDTH * 8} = put" in line for line in puts) == 6  # gradients
    assert not any(f" {WIDTH * WIDTH * 8} = put" in line for line in puts)


@pytest.mark.parametrize(
    ("cluster", "more", "says"),
    [
        ("1x1MiB", {"residency": "auto"}, "the cluster has no memory to keep anything: add a host"),
        ("1xhost:1GiB+1x1MiB", {}, "name host:0 behind all other devices"),
        ("1x1MiB+1xhost:1GiB", {"devices": ["cpu"]}, "name 1 accelerators"),
    ],
)
def test_what_a_host_cannot_do_is_said(
    sim: ModuleType, cluster: str, more: dict[str, Any], says: str
) -> None:
    sim.configure(devices=1)
    model, x = made()
    with pytest.raises(baechi.InputError, match=says) as refused:
        baechi.torch.place(model, x, cluster, **more)
    assert "\n" not in str(refused.value)


def test_a_host_that_is_too_small_is_said(sim: ModuleType) -> None:
    sim.configure(devices=1)
    model, x = made()
    with pytest.raises(baechi.DoesNotFit):
        baechi.torch.place(model, x, "1x150KiB+1xhost:100KiB", budget="0.1s")


def test_behind_a_call_that_a_program_lacks_is_behind_the_one_before() -> None:
    away = Away(1, orders=[["a", "b", "c", "d"], ["x", "y"]])
    found = {"a": None, "b": 1, "c": 1, "d": 2, "x": None, "y": 3}
    assert away.last_calls({1: "b", 2: "d", 3: "y"}) == found
