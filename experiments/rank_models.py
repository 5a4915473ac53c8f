# SPDX-License-Identifier: Apache-2.0
"""Models whose layers last: most of a layer is a wait, so that two cores stand for four devices."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

WIDTH = 64
SAMPLES = 16
FORWARD = 2.0  # milliseconds that a layer takes for a sample; its backward takes twice that


@torch.library.custom_op("baechi_lab::wait", mutates_args=())  # type: ignore[untyped-decorator]
def wait(x: torch.Tensor, milliseconds: float) -> torch.Tensor:
    """Return the tensor after so long for each of its samples."""
    time.sleep(milliseconds * len(x) / 1e3)
    return x.clone()


@wait.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor, milliseconds: float) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.milliseconds = inputs[1]


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return wait(gradient, 2 * ctx.milliseconds), None


wait.register_autograd(_backward, setup_context=_remember)


class Layer(nn.Module):
    """One layer, which lasts."""

    def __init__(self, milliseconds: float = FORWARD, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.milliseconds = milliseconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute a little, and wait."""
        x = torch.tanh(self.linear(x))
        return wait(x, self.milliseconds) if self.milliseconds else x


class Chain(nn.Module):
    """Layers one behind the other."""

    def __init__(self, count: int = 8, milliseconds: float = FORWARD) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(milliseconds) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run them."""
        for layer in self.layers:
            x = layer(x)
        return x

    def stages(self, count: int) -> list[nn.Module]:
        """Return equal parts that run one behind the other."""
        each = len(self.layers) // count
        return [nn.Sequential(*self.layers[i * each : (i + 1) * each]) for i in range(count)]


class Tower(nn.Module):
    """A branch that adds its output to what others have added."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hand the input on, as a chain of stages must."""
        return x, total + self.layers(x)


class _First(nn.Module):
    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.tower(x)


class _Last(nn.Module):
    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return self.tower(x, total)[1]


class Branches(nn.Module):
    """Branches of the same input, added up."""

    def __init__(self, count: int = 4, layers: int = 2, milliseconds: float = FORWARD) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(Layer(milliseconds) for _ in range(layers))) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all, whatever order."""
        total = self.towers[0](x)
        for tower in self.towers[1:]:
            total = total + tower(x)
        return total

    def stages(self, count: int) -> list[nn.Module]:
        """Return the branches as stages of a chain, which hand on what they do not read."""
        assert count == len(self.towers)
        middle = [Tower(tower) for tower in self.towers]
        return [_First(self.towers[0]), *middle[1:-1], _Last(middle[-1])]


class Wide(nn.Module):
    """Mostly weights: 24 layers of 4 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run them."""
        for layer in self.layers:
            x = layer(x).tanh()
        return x


MODELS: dict[str, type[nn.Module]] = {"chain of 8": Chain, "4 branches of 2": Branches}


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a mean over samples."""
    return nn.functional.mse_loss(output, targets)
