# SPDX-License-Identifier: Apache-2.0
"""Optimizers that were used before a model is placed, or restored, go on as if it was not."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.placing import assign
from branching_net import DEVICES, X, net, placed_on, step
from torch import nn

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim")


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam, a loop": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "adam, foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True, amsgrad=True),
    "adam, fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
}


@pytest.mark.repeats
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_goes_where_the_weights_go_and_back(name: str) -> None:
    make = OPTIMIZERS[name]
    plain, model = net(), net()
    expected, optimizer = make(plain.parameters()), make(model.parameters())
    for _ in range(2):  # before, placed, restored, placed once more
        assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
        placed = placed_on(model)
        devices = {p.device for p in model.parameters()}
        assert len(devices) > 1
        for _ in range(2):
            assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
        assert {t.device for s in optimizer.state.values() for t in s.values() if t.dim()} <= {
            p.device for p in model.parameters()
        }
        placed.restore()
    assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
    for parameter, state in optimizer.state.items():
        assert {t.device for t in state.values() if isinstance(t, torch.Tensor)} == {
            parameter.device
        }


def test_state_leaves_no_memory_behind_when_the_weights_leave() -> None:
    gc.collect()
    others = torch.accelerator.memory_allocated("sim:0")  # of earlier tests
    model = net().to("sim:0")
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    optimizer.zero_grad()
    model(X.to("sim:0")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    before = torch.accelerator.memory_allocated("sim:0")
    placed = placed_on(model, ["sim:1", "sim:2"])
    gc.collect()
    assert before > others
    assert torch.accelerator.memory_allocated("sim:0") == others
    placed.restore()


def test_a_loaded_checkpoint_follows_without_a_step_in_between() -> None:
    plain, model = net(), net()
    expected = torch.optim.Adam(plain.parameters(), 0.01)
    step(plain, expected)
    model.load_state_dict(plain.state_dict())
    placed = placed_on(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    optimizer.load_state_dict(copy.deepcopy(expected.state_dict()))
    placed.restore()
    assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)


def test_state_that_is_kept_elsewhere_stays_there() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step(model, optimizer)
    weight = model.head.weight
    kept = torch.ones(4, device="sim:3")
    optimizer.state[weight]["elsewhere"] = kept
    optimizer.state[weight]["nested"] = [torch.ones(2), {"inner": torch.ones(2)}, "text"]
    placed = placed_on(model)
    state = optimizer.state[weight]
    assert state["elsewhere"] is kept
    assert state["nested"][0].device == weight.device == state["nested"][1]["inner"].device
    assert state["nested"][2] == "text"
    placed.restore()


class Wrapping(torch.optim.Optimizer):
    """Has no state of its own, as the optimizers of training libraries."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


def test_schedulers_scalers_and_wrapping_optimizers() -> None:
    def losses(model: nn.Module, place: bool) -> list[float]:
        inner = torch.optim.Adam(model.parameters(), 0.01)
        optimizer = Wrapping(inner)
        schedule = torch.optim.lr_scheduler.StepLR(inner, 2, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        found, placed = [], None
        for number in range(6):
            if place and number == 2:
                placed = placed_on(model)
            if placed and number == 4:
                placed.restore()
            optimizer.zero_grad()
            loss = model(X).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(inner)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step() if number == 5 else scaler.step(inner)
            scaler.update()
            schedule.step()
            found.append(loss.item())
        return found

    assert losses(net(), True) == pytest.approx(losses(net(), False), rel=1e-4)


def test_an_optimizer_with_a_scaler_that_it_handles_itself() -> None:
    def losses(model: nn.Module, place: bool) -> list[float]:
        optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        found = []
        for number in range(4):
            if place and number == 2:
                placed_on(model)
            optimizer.zero_grad()
            loss = model(X).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
        return found

    assert losses(net(), True) == pytest.approx(losses(net(), False), rel=1e-4)


def test_weights_that_do_not_fit_leave_the_state_where_it_was() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    x = torch.randn(2, 256)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    captured = baechi.torch.capture(model, x)
    device_of = {op.key: "a" for op in captured.ops}
    with sim.configured(devices=1, memory="900KiB"):  # the weights fit, their state does not
        with pytest.raises(torch.OutOfMemoryError):
            assign(model, captured, device_of, {"a": "sim:0"}, tier=1)
        assert {t.device.type for s in optimizer.state.values() for t in s.values()} == {"cpu"}
        assert {p.device.type for p in model.parameters()} == {"cpu"}


class Odd(torch.optim.SGD):
    """Keeps its state in a list."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 0.1)
        self.state: Any = [1, 2]


def test_an_optimizer_that_keeps_state_of_another_form_is_left_alone() -> None:
    model = net()
    odd = Odd(model.parameters())
    placed_on(model).restore()
    assert odd.state == [1, 2]


@pytest.mark.parametrize("inside", ["place", "restore"])
def test_weights_that_are_moved_in_inference_mode_are_trained_later(inside: str) -> None:
    plain, model = net(), net()
    expected = torch.optim.Adam(plain.parameters(), 0.01)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
    with torch.inference_mode(inside == "place"):
        place = placed_on(model.eval(), DEVICES)
    model.train()
    assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
    with torch.inference_mode(inside == "restore"):
        place.restore()
    for _ in range(2):
        assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
    assert not any(weight.is_inference() for weight in model.parameters())


class Lookup(nn.Module):
    """Embeddings with sparse gradients, one of them read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, sparse=True)
        self.bags = nn.EmbeddingBag(20, 8, mode="sum", sparse=True)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(self.words(x).mean(1) + self.bags(x))
        return self.last(h + self.words(x).sin().sum(1))


@pytest.mark.repeats
@pytest.mark.parametrize("tier", [1, 2])
@pytest.mark.parametrize("devices", [["sim:0", "sim:1", "sim:2"], ["sim:0", "sim:0", "sim:1"]])
def test_sparse_gradients(tier: int, devices: list[str]) -> None:
    torch.manual_seed(3)
    plain, x = Lookup(), torch.randint(0, 20, (5, 3))
    model = copy.deepcopy(plain)
    options: dict[str, Any] = {"method": "random", "seed": 2, "bounds": False, "tier": tier}
    placed = baechi.torch.place(model, x, "3x1GiB", devices=devices, **options)

    def train(model: Lookup) -> list[float]:
        lookups = [*model.words.parameters(), *model.bags.parameters()]
        layers = [*model.first.parameters(), *model.last.parameters()]
        optimizers = torch.optim.SparseAdam(lookups, 0.05), torch.optim.SGD(layers, 1e-3)
        losses = []
        for _ in range(3):
            loss = model(x).square().sum()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        model(x).square().sum().backward()
        return losses

    assert train(model) == pytest.approx(train(plain), rel=1e-5)
    placed.restore()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.to_dense(), theirs.grad.to_dense())
