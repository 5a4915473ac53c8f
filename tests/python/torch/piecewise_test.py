# SPDX-License-Identifier: Apache-2.0
"""Optimizers that update weights on the host piece by piece on devices."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.graph.optimizers import BY_PIECES
from places import assert_alike
from torch import nn, optim
from torch.optim import AdamW, Optimizer

from baechi import InputError

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")

WIDTH, KIB = 32, 1024
X = torch.linspace(-1, 1, 8 * WIDTH, dtype=torch.float64).reshape(8, WIDTH)


class Model(nn.Module):
    """Weights of several sizes, of which some are frozen and one is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.scale, self.unread = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * self.scale
        return self.frozen(x).square().mean()


def as_is(loss: torch.Tensor) -> torch.Tensor:
    return loss


def groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *others = (p for p in model.parameters() if p.requires_grad)
    return [{"params": [first], "lr": 0.05}, {"params": others}]


@pytest.fixture
def both(sim: ModuleType, request: pytest.FixtureRequest) -> tuple[Any, nn.Module, nn.Module]:
    """Return how a model is placed whose weights are all on the host, it, and one like it."""
    memory, devices, parts = getattr(request, "param", ("160KiB", 1, None))
    sim.configure(devices=devices, memory=memory, poison=True, longest_delay="0.2ms")
    torch.manual_seed(0)
    model = Model().double()
    alone, cluster = copy.deepcopy(model), f"{devices}x{memory}+1xhost:1GiB"
    how: dict[str, Any] = {"residency": "all", "budget": "0.1s", "loss": as_is}
    return baechi.torch.place(model, X, cluster, micro_batches=parts, **how), model, alone


def backward(one: Any, optimizer: Optimizer, scaled: Callable[[Any], Any] = as_is) -> float:
    optimizer.zero_grad()
    loss = one(X)
    scaled(loss).backward()
    return float(loss.item())


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "fused sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": (AdamW, {"lr": 0.01}),
    "one by one": (AdamW, {"lr": torch.tensor(0.01), "foreach": False, "maximize": True}),
    "fused": (AdamW, {"lr": torch.tensor(0.01), "fused": True}),
    "adamax": (optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    "nadam": (optim.NAdam, {"lr": 0.01}),
    "radam": (optim.RAdam, {"lr": 0.01}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.01, "initial_accumulator_value": 0.1}),
    "fused adagrad": (optim.Adagrad, {"lr": 0.01, "fused": True}),
    "adadelta": (optim.Adadelta, {"maximize": True}),
    "asgd": (optim.ASGD, {"lr": 0.01, "t0": 1.0, "foreach": True}),  # by 32 bits, which differ
    "asgd one by one": (optim.ASGD, {"lr": 0.01, "t0": 1.0, "foreach": False}),
    "rprop": (optim.Rprop, {"lr": 0.01}),
    "adafactor": (optim.Adafactor, {"lr": 0.01}),
}


def test_the_ways_are_by_all_classes_that_go_by_pieces() -> None:
    assert {kind for kind, _ in WAYS.values()} == BY_PIECES


def scaled(by: Any, times: float, loss: Any) -> Any:
    return by.scale(loss * times)


@pytest.mark.parametrize("way", WAYS)
def test_updates_by_pieces_are_the_optimizers_own(sim: ModuleType, both: Any, way: str) -> None:
    placed, model, alone = both
    kind, options = WAYS[way]
    mine = placed.optimizer(kind, groups(model), **copy.deepcopy(options))
    same = kind(groups(alone), **copy.deepcopy(options))
    assert isinstance(mine, kind)
    calls: list[int] = []
    mine.register_step_post_hook(lambda *_: calls.append(1))
    rates = [optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (mine, same)]
    for step in range(3):
        wanted = backward(alone, same)
        assert backward(model, mine) == pytest.approx(wanted, abs=1e-12)
        gc.collect()
        torch.accelerator.synchronize()
        before = sim.memory_allocated(0)
        sim.reset_peak_memory_stats(0)
        mine.step()
        assert before + 20 * KIB < sim.max_memory_allocated(0) <= 160 * KIB
        gc.collect()
        assert sim.memory_allocated(0) == before
        same.step()
        for rate in rates:
            rate.step()
        assert len(calls) == step + 1
    assert_alike(model, alone)
    for p, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert p.is_pinned()
        torch.testing.assert_close(p.grad, other.grad, rtol=0, atol=1e-12)
        kept, wanted_kept = mine.state.get(p, {}), same.state.get(other, {})
        torch.testing.assert_close(kept, wanted_kept, rtol=0, atol=1e-12)
        assert p.grad is None or all(t.is_pinned() for t in kept.values() if t.dim())
    assert len(placed._backend.frames) == 1
    assert not placed.left_out


@pytest.mark.parametrize("both", [("200KiB", 2, None), ("160KiB", 1, 2)], indirect=True)
def test_several_devices_and_steps_of_micro_batches_train_alike(both: Any) -> None:
    placed, model, alone = both
    mine, same = placed.optimizer(AdamW, lr=0.01), AdamW(alone.parameters(), lr=0.01)
    for _ in range(3):
        wanted = backward(alone, same)
        if placed.plan.micro_batches > 1:
            mine.zero_grad()
            assert placed.step(X).item() == pytest.approx(wanted, abs=1e-12)
        else:
            assert backward(model, mine) == pytest.approx(wanted, abs=1e-12)
        mine.step()
        same.step()
    assert_alike(model, alone)


