# SPDX-License-Identifier: Apache-2.0
"""Graphs run operators a second time, and train as one device does all the same."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base.nested import map_tensors
from baechi.torch.placing import assign, place_with
from baechi.torch.record.capture import call_arguments, capture
from same_training import EXCLUSIVE, SHARED, check_same, trained
from second_runs_test import Scaled, fits_only_with_second_runs, with_doubles
from torch import nn
from torch_models import ALL, built, exported
from training_steps import loss_like

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim")

X = torch.linspace(-1, 1, 4 * 8, dtype=torch.double).reshape(4, 8)
ORDER = "streams+order"
GRAPHS = [name for name in ALL if name not in ("turns", "mixtral")]


def in_a_graph(
    known: list[Any], model: Any, inputs: Any, devices: list[str], **options: Any
) -> Any:
    """Place a model for tier 2, by default at random and with all regions run again."""
    how: dict[str, Any] = {"tier": 2, "recompute": "all", "method": "random", "bounds": False}
    cluster = f"{len(devices)}x1GiB"
    how |= {"cluster": cluster, "devices": devices, "loss": loss_like, "gradients": "freed"}
    return place_with(known, model, inputs, **{**how, **options})


def blocks(placed: Any) -> int:
    """Return how many calls of the traced graph run as one."""
    ((graph,),) = placed._assigner.graphs._known.values()
    return int(graph.program.source.count(" = block"))


def trains_alike(name: str, cases: Any) -> None:
    """Compare three steps, in a mode and at a level, placed by chance, to one device's."""
    model, inputs = built(ALL[name]).double(), with_doubles(ALL[name].inputs(2))
    expected = trained(copy.deepcopy(model), inputs)
    known: list[Any] = []
    for seed, (mode, level) in enumerate(cases, 1):
        devices, home = (EXCLUSIVE, "cpu") if seed % 2 else (SHARED, "sim:1")
        mine = copy.deepcopy(model)
        how = {"seed": seed, "mode": mode, "level": level}
        placed = in_a_graph(known, mine, inputs, devices, **how)
        with sim.configured(
            devices=4, poison=True, memory="1GiB", longest_delay="300us", seed=seed
        ):
            found = trained(mine, map_tensors(lambda t: t.to(home), inputs))  # noqa: B023
        check_same(expected, found, f"{name}, {how}")
        assert (placed.tier, placed.tier_note) == (2, "")
        assert 0 < len(placed.plan.recomputed) <= blocks(placed)
        known = placed._assigner.graphs.tier2.exported
        placed.restore()


def test_losses_and_weights_are_those_of_one_device() -> None:
    trains_alike("unet", [("streams", "module"), (ORDER, "module"), ("streams", "operator")])


@pytest.mark.repeats
@pytest.mark.parametrize("name", GRAPHS)
def test_any_graph_with_second_runs_trains_as_on_one_device(name: str) -> None:
    levels = [("streams", "module"), (ORDER, "operator"), ("plain", "operator"), (ORDER, "module")]
    trains_alike(name, levels)


class Mixed(nn.Module):
    """Dropout, batch norm, changes in place, views, parts of a tuple and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.tied = nn.Linear(8, 16), nn.Linear(16, 16)
        self.norm, self.scaled = nn.BatchNorm1d(16), Scaled()
        self.drop, self.relu = nn.Dropout(0.3), nn.ReLU(inplace=True)
        self.back = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x))
        left, right = self.tied(torch.sigmoid(x)).chunk(2, 1)
        y = self.scaled(torch.cat([right.exp() * 0.1, left.square()], 1))
        y = self.relu(self.tied(y)) + x * 0.5
        y += x
        with torch.no_grad():
            gate = (y.abs().mean(1, keepdim=True) + 1).sqrt()
        y = self.drop(y / gate) + nn.functional.gelu(y).view(4, 2, 8).flatten(1)
        return self.back(nn.functional.softmax(y, 1))


def mixed() -> Mixed:
    torch.manual_seed(3)
    return Mixed().double()


@pytest.mark.parametrize("level", ["module", "operator"])
def test_random_numbers_averages_and_changes_in_place_happen_once(level: str) -> None:
    """Bit by bit as where nothing runs again, in the same order on the same devices."""
    known: list[Any] = []
    for seed in (1, 2):
        found = []
        for recompute in ("none", "all"):
            model = mixed()
            placed = in_a_graph(
                known, model, X, EXCLUSIVE, seed=seed, level=level, recompute=recompute
            )
            with sim.configured(devices=4, poison=True, memory="1GiB", longest_delay="300us"):
                torch.manual_seed(11)
                found.append(trained(model, X))
            known = placed._assigner.graphs.tier2.exported
            again = {name for name, _ in placed.plan.recomputed}
            assert bool(again) == (recompute == "all")
            once = ("norm", "drop", "relu", "__iadd__")
            assert not any(name.startswith(once) for name in again)
            placed.restore()
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
        check_same(found[0], found[1], f"{level}, placement {seed}", 1e-12)


def again_on_one(model: nn.Module, again: list[str], device: str = "sim:0") -> Any:
    """Place a model on one device, in a graph where these operators run again."""
    captured = capture(copy.deepcopy(model), X)
    where = {op.key: "gpu:0" for op in captured.ops}
    return assign(model, captured, where, {"gpu:0": device}, tier=2, again=again)


@pytest.mark.parametrize("changed", ["weight", "input", "input of nobody else"])
def test_what_changed_since_the_forward_is_found_as_by_autograd(changed: str) -> None:
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)]
    again = ["0", "1"]
    if changed == "input of nobody else":  # a sigmoid keeps what it makes
        layers, again = [nn.Sigmoid(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)], ["0", "2"]
    model = nn.Sequential(*layers).double()
    placed = again_on_one(model, again)
    given = X.to("sim:0")
    model(given).sum().backward()
    assert placed.tier == 2
    assert blocks(placed) >= len(again)
    loss = model(given).sum()
    with torch.no_grad():
        (model[0].weight if changed == "weight" else given).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_and_second_derivatives_are_those_of_the_first_run() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid()).double()
    mine = copy.deepcopy(model)
    placed = in_a_graph([], mine, X, ["cpu", "cpu"], seed=2)
    found = []
    for one in (model, mine):
        x = X.clone().requires_grad_()
        loss = one(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (slope.square().sum() + loss).backward()
        found.append([x.grad, *(p.grad for p in one.parameters())])
    assert placed.plan.recomputed
    assert placed.tier == 2
    for expected, same in zip(*found, strict=True):
        torch.testing.assert_close(same, expected, rtol=1e-12, atol=1e-12)


class Filled(nn.Module):
    """Changes in place, inside a unit, what it reads elsewhere: its graph has both as one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).mul_(x.cos())


