# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.func, derivatives in a forward, and functions that no function mode sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import (
    doubles,
    machine,
    placed,
    placed_at_random,
    trains_the_same,
)
from step_models import module
from torch import nn


def rows(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(m.inner)(h) + other


def pairs(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda row, scale: (m.inner(row) * scale).cos())(h, other)


def closed(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    first = other[0] * 2
    return torch.func.vmap(lambda row: (m.inner(row) * first).cos())(h)


def changed(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = m.inner(row) * scale
        found[:2].add_(row[:2])
        return found.mul_(1.5).cos()

    return torch.func.vmap(one)(h, other)


def gradient(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda rows: (m.inner(rows).sin() * other).sum())(h)


def pulled_back(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    values, pull = torch.func.vjp(lambda rows: m.inner(rows).sin(), h)
    found: torch.Tensor = pull(other)[0]
    return found + values


def jacobians(m: Any, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(torch.func.jacrev(lambda row: m.inner(row).sin()))(h).sum(1) + other


class Mapping(nn.Module):
    """Maps a part over the rows of what another part made."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.first, self.inner, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.last(self.how(self, h, self.last(h).sin()))


@pytest.mark.parametrize("how", [rows, pairs, closed, changed, pulled_back])
def test_functions_of_torch_func(how: Any) -> None:
    torch.manual_seed(3)
    trains_the_same(Mapping(how).double(), doubles((4, 8)))


def test_transforms_of_a_placed_model() -> None:
    torch.manual_seed(3)
    model, (x,) = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).double(), doubles((4, 8))
    expected = torch.func.vjp(model, x)[1](x), torch.func.jvp(model, (x,), (x,))[1]
    with machine() as devices, placed(model, devices, 2):
        there = x.to(devices[0])
        found = torch.func.vjp(model, there)[1](there), torch.func.jvp(model, (there,), (there,))[1]
        torch.testing.assert_close(
            [part.cpu() for part in (*found[0], found[1])], [*expected[0], expected[1]]
        )


@pytest.mark.parametrize("how", [gradient, jacobians])
def test_derivatives_by_torch_func_over_several_devices_end_in_an_error(how: Any) -> None:
    """It is PyTorch's: its backward cannot say to an allocator who reads what stands for others."""
    torch.manual_seed(3)
    with pytest.raises(NotImplementedError, match="Cannot access storage of"):
        trains_the_same(Mapping(how).double(), doubles((4, 8)))


@module(lambda: {"net": nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 12))})
def Adapted(self: Any, places: torch.Tensor) -> torch.Tensor:
    """MAML of first order: two inner steps on weights of its own, whose slopes are constants."""
    weights = dict(self.net.named_parameters())
    for _ in range(2):
        out = torch.func.functional_call(self.net, weights, (places,))
        inner = (out - places).square().mean()
        slopes = torch.autograd.grad(inner, list(weights.values()))
        weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
    return torch.func.functional_call(self.net, weights, (places,))


@pytest.mark.parametrize("host", ["", "+1xhost:1GiB"])
def test_slopes_of_first_order_train_as_on_one_device(host: str) -> None:
    torch.manual_seed(5)
    trains_the_same(Adapted().double(), torch.randn(48, 12).double(), host=host)


@module(lambda: {"parts": nn.ModuleList(nn.Linear(16, 16) for _ in range(5))})
def Converting(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Makes numbers of another type with `type`, which only tells a tensor's type without one."""
    table = torch.arange(16, device=x.device).float()
    for part in self.parts:
        table = table.sin()
        x = part(x * table.type(x.dtype)).type(x.dtype) + table.type(dtype=torch.float64)
        assert x.type().endswith("DoubleTensor")
    return x


def test_conversions_with_type_run_where_they_are_planned() -> None:
    torch.manual_seed(3)
    trains_the_same(Converting().double(), torch.randn(8, 16).double())


SEEN: list[bool] = []  # whether a kernel started on its argument's device


def noted(x: torch.Tensor) -> torch.Tensor:
    """Take note of the device that a kernel of Triton's, say, would start on."""
    SEEN.append(x.device.index in (None, torch.accelerator.current_device_index()))
    return x.clone()


kernel: Any = torch.library.custom_op("baechi_tests::kernel", noted, mutates_args=())
kernel.register_fake(torch.empty_like)
kernel.register_autograd(lambda _, gradient: kernel(gradient))


class Called(torch.autograd.Function):
    """The same in a function with a backward of its own."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return kernel(x)

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return kernel(gradients[0])


@module(lambda call: {"weight": nn.Parameter(torch.ones(8)), "call": call})
def Norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.call(x * self.weight)


@pytest.mark.parametrize("call", [kernel, lambda x: Called.apply(x)])
def test_kernels_of_no_library_find_their_device_the_current_one(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), Norm(call)) for _ in range(6)))
    inputs = torch.randn(4, 8)
    with machine():
        placed = placed_at_random(model, inputs)
        assert len(set(placed.plan.device_of.values())) == 3
        torch.accelerator.set_device_index(2)
        try:
            SEEN.clear()
            placed.model(inputs).sum().backward()
            assert SEEN == [True] * 12
            assert torch.accelerator.current_device_index() == 2
        finally:
            torch.accelerator.set_device_index(0)
