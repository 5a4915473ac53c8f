# SPDX-License-Identifier: Apache-2.0
"""What training scripts do around a model goes on working when it is placed."""

from __future__ import annotations

import copy
import io
import threading
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import pytest
import torch
from places import (
    CLOSE,
    Branches,
    loss_like,
    machine,
    placed_at_random,
    rows,
    same,
    trained,
)
from step_models import module
from torch import nn


def fresh() -> Any:
    torch.manual_seed(7)
    return Branches().double()


def called(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return loss_like(model(x))


@pytest.mark.parametrize("stance", ["default", "force_eager"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation(context: Any, stance: Any) -> None:
    plain, model = fresh().eval(), fresh()
    with machine(), torch.compiler.set_stance(stance):
        placed_at_random(model, rows(1))
        model.eval()
        with context():
            found = model(rows(2))
        assert not found.requires_grad
        torch.testing.assert_close(found.cpu(), plain(rows(2)).detach())


def test_a_checkpoint_of_the_placed_model_loads_into_the_plain_one_and_back() -> None:
    model, plain = fresh(), fresh()
    with machine():
        placed_at_random(model, rows(1))
        trained(model, [rows(1)] * 2, called)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        plain.load_state_dict(torch.load(file, map_location="cpu"))
        torch.testing.assert_close(called(plain, rows(2)), called(model, rows(2)).cpu())
        model.load_state_dict(fresh().state_dict())
        torch.testing.assert_close(called(fresh(), rows(2)), called(model, rows(2)).cpu())


def test_autocast_and_gradient_scaling() -> None:
    def steps(model: nn.Module, x: torch.Tensor) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("sim")
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("sim", dtype=torch.bfloat16):
                loss = called(model, x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    with machine(asynchronous=False):
        model, x = fresh().float(), rows(1).float()
        expected = steps(copy.deepcopy(model).to("sim:0"), x.to("sim:0"))
        placed_at_random(model, x)
        assert steps(model, x.to("sim:0")) == pytest.approx(expected, rel=1e-2)


def test_weights_that_are_placed_in_inference_mode_are_trained_later() -> None:
    plain, model = fresh(), fresh()
    expected = trained(plain, [rows(1)] * 2, called)
    with machine():
        with torch.inference_mode():
            placed_at_random(model, rows(1))
        assert same(expected, trained(model, [rows(1)] * 2, called)) == ""


class Lookup(nn.Module):
    """Embeddings with sparse gradients, one of them read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, sparse=True)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.words(x).mean(1)) + self.words(x).sin().sum(1))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_sparse_gradients(asynchronous: bool) -> None:
    torch.manual_seed(3)
    plain, x = Lookup().double(), torch.randint(0, 20, (5, 3))
    model = copy.deepcopy(plain)
    called(plain, x).backward()
    with machine(asynchronous=asynchronous):
        placed = placed_at_random(model, x, 2)
        called(model, x).backward()
        placed.restore()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.to_dense(), theirs.grad.to_dense())


@module(lambda: {"inner": Branches(), "calls": nn.Buffer(torch.ones((), dtype=torch.double))})
def Counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Changes its batch, and a buffer that it reads."""
    self.calls += 1
    x.mul_(0.5)
    return self.inner(x) * self.calls


def test_a_step_is_verified_whatever_it_changes() -> None:
    torch.manual_seed(7)
    model, x = Counting().double(), rows(1)
    with machine(asynchronous=False):
        placed = placed_at_random(model, x)
        batch = x.to("sim:0")
        assert placed.verify(batch, loss=loss_like)
        assert model.calls == 1
        torch.testing.assert_close(batch.cpu(), x)


def test_a_cluster_of_a_cpu_and_an_accelerator_runs_the_kernels_of_each() -> None:
    torch.manual_seed(7)
    model: nn.Module = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()
    x = torch.randn(2, 3, 8).double()
    expected = trained(copy.deepcopy(model), [x] * 2, called)
    with sim.configured(devices=1, memory="1GiB"):
        placed = baechi.torch.place(
            model, x, "1xcpu:1GiB+1xgpu:1GiB", method="random", seed=3, bounds=False
        )
        assert len(set(placed.weight_devices.values())) == 2
        found = trained(model, [x] * 2, called)
        placed.restore()
    assert same(expected, found, CLOSE) == ""


@pytest.mark.parametrize("stance", ["default", "force_eager"])
def test_threads_that_share_a_placed_model(stance: Any) -> None:
    plain, model = fresh().eval(), fresh().eval()
    wrong: list[int] = []
    with machine():
        placed_at_random(model, rows(1))

        def call(number: int) -> None:
            with torch.no_grad():
                found = model(rows(number)).cpu()
                if not torch.allclose(found, plain(rows(number))):
                    wrong.append(number)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        with torch.compiler.set_stance(stance):  # of all threads
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert wrong == []


def test_what_was_compiled_before_or_is_compiled_around_it_runs() -> None:
    plain, model = fresh(), fresh()
    model.a = torch.compile(model.a, backend="eager")
    with machine():
        placed_at_random(model, rows(1))
        outer = torch.compile(model, backend="eager")
        torch.testing.assert_close(called(outer, rows(2)).cpu(), called(plain, rows(2)))
