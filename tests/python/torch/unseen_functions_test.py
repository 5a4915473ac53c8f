# SPDX-License-Identifier: Apache-2.0
"""Functions that no function mode of PyTorch sees: TorchScript's, and kernels of no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", exc_type=ImportError)

import torch
from places import machine, placed_at_random, trains_the_same
from torch import nn


class Converting(nn.Module):
    """Makes numbers of another type with `type`, which only tells a tensor's type without one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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


class Norm(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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
