# SPDX-License-Identifier: Apache-2.0
"""Optimizers that update weights on the host piece by piece on devices."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import baechi.torch
import pytest
import torch
from places import assert_alike
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, Adam, AdamW, Optimizer

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


class Steady(Optimizer):
    """Counts in many places, gives tensors of states new and several names, and ends gradients."""

    steps = 0

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "count": torch.zeros(()), "shared": torch.zeros(())})
        self.all, self.new = torch.zeros(()), torch.zeros(())
        self.log: list[Any] = [Counter(), deque(maxlen=2), set()]

    def step(self, closure: Any = None) -> None:  # noqa: ARG002 an optimizer's
        self.steps += 1
        self.all += 1
        self.new = self.new + 1
        self.state["steps"] = self.state.get("steps", 0) + 1
        counter, last, seen = self.log
        counter["steps"] += 1
        last.append(counter["steps"])
        seen.add(counter["steps"])
        for number, group in enumerate(self.param_groups):
            group["count"] = group["count"] + 1
            group["shared"].add_(1)  # two groups have one
            group.setdefault("list", []).append(number)
            counts: Any = (self.steps, self.state["steps"], self.all, self.new, group["count"])
            counts += (counter["steps"], sum(last), len(seen), group["shared"], sum(group["list"]))
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["sum"] = state["same"] = state["now"] = torch.zeros_like(p)
                    state["size"] = torch.zeros((), dtype=p.dtype, device=p.device)
                state["before"], state["now"] = state["now"], p.grad.clone()
                state["sum"].add_(state["now"] - 0.5 * state["before"])
                less = sum(counts) + state["size"].add_(p.grad.norm())
                rate = group["lr"] / less
                p.data.sub_(state["same"] * rate)
                p.grad = p.grad.neg_() if p.dim() > 1 else None


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (AdamW, {"lr": 0.01}),
    "adam": (Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "one by one": (AdamW, {"lr": 0.01, "foreach": False}),
    "fused": (AdamW, {"lr": 0.01, "fused": True}),
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "plain": (SGD, {"lr": 0.1}),
    "adafactor": (Adafactor, {"lr": 0.01}),
    "steady": (Steady, {"lr": 0.01}),
}


def scaled(by: Any, times: float, loss: Any) -> Any:
    return by.scale(loss * times)


def test_updates_by_pieces_are_the_optimizers_own(sim: ModuleType, both: Any) -> None:
    placed, model, alone = both
    start = copy.deepcopy(alone.state_dict())
    for kind, options in WAYS.values():
        model.load_state_dict(start)
        alone.load_state_dict(start)
        mine, same = (
            placed.optimizer(kind, groups(model), **options),
            kind(groups(alone), **options),
        )
        assert isinstance(mine, kind)
        calls: list[int] = []
        mine.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        rates = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (mine, same)]
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
            assert all(t.is_pinned() for t in kept.values() if t is not None and t.dim())
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


class Counting(SGD):
    """An optimizer that counts, and that looks at all weights, or gives up."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.meter = SimpleNamespace(steps=0)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            if group.get("all"):
                group["norm"] = sum(p.norm().item() for p in group["params"])
            if group.get("object"):
                self.meter.steps += 1
            if group.get("inner"):
                self.inner = SGD(group["params"])
            if group.get("fails") and len(group["params"]) == 1:
                raise ValueError("no more")
        return super().step(closure)


def test_options_that_an_optimizer_changes(both: Any) -> None:
    placed, model, alone = both
    mine, same = placed.optimizer(Counting, lr=0.1), Counting(alone.parameters(), lr=0.1)
    for step in range(2):
        for one, optimizer in ((model, mine), (alone, same)):
            backward(one, optimizer)
            optimizer.step()
            assert optimizer.param_groups[0]["steps"] == step + 1
    assert_alike(model, alone)
    for option, error, says in (
        (
            "all",
            InputError,
            "^Counting makes 'norm' of all weights of a group, and no piece has all",
        ),
        ("object", InputError, "^Counting changes its 'meter', which each piece would: have"),
        ("inner", InputError, "^Counting has 'inner', another optimizer, which does not know"),
        ("fails", ValueError, "no more"),
    ):
        backward(model, mine)
        mine.param_groups[0][option] = True
        with pytest.raises(error, match=says):
            mine.step()
        mine.param_groups[0][option], mine.inner = False, None
        assert all(p.device.type == "cpu" for p in model.parameters())
        assert len(mine.param_groups[0]["params"]) == len(list(model.parameters()))
    assert backward(model, mine) > 0


class Clips(SGD):
    """An optimizer that clips by the norm of all gradients that it sees."""

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


def test_what_is_no_optimizer_and_state_that_is_not_pinned(sim: ModuleType, both: Any) -> None:
    placed, model, alone = both
    with pytest.raises(InputError, match=r"^optimizer is a list, not a torch\.optim\.Optimizer$"):
        placed.optimizer(list)
    with pytest.raises(InputError, match=r"^LBFGS calls the model within its step, and no"):
        placed.optimizer(LBFGS)
    with pytest.raises(InputError, match=r"^Clips makes the update of a weight of other gradients"):
        placed.optimizer(Clips, lr=0.1)
    mine, same = placed.optimizer(AdamW, lr=0.01), AdamW(alone.parameters(), lr=0.01)
    assert placed.optimizer(lambda *_, **__: mine) is mine
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
