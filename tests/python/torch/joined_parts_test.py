# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches ask as one for what a device runs one behind the other."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import baechi.torch
import baechi.torch.sim as simulated
import pytest
import torch
from baechi.torch.base.mini_batch import cut
from baechi.torch.run import host_time
from baechi.torch.run.step_order import Phase
from baechi.torch.run.step_program import StepProgram
from micro_batch_steps_test import in_turn, trained
from same_training import EXCLUSIVE, SHARED, check_same
from torch import nn

import baechi

M = 4


class Layer(nn.Module):
    """A layer of a Transformer: skips, a view, sizes that are looked at, and four products."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(8), nn.LayerNorm(8)
        self.three, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = x.shape
        q, k, v = self.three(self.before(x)).view(samples, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Embedded(nn.Module):
    """Layers behind a weight that is added to as a view of it, and one that is read again."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tokens, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8))
        self.layers = nn.Sequential(*(Layer() for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.tokens(x) + self.places.unsqueeze(0))
        return x @ self.tokens.weight.T


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.fixture
def batch() -> torch.Tensor:
    """A mini-batch with one sample for each micro-batch, so that nothing is summed over samples."""
    return torch.randint(0, 11, (M, 5), generator=torch.Generator().manual_seed(0))


def placed_by(method: str, model: nn.Module, batch: Any, devices: list[str]) -> Any:
    return baechi.torch.place(
        model,
        batch,
        baechi.Cluster(f"{len(devices)}x1GiB", link="5us,10GB/s"),
        devices=devices,
        micro_batches=M,
        loss=loss_of,
        optimizer="sgd",
        bounds=False,
        method=method,
    )


def program_of(placed: Any, batch: Any) -> StepProgram:
    program: StepProgram = placed._stepper.program(cut(batch, M))[0]
    return program


def test_one_device_is_asked_once_for_each_pass_of_a_micro_batch(batch: torch.Tensor) -> None:
    model = Embedded().double()
    other = copy.deepcopy(model)
    placed = placed_by("auto", model, batch, ["cpu"])
    program = program_of(placed, batch)
    on_device = [s.index for s in program.segments if s.device is not None and not s.only_looks]
    assert len(on_device) == 1
    phases = Counter(part.phase for part in program.order if part.segment in on_device)
    assert phases[Phase.FORWARD] == phases[Phase.BACKWARD] == M
    assert not phases[Phase.BY_WEIGHTS]
    for _ in range(2):  # the second adds to the gradients of the first
        loss = placed.step(batch)
        assert loss == in_turn(other, batch, M, loss_of)
    for (name, mine), wanted in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=0, atol=0, msg=name)
    placed.restore()


@pytest.mark.parametrize("devices", [EXCLUSIVE, SHARED], ids=["exclusive", "shared"])
@pytest.mark.parametrize("method", ["1f1b-divided", "gpipe-divided", "zb-h1-divided", "pipeline"])
def test_stages_train_as_one_device(method: str, devices: list[str], batch: torch.Tensor) -> None:
    """On devices that work on their own, over links that are slow at random."""
    model = Embedded(6).double()
    other = copy.deepcopy(model)
    expected = trained(other, lambda: in_turn(other, batch, M, loss_of))
    delays = {"longest_delay": "100us", "seed": 3}
    with simulated.configured(devices=4, poison=True, memory="1GiB", **delays):
        placed = placed_by(method, model, batch, devices)
        program = program_of(placed, batch)
        known = {o for s in program.segments for o in s.operators}
        assert max(len(s.operators) for s in program.segments) > len(known) / 12
        found = trained(model, lambda: placed.step(batch))
        placed.restore()
    check_same(expected, found, method, rounding=1e-7)


def test_a_gradient_of_a_weight_is_no_part_of_another() -> None:
    """Autograd gives a weight a view of what a value gets, too, when nobody else holds the view."""

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.added = nn.Parameter(torch.zeros(5, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.second(torch.tanh(self.first(x)) + self.added.unsqueeze(0)))

    torch.manual_seed(2)
    x = torch.randn(M, 5, 8, dtype=torch.double)
    model = Added().double()
    other = copy.deepcopy(model)
    delays = {"longest_delay": "300us", "seed": 4}
    with simulated.configured(devices=4, poison=True, memory="1GiB", **delays):
        for seed in range(6):
            mine = copy.deepcopy(model)
            placed = baechi.torch.place(
                mine,
                x,
                "3x1GiB",
                devices=EXCLUSIVE,
                micro_batches=M,
                loss=loss_of,
                method="random",
                seed=seed,
                bounds=False,
            )
            placed.step(x)
            holders = Counter(p.grad.untyped_storage().data_ptr() for p in mine.parameters())
            assert max(holders.values()) == 1
            found = {name: p.grad.cpu() for name, p in mine.named_parameters()}
            placed.restore()
            if seed == 0:
                in_turn(other, x, M, loss_of)
            for name, wanted in other.named_parameters():
                torch.testing.assert_close(
                    found[name], wanted.grad, rtol=1e-11, atol=1e-15, msg=f"{name}, {seed}"
                )


def test_backwards_are_in_two_where_devices_take_longer_than_the_host(
    batch: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two is asked for by itself, which a kernel has to outlast."""
    cluster = baechi.Cluster("2x1GiB", link="5us,10GB/s")
    how: dict[str, Any] = {"micro_batches": M, "loss": loss_of, "bounds": False}

    def in_two() -> bool:
        plan = baechi.torch.plan(Embedded(6), batch, cluster, **how)
        return any(name.endswith("weight_gradient") for name in plan.micro_batch_graph.names)

    assert not in_two()
    monkeypatch.setattr(host_time, "PER_OPERATOR", 0)
    monkeypatch.setattr(host_time, "PER_PART", 0)
    assert in_two()


def test_the_host_takes_as_long_as_there_are_parts(batch: torch.Tensor) -> None:
    """Its estimate counts the parts that a step really has, but for those of views and looks."""
    for method in ("auto", "1f1b-divided", "zb-h1-divided"):
        placed = placed_by(method, Embedded(6), batch, ["cpu"] * 2)
        program = program_of(placed, batch)
        planned = {s.index for s in program.segments if s.operators}
        passes = (Phase.FORWARD, Phase.BACKWARD, Phase.BY_WEIGHTS)
        parts = sum(p.phase in passes and p.segment in planned for p in program.order)
        found = host_time.host_time(placed._stepper._planned).parts / host_time.PER_PART
        assert abs(found - parts) <= 0.3 * parts + 4 * M, method
        placed.restore()
