# SPDX-License-Identifier: Apache-2.0
"""Where no gradient comes back, none goes over to other devices: optimizers tell it from zeros."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.run import communication
from random_placement import placed_at_random, simulated
from torch import nn

from models.bank.elsewhere import WIDTH, Rounded

sim: Any = pytest.importorskip("baechi.torch.sim")


def rounded() -> nn.Module:
    torch.manual_seed(7)
    return Rounded().double()


def trained(model: nn.Module) -> dict[str, torch.Tensor | None]:
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH).double()).square().sum().backward()
        optimizer.step()
    return {n: p.grad if p.grad is None else p.detach().cpu() for n, p in model.named_parameters()}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("devices", [simulated(4), ["sim:0", "sim:0", "sim:1"], ["cpu"] * 3])
def test_weights_without_a_gradient_stay_without(
    devices: list[str], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(communication, "native_transfer", lambda: None)
    expected = trained(rounded())
    assert [n for n, value in expected.items() if value is None] == [
        f"{layer}.{what}" for layer in ("before", "rounded") for what in ("weight", "bias")
    ]
    for seed in range(4):
        with sim.configured(devices=4, asynchronous=True, seed=seed):
            model = rounded()
            placed_at_random(model, torch.ones(2, WIDTH).double(), devices, seed=seed, tier=1)
            found = trained(model)
        for name, value in expected.items():
            if value is None:
                assert found[name] is None, (seed, name)
            else:
                torch.testing.assert_close(found[name], value)


def _bent(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.cos()


class Bent(nn.Module):
    """Calls a function that `torch.compile` returned, between its layers."""

    def __init__(self, bend: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.bend = bend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.bend(layer(x))
        return x


def test_compiled_functions_of_a_forward_run_as_planned() -> None:
    """PyTorch's compiler must not look into our waiting, which it takes for nothing."""
    torch.manual_seed(7)
    model = Bent(_bent).double()
    x = torch.ones(2, WIDTH).double()
    expected = model(x).detach()
    model.bend = torch.compile(_bent, backend="eager")
    before = torch._dynamo.utils.counters["stats"]["calls_captured"]
    for seed in range(4):
        how: dict[str, Any] = {"poison": True, "longest_delay": "300us", "seed": seed}
        with sim.configured(devices=4, asynchronous=True, **how):
            placed = placed_at_random(model, x, simulated(4), seed=seed, tier=1)
            torch.testing.assert_close(model(x).detach(), expected)
            assert not placed.unplanned
            placed.restore()
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] == before
