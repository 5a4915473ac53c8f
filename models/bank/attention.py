# SPDX-License-Identifier: Apache-2.0
"""Transformers and mixers by hand, and how weights are shared, adapted, routed and recomputed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.bank.entry import Entry, noise, tokens

WIDTH = 16


class EinsumAttention(nn.Module):
    """Attention written in einsum, with relative positions and a mask that is a buffer."""

    def __init__(self, heads: int = 2, length: int = 8) -> None:
        super().__init__()
        self.projections = nn.Parameter(torch.randn(3, WIDTH, heads, WIDTH // heads) / 4)
        self.outward = nn.Parameter(torch.randn(heads, WIDTH // heads, WIDTH) / 4)
        self.relative = nn.Parameter(torch.zeros(heads, 2 * length))
        self.register_buffer("causal", torch.ones(length, length).tril().bool(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = torch.einsum("bld,tdhe->tbhle", x, self.projections)
        scores = torch.einsum("bhle,bhme->bhlm", query, key) / 3
        places = torch.arange(x.shape[1], device=x.device)
        scores = scores + self.relative[:, places[:, None] - places[None] + 8]
        scores = scores.masked_fill(~self.causal, float("-inf"))
        read = torch.einsum("bhlm,bhme->bhle", scores.softmax(-1), value)
        return x + torch.einsum("bhle,hed->bld", read, self.outward)


class FourierMixer(nn.Module):
    """Complex numbers: a global filter in the frequencies of a sequence, learned as pairs."""

    def __init__(self, length: int = 8) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(length // 2 + 1, WIDTH, 2) / 4)
        self.norm = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(self.norm(x), dim=1) * torch.view_as_complex(self.filter)
        x = x + torch.fft.irfft(spectrum, n=x.shape[1], dim=1)
        return x + self.feed(x) * torch.fft.fft2(x).abs().mean()


class Shared(nn.Module):
    """One block called three times, tied embeddings, and a layer that is known by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = self.first
        self.output = nn.Linear(WIDTH, 40, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        for _ in range(3):
            hidden = self.block(hidden)
        return self.output(self.second(torch.tanh(self.first(hidden))))


class Experts(nn.Module):
    """A mixture of experts that adds what each found to the rows it was for."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        flat = x.flatten(0, 1)
        shares = self.router(flat).softmax(1)
        weights, chosen = shares.topk(2, 1)
        weights = weights / weights.sum(1, keepdim=True)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, rank = torch.where(chosen == number)
            found.index_add_(0, rows, expert(flat[rows]) * weights[rows, rank, None])
        load = functional.one_hot(chosen, len(self.experts)).to(flat).mean((0, 1))
        return {"out": x + found.view_as(x), "balance": (load * shares.mean(0)).sum()}


class DenseExperts(nn.Module):
    """The same routing without turns: every expert sees all rows."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 32) / 4)
        self.down = nn.Parameter(torch.randn(experts, 32, WIDTH) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).topk(2, -1)
        gates = torch.zeros_like(self.router(x)).scatter(-1, chosen, weights.softmax(-1))
        inside = functional.gelu(torch.einsum("bld,edf->belf", x, self.up))
        return x + torch.einsum("belf,efd,ble->bld", inside, self.down, gates)


class LowRank(nn.Module):
    """A frozen layer and what is learned beside it."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inside, outside).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, inside) / 4)
        self.up = nn.Parameter(torch.zeros(outside, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + 2 * (x @ self.down.t()) @ self.up.t()


class Adapted(nn.Module):
    """LoRA by hand: most weights are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH).requires_grad_(False)
        self.layers = nn.Sequential(LowRank(WIDTH, 32), nn.GELU(), LowRank(32, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        return self.norm(hidden + self.layers(hidden)) @ self.embedding.weight.t()


class Recomputed(nn.Module):
    """Blocks whose activations are computed again in the backward, in both ways PyTorch has."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)
            )
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        for number, block in enumerate(self.blocks):
            x = x + checkpoint(block, x, use_reentrant=number == 2)
        return x


class Scaled(torch.autograd.Function):
    """Squares, and scales the gradient; keeps a tensor and a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.square()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * x * grad * ctx.scale, None


class OwnBackward(nn.Module):
    """A backward of its own between layers, and a gradient that is turned around."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Scaled.apply(self.first(x), 0.5)
        return self.second(Scaled.apply(torch.tanh(x), -1.0))


class Hooked(nn.Module):
    """A hook scales the gradient of a tensor; another looks at a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        return self.second(torch.tanh(hidden))


class Hyper(nn.Module):
    """A network computes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, WIDTH * 8 + 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        made = self.maker(task)
        weight, bias = made[:, : WIDTH * 8].view(-1, 8, WIDTH), made[:, WIDTH * 8 :]
        hidden = torch.baddbmm(bias[..., None], weight, x[..., None])[..., 0]
        same = functional.linear(x, weight.mean(0), bias.mean(0))
        return self.head(torch.relu(hidden) + same)


class Turning(nn.Module):
    """Early exit and another branch, by what the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.small, self.large = nn.Linear(WIDTH, 4), nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if number > 1 and x.abs().mean().item() > 0.2:
                break
        return self.small(x) if x.sum() > 0 else self.large(x) * 2


def _sequence(batch: int, seed: int) -> Any:
    return noise(batch, 8, WIDTH, seed=seed)


def _rows(batch: int, seed: int) -> Any:
    return noise(batch, WIDTH, seed=seed)


def _words(batch: int, seed: int) -> Any:
    return tokens(batch, 6, seed=seed)


def _tasks(batch: int, seed: int) -> Any:
    return noise(batch, WIDTH, seed=seed), noise(batch, 4, seed=seed + 9)


ROUTED = "rows per expert change with the weights"

ENTRIES = [
    Entry("einsum-attention", "attention", EinsumAttention, _sequence),
    Entry("fourier-mixer", "attention", FourierMixer, _sequence),
    Entry("shared-block", "attention", Shared, _words),
    Entry("experts", "attention", Experts, _sequence, varies=ROUTED),
    Entry("dense-experts", "attention", DenseExperts, _sequence),
    Entry("lora-by-hand", "attention", Adapted, _words),
    Entry("checkpointed", "attention", Recomputed, _sequence),
    Entry("own-backward", "attention", OwnBackward, _rows),
    Entry("tensor-hook", "attention", Hooked, _rows),
    Entry("hypernetwork", "attention", Hyper, _tasks),
    Entry("early-exit", "attention", Turning, _rows, varies="layers are left out by data"),
]
