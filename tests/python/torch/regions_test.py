# SPDX-License-Identifier: Apache-2.0
"""Regions: what runs on one device between two transfers is one call, and computes the same."""

from __future__ import annotations

import copy
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.program import Run, parse
from baechi.torch.run import regions
from baechi.torch.run.regions import Region
from places import CLOSE, machine, rows
from step_models import module
from torch import nn


@module(lambda: {"norm": nn.LayerNorm(6), "up": nn.Linear(6, 12), "down": nn.Linear(12, 6)})
def Block(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A layer with a residual, and views of what it makes and of what it is given."""
    h = nn.functional.gelu(self.up(self.norm(x))).view(-1, 3, 4).transpose(1, 2)
    return x + self.down(h.reshape(-1, 12)) * torch.sigmoid(x)


@module(lambda: {"layers": nn.ModuleList([Block() for _ in range(3)]), "head": nn.Linear(6, 3)})
def Layers(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Blocks one behind the other, and a head."""
    for layer in self.layers:
        x = layer(x)
    return self.head(x).view(-1)


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def _trained(model: nn.Module, placed: Any = None) -> list[float]:
    """Train three steps; by `placed.step` if it takes micro-batches."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for seed in range(3):
        optimizer.zero_grad()
        if placed is not None and placed.plan.micro_batches > 1:
            loss = placed.step(rows(seed))
        else:
            loss = _loss(model(rows(seed)))
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def place(model: nn.Module, cluster: str = "3x1GiB", x: Any = None, **how: Any) -> Any:
    torch._dynamo.reset()
    given: dict[str, Any] = {"method": "random", "budget": "100ms", "loss": _loss, **how}
    return baechi.torch.place(model, rows(0) if x is None else x, cluster, **given)


def _equal(model: nn.Module, plain: nn.Module) -> None:
    for (name, a), b in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=CLOSE, rtol=CLOSE, msg=name)


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("how", [{}, {"micro_batches": 2}, {"method": "auto", "recompute": "all"}])
def test_regions_at_random_train_as_one_device(seed: int, how: dict[str, Any]) -> None:
    torch.manual_seed(seed)
    model = Layers().double()
    plain = copy.deepcopy(model)
    with machine(seed=seed):
        placed = place(model, seed=seed, compile=True, **how)
        losses = _trained(model, placed)
        assert " and " in placed.program
        placed.restore()
    assert losses == pytest.approx(_trained(plain), rel=1e-9)
    _equal(model, plain)


def test_inductor_compiles_regions_and_equal_ones_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    real = Region._compiled
    monkeypatch.setattr(regions, "_COMPILED", {})

    def counted(region: Region, *given: Any) -> Any:
        compiled.append(region)
        return real(region, *given)

    monkeypatch.setattr(Region, "_compiled", counted)
    torch.manual_seed(1)
    model = nn.Sequential(*(Block() for _ in range(4))).double()
    plain = copy.deepcopy(model)
    placed = place(torch.compile(model), "1x1GiB", devices=["cpu"], method="auto")
    losses = _trained(model)
    program = placed._backend.frames[0].programs["backward"]
    found = [one.target for one in program.code if isinstance(one, Run)]
    kinds = {type(one) for one in regions._COMPILED.values()}
    placed.restore()
    assert losses == pytest.approx(_trained(plain), rel=1e-9)
    _equal(model, plain)
    assert kinds == {regions._Checked}
    assert sum(isinstance(one, Region) for one in found) == 4
    assert len(compiled) < 8  # of eight regions: layers are equal


@module(lambda: {"weight": nn.Parameter(torch.randn(4, 3, 2))})
def Negative(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Its backward reads memory that stands for its negative, which Inductor would not see."""
    found = torch.view_as_complex(x * self.weight).conj().imag
    return (found * found).sum() * (x.sum() + self.weight.sum() * 0)


@module(lambda: {"linear": nn.Linear(24, 24)})
def Precise(self: Any, x: torch.Tensor) -> torch.Tensor:
    """It computes in full precision, whatever its caller has on."""
    with torch.autocast("cpu", enabled=False):
        x = x.view(4, -1).repeat(1, 4)
        return (self.linear(x) * 2 + x) * 3 + x


@pytest.mark.filterwarnings("ignore")  # Inductor's, of complex numbers
@pytest.mark.parametrize("kind", [Negative, Precise])
def test_regions_read_what_is_there_and_keep_the_types_of_calls(kind: type[nn.Module]) -> None:
    torch.manual_seed(1)
    model, x = kind(), torch.randn(4, 3, 2)
    plain = copy.deepcopy(model)
    placed = baechi.torch.place(model, x, "1x1GiB", devices=["cpu"], compile=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind is Precise):
        found, expected = model(x), plain(x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
    assert " more" in placed.program
    placed.restore()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, weight.grad, msg=name)


def test_the_text_of_regions_is_read_back_and_peaks_hold() -> None:
    torch.manual_seed(1)
    model = Layers().double()
    x = torch.randn(64, 6, dtype=torch.double)
    with machine(asynchronous=False):
        others = [sim.memory_allocated(i) for i in range(3)]
        placed = place(model, x=x, compile=True, optimizer=None)
        for _ in range(2):
            model.zero_grad()
            for i in range(3):
                sim.reset_peak_memory_stats(i)
            _loss(model(x)).backward()
        for program in placed._backend.frames[0].programs.values():
            assert str(parse(str(program), program.table)) == str(program)
        for i, said in enumerate(placed.peaks.values()):
            assert 0.8 * said <= sim.max_memory_allocated(i) - others[i] <= 1.03 * said
        placed.restore()


def test_an_error_in_a_region_names_it() -> None:
    @module(lambda: {"weight": nn.Parameter(torch.ones(2))})
    def Wrong(self: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return ((x * self.weight).sin() + 1).index_select(0, at) * 2

    model = Wrong()
    x, at = torch.ones(3, 2), torch.tensor([1])
    with machine(asynchronous=False) as devices:
        placed = baechi.torch.place(model, (x, at), "1x1GiB", devices=devices[:1], compile=True)
        with pytest.raises(Exception, match=r"in :.*more on sim:"):
            model(x, torch.tensor([7]))
        placed.restore()