def test_scaled_and_clipped_gradients_and_states_that_are_loaded(both: Any, tmp_path: Path) -> None:
    placed, model, alone = both
    mine = placed.optimizer(AdamW, lr=0.01, fused=False)
    same: Optimizer = AdamW(alone.parameters(), lr=0.01)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8) for _ in range(2)]
    scalers[0].scale(torch.ones(()))  # on the host, as all gradients are
    for step in range(4):
        for one, optimizer, scaler in zip((model, alone), (mine, same), scalers, strict=True):
            times = float("inf") if step == 1 else 1.0
            backward(one, optimizer, functools.partial(scaled, scaler, times))
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        assert_alike(model, alone)
        if step == 2:
            placed.save(tmp_path / "there", optimizer=mine)
            mine.state.clear()
            placed.load(tmp_path / "there", optimizer=mine)
            other = AdamW(alone.parameters(), lr=0.01)
            other.load_state_dict(copy.deepcopy(mine.state_dict()))
            same = other
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**7
    placed.restore()
    for one, optimizer in ((model, mine), (alone, same)):
        optimizer.step(lambda one=one, optimizer=optimizer: backward(one, optimizer))
    assert_alike(model, alone)


def test_an_optimizer_by_pieces_is_a_plain_one_when_it_is_read_again(both: Any) -> None:
    placed, model, _ = both
    mine = placed.optimizer(AdamW, groups(model), lr=0.01)
    backward(model, mine)
    mine.step()
    there = pickle.loads(pickle.dumps(mine))
    assert type(there) is AdamW
    torch.testing.assert_close(there.state_dict(), mine.state_dict())
    for ours, theirs in zip(mine.param_groups, there.param_groups, strict=True):
        for p, other in zip(ours["params"], theirs["params"], strict=True):
            other.grad = p.grad
    for optimizer in (mine, there):
        optimizer.step()
    torch.testing.assert_close(there.param_groups, mine.param_groups)


def test_what_has_no_room_is_updated_on_the_host(sim: ModuleType, both: Any) -> None:
    placed, model, alone = both
    mine, same = placed.optimizer(AdamW, lr=0.01), AdamW(alone.parameters(), lr=0.01)
    held = None
    for room in (100, 40, 0):
        backward(alone, same)
        backward(model, mine)
        held = torch.empty(
            (160 - room) * KIB - sim.memory_allocated(0), dtype=torch.uint8, device="sim:0"
        )
        sim.reset_peak_memory_stats(0)
        before = sim.memory_allocated(0)
        mine.step()
        same.step()
        assert_alike(model, alone)
        assert (sim.max_memory_allocated(0) > before) == (room > 0)
        del held


class Clips(optim.SGD):
    """An optimizer that clips by the norm of all gradients that it sees."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


@pytest.mark.parametrize(
    "kind", [list, Clips, optim.LBFGS, optim.Muon, optim.SparseAdam, functools.partial(AdamW)]
)
def test_what_is_known_of_no_other_optimizer_is_refused(both: Any, kind: Any) -> None:
    with pytest.raises(InputError, match=r"^\w+ is none .* RAdam, .* placed.optimizer$"):
        both[0].optimizer(kind, lr=0.1)


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_options_that_pieces_cannot_have_are_refused(both: Any, option: str) -> None:
    placed, model, alone = both
    with pytest.raises(InputError, match=f"^{option}=True: updates by pieces are neither"):
        placed.optimizer(AdamW, **{option: True})
    mine, same = placed.optimizer(AdamW, groups(model)[:1]), AdamW(groups(alone))
    mine.add_param_group({**groups(model)[1], option: True})
    backward(alone, same)
    backward(model, mine)
    with pytest.raises(InputError, match=f"^{option}=True: updates by pieces are neither"):
        mine.step()
    mine.param_groups[1][option] = False
    mine.step()
    same.step()
    assert_alike(model, alone)


def test_an_update_that_fails_leaves_weights_where_they_were(both: Any) -> None:
    placed, model, alone = both
    mine = placed.optimizer(AdamW, groups(model))
    backward(model, mine)
    mine.param_groups[1]["betas"] = None
    with pytest.raises(TypeError, match="cannot unpack"):
        mine.step()
    assert all(
        one.device.type == "cpu"
        for p in model.parameters()
        for one in (p, p.grad)
        if one is not None
    )
    assert len(mine.param_groups[1]["params"]) == len(groups(alone)[1]["params"])


def test_state_that_is_not_pinned(sim: ModuleType, both: Any) -> None:
    placed, model, alone = both
    mine, same = placed.optimizer(AdamW, lr=0.01), AdamW(alone.parameters(), lr=0.01)
    backward(alone, same)
    backward(model, mine)
    gc.collect()
    sim.configure(pinned=sim.host_memory_stats()["allocated_bytes.current"] + 8 * KIB)
    with pytest.warns(UserWarning, match="^the optimizer's state on the host is not all in pinned"):
        mine.step()
    same.step()
    mine.step()
    same.step()
    assert_alike(model, alone)
