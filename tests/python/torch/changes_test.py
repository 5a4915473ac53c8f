# SPDX-License-Identifier: Apache-2.0
"""Views, and changes in place: of arguments, of buffers, of tensors that a forward makes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from places import doubles, machine, placed_at_random, trains_the_same
from step_models import module
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune


@module(lambda: {"first": nn.Linear(4, 4), "second": nn.Linear(4, 1)})
def Forecaster(self: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Computes its loss itself: of an argument and of what other devices made."""
    mean = x.mean(1, keepdim=True)
    y = self.second(self.first(x - mean)) + mean
    return functional.smooth_l1_loss(y, target) + functional.mse_loss(y * 2, target[:, :1])


class Grid(nn.Module):
    """Spreads two weights over a grid, and uses a view of one of them besides."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Linear(4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.rows(x).mean(0), self.columns(x).mean(0)
        one, other = torch.meshgrid(rows, columns, indexing="ij")
        high, wide = torch.broadcast_tensors(rows[:, None], columns)
        both = torch.atleast_2d(rows, columns)
        return one * other.sin() + high * wide[:2].sum() + both[0].sum() * both[1] + rows[:1]


class Spoiled(Grid):
    """Changes what it has a view of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.rows(x).mean(0), self.columns(x).mean(0)
        high, wide = torch.broadcast_tensors(rows[:, None], columns)
        result = (high + wide).detach()
        with torch.no_grad():
            columns.mul_(0.5)
        return result + high.cos() * wide


@module(lambda: {"first": nn.Linear(4, 16), "second": nn.Linear(4, 4)})
def Turned(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Hands views by attribute to operators that may be elsewhere."""
    y = torch.tanh(self.first(x))
    z = torch.view_as_complex(y.reshape(4, 4, 2, 2))
    found: torch.Tensor = self.second((z * z).real.sum(2)) + self.second((y * y).T[:4])
    return found + (z * 2j).imag.exp().sum(2) + (y * 3).data[:, :4].sin()


@module(
    lambda: {"relu": nn.ReLU(inplace=True), "first": nn.Linear(4, 4), "second": nn.Linear(4, 4)}
)
def Residual(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Begins with a module that changes the argument, and reads the argument again."""
    y = self.second(self.first(self.relu(x)))
    return y * y + x


@module(lambda: {"inner": Residual()})
def Argument(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Gives a copy of what it is called with to a model that changes it."""
    return self.inner(x.clone() if x.sum() > 1e9 else x)


class Several(nn.Module):
    """Changes buffers by operators that return nothing, or a copy from another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        for name in ("one", "two", "three"):
            self.register_buffer(name, torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.one
        with torch.no_grad():
            torch._foreach_mul_([self.one, self.two], 0.5)
            self.three.copy_(self.two)
            with torch.enable_grad():
                y = x.sin() + self.two
            self.two.add_(x.sum(0))
        self.one.copy_(self.three)
        return self.second(y + self.one) + self.two


class Precise(nn.Module):
    """Computes in full precision whatever is around it, and changes a buffer there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = (x * x).softmax(-1)
            self.seen.add_(y.detach().sum(0))
            with torch.no_grad():
                self.mean.copy_(self.seen / 2)
        return self.second(y) + self.seen


@module(
    lambda: {"first": nn.Linear(4, 4), "second": nn.Linear(4, 4), "high": nn.Buffer(torch.empty(0))}
)
def Observed(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Scales by limits that have a size once data were seen, as observers of a quantiser do."""
    found = self.first(x)
    with torch.no_grad():
        highest = found.abs().amax(0)
        if self.high.numel() == 0:
            self.high.resize_(highest.shape)
            self.high.copy_(highest / 2)
        else:
            self.high.copy_(torch.maximum(self.high, highest))
    return self.second(found / self.high)


def _pruned(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():  # what it computes at once could not be copied otherwise
        return prune.random_unstructured(layer, "weight", amount=0.5)


def pruned() -> nn.Module:
    """Return a model whose weights are computed by hooks."""
    return nn.Sequential(_pruned(nn.Linear(4, 6)), nn.Tanh(), _pruned(nn.Linear(6, 4)))


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (Forecaster, [(6, 4), (6, 1)]),
        (Grid, [(6, 4)]),
        (Spoiled, [(6, 4)]),
        (Residual, [(6, 4)]),
        (Argument, [(6, 4)]),
        (Several, [(6, 4)]),
        pytest.param(Precise, [(6, 4)], marks=pytest.mark.repeats),
        (Observed, [(6, 4)]),
        (pruned, [(5, 4)]),
    ],
)
def test_what_is_shown_and_changed_trains_as_on_one_device(build: Any, shapes: Any) -> None:
    torch.manual_seed(3)
    trains_the_same(build().double(), doubles(*shapes))


def test_views_by_attribute() -> None:
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 16, dtype=torch.double).reshape(4, 4)
    trains_the_same(Turned().double(), x, seeds=(1, 2))


def masked(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, value: torch.Tensor) -> None:
    pos[:, i, mask[i].bool()] = value.to(pos.device) + 1


def sliced(_: Any, pos: torch.Tensor, i: int, __: torch.Tensor, value: torch.Tensor) -> None:
    pos[:, i, : value.shape[-1]] = value


def filled(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    pos[:, i].masked_fill_(mask[i].bool() & (mask[i] * 2 > 0), 3)


def added(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    pos[:, i] += mask[i] * 2


def into(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    torch.add(pos[:, i], mask[i] * 2, out=pos[:, i])


def listed(_: Any, pos: torch.Tensor, i: int, mask: torch.Tensor, __: torch.Tensor) -> None:
    torch._foreach_add_([pos[:, i]], [(mask[i] * 2).expand(3, -1)])


class Positions(nn.Module):
    """Fills a tensor that it makes where its arguments are, as Qwen2-VL does."""

    def __init__(self, fill: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(64, 8), nn.Embedding(64, 8)
        self.out, self.fill = nn.Linear(8, 8), fill

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        pos = torch.zeros(3, *ids.shape, dtype=torch.long, device=ids.device)
        for i in range(ids.shape[0]):
            n = int(mask[i].sum().item())
            self.fill(self, pos, i, mask, torch.arange(n, device=ids.device).expand(3, -1))
        return self.out(self.words(ids) + self.places(pos).sum(0))


@pytest.mark.repeats
@pytest.mark.parametrize("fill", [masked, sliced, filled, added, into, listed])
def test_a_tensor_made_where_the_arguments_are(fill: Any) -> None:
    torch.manual_seed(3)
    inputs = (torch.randint(0, 60, (2, 5)), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    trains_the_same(Positions(fill).double(), inputs)


class Counted(nn.Module):
    """Counts its calls in one buffer, and keeps in another what it returns, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        total = self.total + x.detach().sum()
        self.total.copy_(total)
        return self.layer(x) * self.calls, total


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_buffer_that_is_added_to_stays_the_same_tensor(context: Any) -> None:
    model = Counted().double()
    plain = copy.deepcopy(model)
    with machine():
        placed = placed_at_random(model, torch.ones(3, 4).double())
        calls = model.calls
        for count in (1, 2, 3):
            with context():
                x = torch.full((3, 4), float(count), dtype=torch.double)
                (expected, _), (found, total) = plain(x), model(x.to("sim:0"))
                torch.testing.assert_close(found.cpu(), expected)
                total.zero_()  # no buffer
            assert model.calls is calls
            assert float(calls) == count
        assert placed.left_out == []
        placed.restore()
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, msg=name)
