# SPDX-License-Identifier: Apache-2.0
"""Functions that keep what they return keep values, whatever a model is recorded or traced by."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.trace.exported import export
from baechi.torch.trace.graph import NotExportedError
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


@functools.lru_cache
def table(size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(size, device=device) / 3


@functools.cache
def unnamed_device(size: int) -> torch.Tensor:
    return torch.arange(size) / 3


@functools.cache
def drawn(size: int) -> torch.Tensor:
    return torch.rand(size)


def asked(size: int) -> torch.Tensor:
    if unnamed_device.cache_info().currsize > 10:
        unnamed_device.cache_clear()
    return unnamed_device(size)


class Tabled(nn.Module):
    """Two layers, and between them what a function with a cache returns."""

    def __init__(self, special: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.special = special

    @functools.cache  # noqa: B019
    def scaled(self, size: int) -> torch.Tensor:
        """Return a table of this model's."""
        return torch.arange(size) * 0.5

    @functools.cache  # noqa: B019
    def norm(self) -> torch.Tensor:
        """Return what is made of a weight."""
        return self.first.weight.detach().norm()

    @staticmethod
    @functools.cache
    def static(size: int) -> torch.Tensor:
        """Return a table."""
        return torch.arange(size) * 0.75

    @classmethod
    @functools.cache
    def of_class(cls, size: int) -> torch.Tensor:
        """Return a table of the class's."""
        return torch.arange(size) * 1.5

    @property
    @functools.cache  # noqa: B019
    def four(self) -> torch.Tensor:
        """A table that is an attribute."""
        return torch.arange(4) * 2.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what is kept."""
        return self.second(self.special(self, self.first(x)))


def closure() -> Callable[[Any, torch.Tensor], torch.Tensor]:
    @functools.cache
    def inner(size: int) -> torch.Tensor:
        return torch.arange(size) * 0.25

    return lambda _, x: x + inner(x.shape[1])


KEPT: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "a function": lambda _, x: x + table(x.shape[1], x.device),
    "without a device": lambda _, x: x + unnamed_device(x.shape[1]),
    "a method": lambda m, x: x + m.scaled(x.shape[1]),
    "a closure": closure(),
    "a static method": lambda m, x: x + m.static(x.shape[1]),
    "a class method": lambda m, x: x + m.of_class(x.shape[1]),
    "a property": lambda m, x: x + m.four,
    "asked about its cache": lambda _, x: x + asked(x.shape[1]),
}


@pytest.fixture(autouse=True)
def _empty() -> None:
    of_methods = (
        Tabled.scaled,
        Tabled.norm,
        Tabled.static,
        Tabled.of_class,
        vars(Tabled)["four"].fget,
    )
    for cache in (table, unnamed_device, drawn, *of_methods):
        cache.cache_clear()


@pytest.mark.parametrize("what", KEPT)
def test_a_graph_has_what_a_function_keeps_and_leaves_values(what: str) -> None:
    model = Tabled(KEPT[what])
    export(model, X)
    found = model(X)
    assert type(found) is torch.Tensor
    placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2, tier=2)
    torch.testing.assert_close(model(X), found)
    assert placed.tier == 2
    placed.restore()
    torch.testing.assert_close(model(X), found)


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("meta", [False, True])
def test_what_only_has_shapes_is_not_kept(what: str, meta: bool) -> None:
    model = Tabled(KEPT[what])
    if meta:
        with torch.device("meta"):
            baechi.torch.capture(Tabled(KEPT[what]), torch.empty(2, 4, device="meta"))
        assert table.cache_info().currsize == 0
        assert Tabled.scaled.cache_info().currsize == 0
    else:
        baechi.torch.capture(model, X, abstract=True)
    assert model(X).sum().isfinite()


@pytest.mark.parametrize(
    ("special", "why"),
    [
        (lambda _, x: x * drawn(x.shape[1]), "drawn keeps random numbers in a cache"),
        (lambda m, x: x * m.norm(), "Tabled.norm keeps what it computes from weights in a cache"),
    ],
)
def test_what_a_graph_would_compute_anew_has_none(special: Any, why: str) -> None:
    model = Tabled(special)
    with pytest.raises(NotExportedError, match=why):
        export(model, X)
    first = model(X)
    assert torch.equal(model(X), first)
    placed = baechi.torch.place(model, X, "2x1GiB", devices=["cpu"] * 2)
    assert placed.tier == 1
    assert torch.equal(model(X), first)
    placed.restore()


def test_what_a_default_device_makes_is_not_kept_elsewhere() -> None:
    pytest.importorskip("baechi.torch.sim")
    model = Tabled(KEPT["without a device"])
    torch.set_default_device("sim:0")
    try:
        with pytest.raises(NotExportedError, match="unnamed_device keeps what it makes on the def"):
            export(model, X)
    finally:
        torch.set_default_device(None)
    assert unnamed_device.cache_info().currsize == 0
    assert unnamed_device(4).device.type == "cpu"
