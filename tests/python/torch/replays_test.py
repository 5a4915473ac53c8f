# SPDX-License-Identifier: Apache-2.0
"""Replays: what a device captured behind a first run computes what its calls would."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import baechi.torch.sim as sim
import torch
from baechi.torch.run.replays import Replay
from places import CLOSE, machine, rows
from regions_test import Layers, _equal, _loss, _trained
from torch import nn

from baechi import InputError


def place(model: nn.Module, cluster: str = "3x1GiB", **how: Any) -> Any:
    torch._dynamo.reset()
    given: dict[str, Any] = {"method": "random", "replay": True, "budget": "100ms", **how}
    return baechi.torch.place(model, rows(0), cluster, loss=_loss, **given)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What became of each capture."""
    found: list[bool] = []
    real = Replay._captured

    def noted(self: Replay, *given: Any) -> bool:
        found.append(real(self, *given))
        return found[-1]

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
    models: tuple[nn.Module, nn.Module], captured: list[bool], how: dict[str, Any]
) -> None:
    model, plain = models
    placed = place(model, **how)
    losses = [*_trained(model, placed), *_trained(model, placed)]
    assert " and " in placed.program
    assert len(captured) > 1
    assert all(captured)
    placed.restore()
    assert losses == pytest.approx([*_trained(plain), *_trained(plain)], rel=1e-9)
    _equal(model, plain)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a.detach().cpu(), b.detach().cpu(), rtol=CLOSE, atol=CLOSE)


def test_what_a_call_returned_and_kept_outlives_later_replays(
    models: tuple[nn.Module, nn.Module],
) -> None:
    model, plain = models
    place(model)
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
    place(model)
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
    models: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a batch, which lay in one place twice, comes to lie elsewhere."""
    copied: list[int] = []
    real = Replay._captured

    def noted(self: Replay, *given: Any) -> bool:
        found = real(self, *given)
        copied.append(sum(self._is_own))
        return found

    monkeypatch.setattr(Replay, "_captured", noted)
    model, plain = models
    placed = place(model, "1x1GiB")
    batches = [rows(i).to("sim:0") for i in range(3)]
    with torch.no_grad():
        for i in (0, 0, 0, 1, 2):
            assert close(model(batches[i]), plain(rows(i)))
    assert copied == [0, 1]
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
    models: tuple[nn.Module, nn.Module], captured: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("the device cannot capture")

    monkeypatch.setattr(torch.accelerator.Graph, "__enter__", fails)
    model, plain = models
    placed = place(model, micro_batches=1)
    losses = _trained(model, placed)
    assert captured
    assert not any(captured)
    assert losses == pytest.approx(_trained(plain), rel=1e-9)


def test_a_replay_is_asked_for_by_yes_or_no() -> None:
    with pytest.raises(InputError, match="replay: expected True or False, found str 'often'"):
        place(Layers(), replay="often")
