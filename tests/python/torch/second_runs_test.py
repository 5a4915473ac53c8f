# SPDX-License-Identifier: Apache-2.0
"""Operators of a placed model that run a second time, for what their first run need not keep."""

from __future__ import annotations

import copy
import gc
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base.nested import map_tensors
from baechi.torch.cost.graph_generator import graph_of, repeatable_ops
from baechi.torch.cost.profiler import estimate
from baechi.torch.memory.eager import StepContext, peaks_of
from baechi.torch.placing import assign
from baechi.torch.record.capture import capture
from baechi.torch.record.recorded_step import planned_ops, repeated_ops
from same_training import EXCLUSIVE, SHARED, check_same, trained
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import ALL, built
from training_steps import loss_like

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim")

OUTSIDE = {"deep": True}
X = torch.linspace(-1, 1, 4 * 8, dtype=torch.double).reshape(4, 8)


class Counted(nn.Module):
    """A leaf that counts its calls; what it makes does not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.tanh()


class Scaled(nn.Module):
    """A leaf of the user's own with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Switched(nn.Module):
    """Has dropout that is off when it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.first(x)).sin().cos())


class Growing(nn.Module):
    """Looks at something that the recording cannot see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos() if OUTSIDE["deep"] else x.sin()


class Checkpointed(nn.Module):
    """Has a checkpoint of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: self.two(t.tanh()), self.one(x), use_reentrant=False)


class Doubled(torch.autograd.Function):
    """Keeps its input, and has a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * gradients[0]


class Mixed(nn.Module):
    """Dropout, batch norm, changes in place, views, a tied weight and functions of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.tied = nn.Linear(8, 16), nn.Linear(16, 16)
        self.norm, self.scaled = nn.BatchNorm1d(16), Scaled()
        self.drop, self.counted = nn.Dropout(0.3), Counted()
        self.relu = nn.ReLU(inplace=True)
        self.back = nn.Linear(16, 8, bias=False)
        self.back.weight = nn.Parameter(self.stem.weight.t().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x))
        left, right = self.tied(torch.sigmoid(x)).chunk(2, 1)
        y = self.scaled(torch.cat([right.exp() * 0.1, left.square()], 1))
        y = self.relu(self.tied(y)) + self.counted(x * 0.5)
        y += x
        with torch.no_grad():
            gate = (y.abs().mean(1, keepdim=True) + 1).sqrt()
        y = self.drop(Doubled.apply(y / gate)) + nn.functional.gelu(y).view(4, 2, 8).flatten(1)
        with torch.autocast(y.device.type, dtype=torch.bfloat16):
            z = torch.mm(y.float(), self.back.weight.float().t() * 2).double()
        return self.back(nn.functional.softmax(y, 1)) + z * 0.01


def mixed() -> Mixed:
    torch.manual_seed(3)
    return Mixed().double()


def with_doubles(value: Any) -> Any:
    return map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)


def may_run_again(captured: Any) -> list[str]:
    planned = {op.key for op in planned_ops(captured)}
    keys = [captured.ops[index].key for index in sorted(repeatable_ops(captured))]
    return [key for key in keys if key in planned]


def some(keys: list[str], share: float, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [key for key in keys if chance.random() < share]


def placed_by_chance(
    model: Any, captured: Any, again: list[str], devices: list[str], seed: int, **options: Any
) -> Any:
    cluster = baechi.Cluster(f"{len(devices)}x1GiB")
    graph = graph_of(captured, estimate(captured, cluster)).graph
    plan = baechi.place_graph(graph, cluster, method="random", seed=seed, bounds=False)
    where = dict(zip((d.name for d in cluster.devices), devices, strict=True))
    return assign(model, captured, plan.device_of, where, tier=1, again=again, **options)


def trains_alike(model: Any, inputs: Any, cases: int, **options: Any) -> None:
    """Compare three steps, with sets of second runs and placements by chance, to one device's."""
    expected = trained(copy.deepcopy(model), inputs)
    captured = capture(copy.deepcopy(model), inputs)
    may = may_run_again(captured)
    assert may
    for number in range(cases):
        again = some(may, (1.1, 0.5, 0.75)[number % 3], number)
        devices, home = (EXCLUSIVE, "cpu") if number % 2 == 0 else (SHARED, "sim:1")
        placed = placed_by_chance(copy.deepcopy(model), captured, again, devices, number, **options)
        state = copy.deepcopy(model.state_dict())
        delays = {"longest_delay": "300us", "seed": number}
        with sim.configured(devices=4, poison=True, memory="1GiB", **delays):
            placed.model.load_state_dict(state)
            found = trained(placed.model, map_tensors(lambda t: t.to(home), inputs))  # noqa: B023
        check_same(expected, found, f"case {number}, {home}, again: {again}")
        assert not placed.unplanned
        placed.restore()


