# SPDX-License-Identifier: Apache-2.0
"""Inner loops of learning, complex numbers, factorisations, and backwards by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.bank.entry import Entry, noise

WIDTH = 16


class Adapted(nn.Module):
    """MAML: inner steps on weights of its own, with a learned rate, through which the loss goes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
        self.rate = nn.Parameter(torch.tensor(0.1))

    def forward(self, known: torch.Tensor) -> torch.Tensor:
        weights = dict(self.net.named_parameters())
        for _ in range(2):
            out = torch.func.functional_call(self.net, weights, (known,))
            inner = (out - known.roll(1, 0)).square().mean()
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {
                name: weight - self.rate * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
        return torch.func.functional_call(self.net, weights, (known * 2,))


class Masking(torch.autograd.Function):
    """Several outputs, of which one has no gradient, and gradients that may not be there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        out = x @ weight
        mask = out > 0
        ctx.save_for_backward(x, weight, mask)
        ctx.mark_non_differentiable(mask)
        ctx.set_materialize_grads(False)
        return out, mask, out * mask

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        x, weight, mask = ctx.saved_tensors
        plain, _, masked = gradients
        total = 0 if plain is None else plain
        total = total if masked is None else total + masked * mask
        return total @ weight.t(), x.t() @ total


class SeveralOutputs(nn.Module):
    """Calls such a function twice, and leaves out another output each time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second, self.third = (nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3) for _ in "23")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, mask, masked = Masking.apply(self.first(x), self.second)
        _, other, again = Masking.apply(out, self.third)
        return masked + again * other.to(x.dtype) + mask.to(x.dtype)


class Spectral(nn.Module):
    """Complex weights between a Fourier transform and its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = (nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.2) for _ in "12")
        self.enter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.complex(self.real, self.imaginary)
        waves = torch.fft.fft(self.enter(x).to(weight.dtype)) @ weight
        waves = waves * torch.polar(waves.abs(), waves.angle()).conj()
        out = torch.fft.ifft(waves)
        return torch.view_as_real(out).sum(-1) + out.real


class Gaussian(nn.Module):
    """A Gaussian process: Cholesky factors, triangular solutions, determinants, eigenvalues."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.root = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(x)
        kernel = self.root @ self.root.t() + torch.eye(WIDTH, dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky(kernel)
        mean = torch.cholesky_solve(hidden.t(), factor).t()
        white = torch.linalg.solve_triangular(factor, hidden.t(), upper=False).t()
        scales = torch.linalg.eigvalsh(self.root + self.root.t())
        return mean + white * scales + torch.logdet(kernel)


class Turning(nn.Module):
    """How many steps it takes, and which rows it changes, the data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.steps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(x)
        number = 0
        while hidden.norm() < 40 and number < 6:
            sign = 1 if hidden.mean() > 0 else -1
            hidden = hidden * 1.3 + sign * torch.tanh(self.steps[number % 3](hidden))
            number += 1
        chosen = (hidden.sum(1) > 0).nonzero().squeeze(1)
        return hidden.index_copy(0, chosen, self.steps[2](hidden[chosen]))


def _rows(batch: int, seed: int) -> torch.Tensor:
    return noise(4 * batch, WIDTH, seed=seed)


ENTRIES = [
    Entry("maml", "mathematics", Adapted, _rows),
    Entry("several-outputs", "mathematics", SeveralOutputs, _rows),
    Entry("complex-spectrum", "mathematics", Spectral, _rows),
    Entry("gaussian-process", "mathematics", Gaussian, _rows),
    Entry("data-turns", "mathematics", Turning, _rows, varies="the data decides what runs"),
]
