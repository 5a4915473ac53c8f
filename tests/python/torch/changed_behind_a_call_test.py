# SPDX-License-Identifier: Apache-2.0
"""What is on its way to another device arrives as it was when the model's call had returned."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.run import reads
from busy_links import both_tiers, goes_wrong, keep_busy, machine, placed
from torch import nn

sim: Any = pytest.importorskip("baechi.torch.sim")

__all__ = ["machine"]  # a fixture that all tests here use


class Kept(nn.Module):
    """Reads on both devices what it keeps on the first one; may change it before that."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.reader = nn.Tanh()
        kept = torch.ones(8, dtype=torch.float64)
        if what == "buffer":
            self.register_buffer("kept", kept)
        elif what == "weight":
            self.kept = nn.Parameter(kept)
        else:
            self.kept = kept.to("sim:0")  # an attribute that goes nowhere
        self.changes = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.changes:
            self.kept.zero_()
        return x * self.kept, self.reader(self.kept[:4])


class Filling(nn.Module):
    """Changes what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.zero_()


class Filled(nn.Module):
    """Has a tensor changed abroad that a third device reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.filling, self.made = nn.Tanh(), Filling(), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.made(x)
        read: torch.Tensor = self.reader(x)
        self.filling(x)
        return read


class Returned(nn.Module):
    """Returns what the other device reads, which keeps what it made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.reader = nn.Linear(8, 8).double(), nn.Tanh()
        nn.init.ones_(self.first.weight)
        nn.init.ones_(self.first.bias)
        self.register_buffer("read", torch.zeros(8, 8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        self.read.copy_(self.reader(x.detach()))
        return x


class Normed(nn.Module):
    """The other device reads what a module then changes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.norm = nn.Tanh(), nn.BatchNorm1d(8, affine=False).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm(x)
        read: torch.Tensor = self.reader(self.norm.running_mean)
        self.norm(x)
        return read


def with_reader_abroad(
    model: nn.Module, tier: int, *more: str, home: str = "sim:0"
) -> tuple[Any, torch.Tensor]:
    """Have `reader` and more on the second device; return what to call the model with."""
    x = torch.ones(8, 8, dtype=torch.float64, device="sim:0")
    trained = any(p.requires_grad for p in model.parameters())
    place = placed(model.to("sim:0"), tier, x, trained, d1=("reader", *more))
    return place, x.to(home)


def calls_late(place: Any, x: torch.Tensor) -> Any:
    """Return what the model returns, while what its second device reads is on its way."""
    place.model(x)  # makes the graph
    keep_busy(place, 0, 1)
    return place.model(x)


KEPT = [("buffer", 1), ("buffer", 2), ("weight", 1), ("weight", 2), ("attribute", 1)]


@pytest.mark.parametrize(("what", "tier"), KEPT)
def test_what_a_model_keeps_is_changed_behind_the_call(what: str, tier: int) -> None:
    place, x = with_reader_abroad(Kept(what), tier, home="sim:1")
    with torch.no_grad():
        _, read = calls_late(place, x)
        place.model.kept.zero_()
    torch.testing.assert_close(read.cpu(), torch.ones(4).double().tanh())
    place.restore()


@pytest.mark.filterwarnings("ignore:Kept ran 'zero_@0', which was not in the recorded step")
@pytest.mark.parametrize(("what", "tier"), KEPT)
def test_what_a_model_keeps_is_changed_by_the_next_call(what: str, tier: int) -> None:
    place, x = with_reader_abroad(Kept(what), tier, home="sim:1")
    with torch.no_grad():
        _, read = calls_late(place, x)
        place.model.changes = True
        place.model(x)
    torch.testing.assert_close(read.cpu(), torch.ones(4).double().tanh())
    place.restore()


@both_tiers
def test_a_module_changes_its_own_buffer(tier: int) -> None:
    place, x = with_reader_abroad(Normed(), tier, home="sim:1")
    with torch.no_grad():
        read = calls_late(place, x)
    torch.testing.assert_close(read.cpu(), torch.full((8,), 1 - 0.9**3).double().tanh())
    place.restore()


def test_a_module_abroad_changes_its_argument() -> None:
    x = torch.ones(8, 8, dtype=torch.float64, device="sim:1")
    place = placed(Filled(), 1, x.cpu(), training=False, d1=("reader",), d2=("filling",))
    with torch.no_grad():
        read = calls_late(place, x)
    torch.testing.assert_close(read.cpu(), torch.ones(8, 8).double().tanh())
    place.restore()


@both_tiers
@pytest.mark.parametrize("training", [True, False])
def test_the_caller_changes_what_was_returned(training: bool, tier: int) -> None:
    place, x = with_reader_abroad(Returned(), tier, "copy_@1")
    with torch.set_grad_enabled(training):
        calls_late(place, x).detach().zero_()
    sim.synchronize(1)
    torch.testing.assert_close(place.model.read.cpu(), torch.full((8, 8), 9.0).double().tanh())
    assert place.tier == tier
    place.restore()


def test_a_call_that_waits_for_nothing_at_its_end_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads.Reads, "settle", lambda *_: None)
    assert goes_wrong(lambda: test_the_caller_changes_what_was_returned(True, 2))
    assert goes_wrong(lambda: test_what_a_model_keeps_is_changed_behind_the_call("attribute", 1))