@pytest.mark.parametrize("name", ["inception", "gpt2"])
def test_models_with_second_runs_train_as_on_one_device(name: str) -> None:
    if name not in ALL:
        pytest.skip("transformers is not installed")
    trains_alike(built(ALL[name]).double(), with_doubles(ALL[name].inputs(2)), 2)


@pytest.mark.repeats
@pytest.mark.parametrize("name", sorted({*ALL} - {"inception", "gpt2"}))
def test_any_model_with_second_runs_trains_as_on_one_device(name: str) -> None:
    if name == "turns":
        pytest.skip("nothing of it can run again: it is one unit")
    if name == "mixtral":  # its experts read a value in a part that the backward runs again
        pytest.skip("the simulated device waits for ever in the older runtime since it is true")
    model = built(ALL[name])
    trains_alike(model.double(), with_doubles(ALL[name].inputs(2)), 3)


def test_random_numbers_averages_and_changes_in_place_happen_once() -> None:
    model = mixed()
    model.drop.p = 0.0
    trains_alike(model, X, 3)
    model = mixed()
    captured = capture(copy.deepcopy(model), X)
    may = may_run_again(captured)
    for op in captured.ops:
        once = op.kind in ("BatchNorm1d", "Dropout", "ReLU", "Counted", "Doubled", "__iadd__")
        assert not (once and op.key in may), op.key
    assert {"scaled", "stem", "tied", "sigmoid", "softmax"} <= {k.split("@")[0] for k in may}
    for seed in range(2):
        found = []
        for again in ([], may):
            placed = placed_by_chance(copy.deepcopy(model), captured, again, EXCLUSIVE, seed)
            with sim.configured(devices=4, poison=True, memory="1GiB", longest_delay="300us"):
                torch.manual_seed(11)
                found.append(trained(placed.model, X))
            placed.restore()
        check_same(found[0], found[1], f"dropout, placement {seed}", 0.0)


