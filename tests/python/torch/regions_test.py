# SPDX-License-Identifier: Apache-2.0
"""Regions and replays: what runs on one device between two transfers is one call.

It computes the same, and so does what a device captured behind a first run.
"""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.program import Run, parse
from baechi.torch.run import regions
from baechi.torch.run.regions import Region, Replay
from places import CLOSE, machine, rows
from step_models import module
from torch import fx, nn


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
    left = [one for one in regions._COMPILED.values() if isinstance(one, fx.GraphModule)]
    placed.restore()
    assert losses == pytest.approx(_trained(plain), rel=1e-9)
    _equal(model, plain)
    assert regions._COMPILED
    assert not left  # to run call by call
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


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What became of each capture, and how many of its inputs it copies."""
    found: list[tuple[bool, int]] = []
    real = Replay._captured

    def noted(self: Replay, *given: Any) -> bool:
        found.append((real(self, *given), sum(self._is_own)))
        return found[-1][0]

    monkeypatch.setattr(Replay, "_captured", noted)
    return found


@pytest.fixture
def models() -> Iterator[tuple[nn.Module, nn.Module]]:
    torch.manual_seed(0)
    model = Layers().double()
    with machine():
        yield model, copy.deepcopy(model)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"seed": 2, "micro_batches": 2},
        {"seed": 3, "micro_batches": 1, "compile": True},
        {"method": "auto", "recompute": "all"},
        {"method": "auto", "cluster": "1x6KiB+1xhost:1GiB", "micro_batches": 2},
    ],
)
def test_replayed_steps_train_as_one_device(
    models: tuple[nn.Module, nn.Module], captured: list[tuple[bool, int]], how: dict[str, Any]
) -> None:
    model, plain = models
    before = held()
    placed = place(model, replay=True, **how)
    losses = [*_trained(model, placed), *_trained(model, placed)]
    assert " and " in placed.program
    assert len(captured) > 1
    assert all(done for done, _ in captured)
    placed.restore()
    assert losses == pytest.approx([*_trained(plain), *_trained(plain)], rel=1e-9)
    _equal(model, plain)
    assert held() == before


def held() -> list[int]:
    gc.collect()
    torch.accelerator.synchronize()
    return [sim.memory_allocated(i) for i in range(3)]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a.detach().cpu(), b.detach().cpu(), rtol=CLOSE, atol=CLOSE)


def test_what_a_call_returned_and_kept_outlives_later_replays(
    models: tuple[nn.Module, nn.Module],
) -> None:
    model, plain = models
    place(model, replay=True)
    for _ in range(3):
        one, other, known, same = model(rows(1)), model(rows(2)), plain(rows(1)), plain(rows(2))
        (one.square().sum() + 2 * other.sum()).backward()
        (known.square().sum() + 2 * same.sum()).backward()
        assert close(one, known)
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        assert all(close(a.grad, b.grad) for a, b in pairs if a.grad is not None)


def test_a_replay_reads_weights_and_batches_as_they_are_now(
    models: tuple[nn.Module, nn.Module],
) -> None:
    """And writes to no batch; from several threads, too."""
    model, plain = models
    place(model, replay=True)
    batches = [rows(i).to("sim:0") for i in range(4)]
    before = [batch.clone() for batch in batches]
    with torch.no_grad():
        for i in (0, 0, 0, 1, 0, 2):
            assert close(model(batches[i]), plain(rows(i)))
        for weight in model.parameters():
            weight.data = weight.data.clone()
        for weight in (*model.parameters(), *plain.parameters()):
            weight.mul_(1.5)
        assert close(model(batches[3]), plain(rows(3)))
        found: list[tuple[int, torch.Tensor]] = []

        def run(first: int) -> None:
            with torch.no_grad():
                found.extend((i % 4, model(batches[i % 4])) for i in range(first, first + 6))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 18
        assert all(close(output, plain(rows(i))) for i, output in found)
    assert all(map(torch.equal, batches, before))


def test_weights_are_read_where_they_lie(
    models: tuple[nn.Module, nn.Module], captured: list[tuple[bool, int]]
) -> None:
    """Also where a batch, which lay in one place twice, comes to lie elsewhere."""
    model, plain = models
    placed = place(model, "1x1GiB", replay=True)
    batches = [rows(i).to("sim:0") for i in range(3)]
    with torch.no_grad():
        for i in (0, 0, 0, 1, 2):
            assert close(model(batches[i]), plain(rows(i)))
    assert captured == [(True, 0), (True, 1)]
    placed.restore()


def test_a_replayed_step_costs_the_host_less_than_half() -> None:
    clock: dict[str, Any] = {"asynchronous": False, "clock": "virtual", "host_call": "10us"}
    taken = []
    for replay in (False, True):
        with sim.configured(devices=1, memory="1GiB", **clock):
            model = Layers().double()
            placed = place(model, "1x1GiB", replay=replay, micro_batches=2)
            for _ in range(4):
                model.zero_grad()
                torch.accelerator.synchronize()
                sim.reset_virtual_clock()
                placed.step(rows(1).to("sim:0"))
            taken.append(sim.virtual_host_time())
            placed.restore()
    assert taken[1] < taken[0] / 2


def test_what_cannot_be_captured_runs_call_by_call(
    models: tuple[nn.Module, nn.Module],
    captured: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("the device cannot capture")

    monkeypatch.setattr(torch.accelerator.Graph, "__enter__", fails)
    model, plain = models
    placed = place(model, replay=True, micro_batches=1)
    losses = _trained(model, placed)
    assert captured
    assert not any(done for done, _ in captured)
    assert losses == pytest.approx(_trained(plain), rel=1e-9)
