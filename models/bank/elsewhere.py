# SPDX-License-Identifier: Apache-2.0
"""Reads that no argument shows, and backwards that are not only the forward's in reverse."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from models.bank.entry import Entry, noise

WIDTH = 16


def _rows(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, WIDTH, seed=seed)


def _pictures(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, 3, 8, 8, seed=seed)


class _Block(torch.autograd.Function):
    """Two residual steps; the backward computes their inputs from their outputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, f: Any, g: Any) -> Any:
        ctx.f, ctx.g = f, g
        with torch.no_grad():
            x = x + f(y)
            y = y + g(x)
        ctx.save_for_backward(x, y)
        return x, y

    @staticmethod
    def backward(ctx: Any, dx: torch.Tensor, dy: torch.Tensor) -> Any:
        x, y = (tensor.detach() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            x.requires_grad_()
            gx = ctx.g(x)
            torch.autograd.backward(gx, dy)
        dx, y = dx + x.grad, y - gx.detach()
        with torch.enable_grad():
            y.requires_grad_()
            torch.autograd.backward(ctx.f(y), dx)
        return dx, dy + y.grad, None, None


class Reversible(nn.Module):
    """RevNet: activations are not kept."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2 * blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y = self.first(x).chunk(2, 1)
        for f, g in zip(self.parts[::2], self.parts[1::2], strict=True):
            x, y = _Block.apply(x, y, f, g)
        return x + y


class Equilibrium(nn.Module):
    """A fixed point, whose gradient a hook solves for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def _cell(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(0.3 * self.inner(z) + self.outer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(6):
                z = self._cell(z, x)
        z = self._cell(z, x)
        at = z.detach().requires_grad_()
        found = self._cell(at, x)

        def solved(gradient: torch.Tensor) -> torch.Tensor:
            y = gradient
            for _ in range(4):
                y = torch.autograd.grad(found, at, y, retain_graph=True)[0] + gradient
            return y

        if z.requires_grad:
            z.register_hook(solved)
        return self.last(z)


class Members(nn.Module):
    """An ensemble that runs at once; its input is what the mapped function closes over."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(WIDTH, 8) for _ in range(3))
        self.last = nn.Linear(24, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.stack([member.weight for member in self.members])
        biases = torch.stack([member.bias for member in self.members])
        run = torch.vmap(lambda weight, bias: functional.linear(x, weight, bias), out_dims=-1)
        return self.last(run(weights, biases).flatten(1).tanh())


class _Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).mT


class CachedWeights(nn.Module):
    """Weights that are computed once for several calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        parametrize.register_parametrization(self.second, "weight", _Symmetric())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with parametrize.cached():
            y = self.first(self.second(x)).tanh()
            z: torch.Tensor = self.second(self.first(self.second(y)))
        return z


class InnerAutocast(nn.Module):
    """Asks where its input is for the autocast of its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Parameter(noise(WIDTH, WIDTH) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            z = functional.linear(y.float(), self.middle.float())
        return self.last(z.to(x.dtype))


class ListedParameters(nn.Module):
    """Finds its parameters in a plain list beside the one that registers them."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = [nn.Parameter(noise(WIDTH, seed=seed)) for seed in range(3)]
        self.kept = nn.ParameterList(self.scales)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x + torch.tanh(self.layer(x) * scale)
        return x


class Styled(nn.Module):
    """Instance normalisation with running averages, whose result, a view, ReLU changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
        self.norm = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu_(self.norm(self.first(x))))


class Sliced(nn.Module):
    """Takes the part of a sequence before its last word, as language models are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.last(self.words(x).tanh() * mask[..., None])


def _slices(batch: int, seed: int) -> dict[str, torch.Tensor]:
    mask = torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    return {"x": noise(batch, 5, WIDTH, seed=seed)[:, :-1], "mask": mask.expand(batch, -1)}


class _Rounding(torch.autograd.Function):
    """Has no gradient for what it rounds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.round() + y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        return None, gradients[0]


class Rounded(nn.Module):
    """Weights that get no gradient, which is not zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.rounded, self.plain = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded = self.rounded(self.before(x))
        return self.last(_Rounding.apply(rounded, self.plain(x)) + 0)


class CompiledFunction(nn.Module):
    """Calls a function that `torch.compile` returned, between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.bend = torch.compile(lambda x: x.sin() + x.cos(), backend="eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.bend(layer(x))
        return x


class Streaming(nn.Module):
    """Convolutions over time, each of which keeps the end of the last piece for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3) for _ in range(2))
        self.ends: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            before = self.ends.get(index)
            if before is None or len(before) != len(x):
                before = x.new_zeros(len(x), WIDTH, 2)
            x = torch.cat([before.to(x.device), x], -1)
            self.ends[index] = x[..., -2:].detach()
            x = torch.tanh(layer(x))
        return x


def _pieces(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, WIDTH, 6, seed=seed)


ENTRIES = [
    Entry("reversible", "elsewhere", Reversible, _rows),
    Entry("equilibrium", "elsewhere", Equilibrium, _rows),
    Entry("ensemble", "elsewhere", Members, _rows),
    Entry("cached-weights", "elsewhere", CachedWeights, _rows),
    Entry("inner-autocast", "elsewhere", InnerAutocast, _rows),
    Entry("listed-parameters", "elsewhere", ListedParameters, _rows),
    Entry("instance-norm", "elsewhere", Styled, _pictures),
    Entry("slices", "elsewhere", Sliced, _slices),
    Entry("rounded", "elsewhere", Rounded, _rows),
    Entry("streaming", "elsewhere", Streaming, _pieces),
    Entry("compiled-function", "elsewhere", CompiledFunction, _rows),
]