class Joined(nn.Module):
    """Has a first part that modules make apart, and a graph as one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.filled, self.tanh = Filled(), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.tanh(self.filled(self.first(x).sin())))


def test_what_changes_in_place_inside_runs_again_as_one() -> None:
    torch.manual_seed(5)
    model = Joined().double()
    expected = trained(copy.deepcopy(model), X)
    placed = in_a_graph([], model, X, EXCLUSIVE, seed=1, units=[Filled, nn.Linear, nn.Tanh])
    assert "filled" in {name for name, _ in placed.plan.recomputed}
    with sim.configured(devices=4, poison=True, memory="1GiB", longest_delay="300us"):
        found = trained(model, X)
    assert placed.tier == 2
    check_same(expected, found, "in place inside")


def test_hooks_of_others_on_what_is_kept_have_all_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    mine = copy.deepcopy(model)
    placed = again_on_one(mine, ["0", "1"], "cpu")
    seen: list[list[int]] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen[-1].append(tensor.numel())
        return tensor

    mine(X)  # traces the graph
    for one in (model, mine):
        seen.append([])
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            one(X).sum().backward()
    assert sum(seen[1]) >= sum(seen[0])
    assert placed.tier == 2
    for ours, theirs in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def measured(model: Any, inputs: Any, count: int) -> list[int]:
    """Return what each device holds at most in a step, when the optimizer's state is there."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    args, kwargs = call_arguments(inputs)
    peaks: list[int] = []
    for _ in range(2):
        optimizer.zero_grad()
        for device in range(count):
            sim.reset_peak_memory_stats(device)
        loss_like(model(*args, **kwargs)).backward()
        optimizer.step()
        peaks = [sim.max_memory_allocated(device) for device in range(count)]
    return peaks


def peaks_are_foreseen(name: str, cases: Any) -> None:
    inputs = ALL[name].inputs(16)
    with sim.configured(devices=4, asynchronous=False, memory="1GiB"):
        for count, seed, mode, level in cases:
            gc.collect()
            model = built(ALL[name])
            how = {"seed": seed, "mode": mode, "level": level}
            placed = in_a_graph([exported(name)], model, inputs, EXCLUSIVE[:count], **how)
            found = measured(model, inputs, count)
            assert placed.tier == 2
            foreseen = [placed.tier_peaks[2][f"gpu:{i}"] for i in range(count)]
            for mine, peak in zip(foreseen, found, strict=True):
                assert 0.97 * peak - 512 <= mine <= 1.1 * peak + 2048, (how, foreseen, found)
            placed.restore()
            del model, placed


def test_peaks_are_those_of_the_devices() -> None:
    cases = [(1, 1, "streams", "module"), (3, 1, ORDER, "module"), (2, 3, "streams", "operator")]
    peaks_are_foreseen("unet", cases)


@pytest.mark.repeats
@pytest.mark.parametrize("name", GRAPHS)
def test_peaks_of_any_graph_are_those_of_the_devices(name: str) -> None:
    levels = [("streams", "module"), (ORDER, "module"), (ORDER, "operator")]
    peaks_are_foreseen(name, [(2 + n % 2, n, *levels[n]) for n in range(3)])


def test_a_model_that_fits_in_no_other_way_has_operators_run_again(tmp_path: Path) -> None:
    """In the order of the plan."""
    again = fits_only_with_second_runs(tmp_path, "planned", tier=2, mode=ORDER)
    assert again.tier == 2
    again.restore()


def test_a_graph_that_has_an_operator_as_one_with_others_is_refused() -> None:
    """Here another one changes what it made."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1)).double()
    again_on_one(model, ["0"])
    with pytest.raises(baechi.InputError, match="'0' is to run again, and is one with others"):
        model(X)