def test_a_second_backward_and_second_derivatives_are_those_of_the_first_run() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid()).double()
    captured = capture(copy.deepcopy(model), X)
    placed = placed_by_chance(
        copy.deepcopy(model), captured, may_run_again(captured), ["cpu", "cpu"], 1
    )
    found = []
    for one in (model, placed.model):
        x = X.clone().requires_grad_()
        loss = one(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (slope.square().sum() + loss).backward()
        found.append([x.grad, *(p.grad for p in one.parameters())])
    for expected, same in zip(*found, strict=True):
        torch.testing.assert_close(same, expected, rtol=1e-12, atol=1e-12)


def test_what_changed_since_the_forward_is_found_as_by_autograd() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    captured = capture(copy.deepcopy(model), X)
    placed = placed_by_chance(model, captured, ["0", "1"], ["cpu", "cpu"], 1)
    loss = placed.model(X).sum()
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_module_runs_again_in_the_mode_that_it_ran_in() -> None:

    torch.manual_seed(3)
    model = Switched().double()
    model.drop.eval()
    captured = capture(copy.deepcopy(model), X)
    again = ["first", "sin@0", "cos@0"]
    expected = copy.deepcopy(model)
    placed = placed_by_chance(model, captured, again, ["cpu", "cpu"], 1)
    for one in (expected, model):
        loss = one(X).square().sum()
        one.train()
        loss.backward()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    placed.restore()


class Table(nn.Module):
    """Takes no tensor: what it gives comes from its weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.linspace(-1, 1, 4 * 8).reshape(4, 8))
        self.mix = nn.Parameter(torch.linspace(-0.7, 1, 64).reshape(8, 8))

    def forward(self) -> torch.Tensor:
        return nn.functional.linear(self.rows, self.mix)


class OfATable(nn.Module):
    """Multiplies its input by what comes from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = Table(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last((self.table().float() * x).exp())
        return y


def test_what_reads_weights_alone_runs_again_under_its_autocast() -> None:
    torch.manual_seed(3)
    model, units = OfATable(), [Table, nn.Linear]
    captured = capture(copy.deepcopy(model), X.float(), units=units)
    gradients = []
    for again in ([], ["table"]):
        where = {op.key: "gpu:0" for op in captured.ops}
        placed = assign(
            copy.deepcopy(model),
            captured,
            where,
            {"gpu:0": "sim:0"},
            tier=1,
            units=units,
            again=again,
        )
        with torch.autocast("sim", torch.bfloat16):
            loss = placed.model(X.float().to("sim:0")).float().square().sum()
        loss.backward()
        gradients.append([weight.grad.cpu() for weight in placed.model.parameters()])
        placed.restore()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_other_results_of_a_second_run_are_an_error() -> None:

    OUTSIDE["deep"] = True
    model = nn.Sequential(nn.Linear(8, 8), Growing(), nn.Linear(8, 1)).double()
    captured = capture(copy.deepcopy(model), X)
    placed = placed_by_chance(model, captured, ["1"], ["cpu", "cpu"], 1)
    loss = placed.model(X).sum()
    OUTSIDE["deep"] = False
    with pytest.raises(RuntimeError, match=r"'1' saved 2 tensors in the forward and 1 when"):
        loss.backward()


def test_checkpoints_of_the_model_stay_its_own() -> None:

    assert not may_run_again(capture(Checkpointed().double(), X))


def test_peaks_with_second_runs_are_those_of_the_devices() -> None:
    inputs = ALL["inception"].inputs(16)
    with sim.configured(devices=4, asynchronous=False, memory="1GiB"):
        for count, share in ((1, 0.5), (3, 1.1), (3, 0.6)):
            gc.collect()
            model = built(ALL["inception"])
            captured = capture(model, inputs, loss=loss_like)
            again = some(may_run_again(captured), share, 1)
            placed = placed_by_chance(model, captured, again, EXCLUSIVE[:count], count)
            keys = {captured.ops[index].key for index in repeated_ops(captured, again)}
            step = capture(built(ALL["inception"]), inputs, loss=loss_like, again=keys)
            device_of = {k: f"gpu:{i}" for k, i in placed._assigner.placement.items()}
            foreseen = peaks_of(step, device_of, StepContext("adam"))
            found = measured_peaks(placed.model, inputs, count)
            for index, peak in enumerate(found):
                assert 0.97 * peak - 512 <= foreseen[f"gpu:{index}"].bytes <= 1.1 * peak + 2048
            placed.restore()
            del model, placed


def measured_peaks(model: Any, inputs: Any, count: int) -> list[int]:
    """Return what each device holds at most in a step, when the optimizer's state is there."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    peaks: list[int] = []
    for _ in range(2):
        optimizer.zero_grad()
        for device in range(count):
            sim.reset_peak_memory_stats(device)
        loss_like(model(inputs)).backward()
        optimizer.step()
        peaks = [sim.max_memory_allocated(device) for device in range(count)]
    return peaks


def fits_only_with_second_runs(folder: Path, order: str, **options: Any) -> Any:
    """Place a model with second runs, refuse it without; return it placed by the saved plan."""
    model, inputs, size = built(ALL["unet"]).double(), with_doubles(ALL["unet"].inputs(16)), 1470
    expected = trained(copy.deepcopy(model), inputs)
    options |= {"gradients": "freed", "budget": "50ms", "loss": loss_like}
    options["devices"] = EXCLUSIVE[:2]
    with pytest.raises(baechi.DoesNotFit):
        baechi.torch.place(model, inputs, f"2x{size}KiB", recompute="none", **options)
    placed = baechi.torch.place(model, inputs, f"2x{size}KiB", **options)
    assert placed.plan is not None
    assert placed.plan.recomputed
    assert placed.plan.order == order
    assert baechi.verify(placed.plan) == []
    assert placed.plan.fits
    assert all(peak <= size * 1024 for peak in placed.peaks.values())
    assert "run again in the backward" in str(placed)
    placed.plan.save(folder / "plan.json")
    placed.plan.micro_batch_graph.save(folder / "graph.json")
    placed.restore()
    plan = baechi.Plan.load(folder / "plan.json", baechi.Graph.load(folder / "graph.json"))
    again = baechi.torch.place(model, inputs, plan=plan, **options)
    assert again.peaks == placed.peaks
    with sim.configured(devices=4, poison=True, memory="1GiB", longest_delay="300us"):
        again.model.load_state_dict(built(ALL["unet"]).double().state_dict())
        found = trained(again.model, inputs)
    check_same(expected, found, "planned")
    return again


def test_a_model_that_fits_in_no_other_way_has_operators_run_again(tmp_path: Path) -> None:
    again = fits_only_with_second_runs(tmp_path, "program", tier=1)
    assert again.tier == 1


def test_no_other_word_says_what_runs_again() -> None:
    with pytest.raises(baechi.InputError, match="recompute is one of none, auto, all, not 'some'"):
        baechi.torch.plan(nn.Sequential(nn.Linear(8, 8)), X.float(), "2x1GiB", recompute="some")


@pytest.mark.parametrize("options", [{"mode": "streams"}, {"mode": "plain"}, {"tier": 1}])
def test_plans_of_their_own_order_run_in_no_other(options: dict[str, Any]) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    x = torch.ones(64, 8)
    captured = capture(model, x)
    graph = graph_of(captured, estimate(captured, baechi.Cluster("1x1GiB"))).graph
    plan = baechi.place_graph(graph, "1x1GiB", recompute="all", bounds=False)
    assert plan.recomputed
    with pytest.raises(baechi.InputError, match="in an order of its own"):
        baechi.torch.place(model, x, plan=plan, devices=["cpu"], **options)
