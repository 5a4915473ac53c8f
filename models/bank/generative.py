# SPDX-License-Identifier: Apache-2.0
"""Flows, autoencoders, diffusion, contrast, and convolutions over sound and images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from models.bank.entry import Entry, noise, tokens


class Coupled(nn.Module):
    """A normalising flow: activation norms that the first batch sets, mixing, coupling."""

    def __init__(self, width: int = 8, steps: int = 3) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width // 2, 32), nn.ReLU(), nn.Linear(32, width))
            for _ in range(steps)
        )
        self.mixing = nn.ParameterList(
            nn.Parameter(torch.linalg.qr(torch.randn(width, width))[0]) for _ in range(steps)
        )
        self.shift, self.scale = (nn.Parameter(torch.zeros(steps, width)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change = torch.zeros_like(x[:, 0])
        for net, mixing, shift, scale in zip(
            self.nets, self.mixing, self.shift, self.scale, strict=True
        ):
            x = (x + shift) * scale.exp()
            x = x @ mixing
            change = change + scale.sum() + torch.linalg.slogdet(mixing)[1]
            left, right = x.chunk(2, 1)
            raw, moved = net(left).chunk(2, 1)
            factor = torch.sigmoid(raw + 2)
            x = torch.cat([left, right * factor + moved], 1)
            change = change + factor.log().sum(1)
        return (x.square().sum(1) / 2 - change).mean()


class Variational(nn.Module):
    """A variational autoencoder; its noise is an input, so that runs can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 32), nn.Softplus(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.Softplus(), nn.Linear(32, 12))

    def forward(self, x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encoder(x).chunk(2, 1)
        found = self.decoder(mean + (spread / 2).exp() * drawn)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)
        return functional.mse_loss(found, x, reduction="none").sum(1).add(divergence).mean()


class Denoiser(nn.Module):
    """A U-Net with attention in its middle that is told the time; predicts the noise."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.norm = nn.GroupNorm(2, 2 * width)
        self.mixed = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.end = nn.Conv2d(2 * width, 3, 3, 1, 1)
        self.register_buffer("kept", torch.linspace(1, 0.02, 20))

    def forward(self, x: torch.Tensor, drawn: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        kept = self.kept[steps][:, None, None, None]
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * drawn
        rates = torch.exp(torch.arange(4, device=steps.device, dtype=x.dtype) * -1.5)
        angles = steps[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        skip = functional.silu(self.stem(noisy))
        middle = self.norm(self.down(skip)) + time[..., None, None]
        flat = middle.flatten(2).transpose(1, 2)
        flat = flat + self.mixed(flat, flat, flat, need_weights=False)[0]
        middle = flat.transpose(1, 2).reshape(middle.shape)
        found = self.end(torch.cat([self.up(functional.silu(middle)), skip], 1))
        return functional.mse_loss(found, drawn)


class WaveNet(nn.Module):
    """Gated convolutions of growing reach over sound; what every layer skips is added up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))
        self.ends = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 16, 1))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x, skipped = self.start(sound[:, None]), 0
        for number, (gated, skip) in enumerate(zip(self.gated, self.skips, strict=True)):
            value, gate = gated(functional.pad(x, (2**number, 0))).chunk(2, 1)
            inside = torch.tanh(value) * torch.sigmoid(gate)
            skipped = skipped + skip(inside)
            x = x + inside
        logits = self.ends(skipped)[..., :-1]
        levels = ((sound[:, 1:].clamp(-2, 2) + 2) * 3.9).long()
        return functional.cross_entropy(logits, levels)


class Siamese(nn.Module):
    """One encoder, called for two views; SimSiam stops the gradient on one side."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
        )
        self.predictor = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        a, b = self.encoder(first), self.encoder(second)
        alike = functional.cosine_similarity(self.predictor(a), b.detach())
        return -(alike + functional.cosine_similarity(self.predictor(b), a.detach())).mean() / 2


class Contrast(nn.Module):
    """Two towers and a learned temperature that is kept in bounds in place."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.EmbeddingBag(40, 16), nn.Linear(16, 8))
        self.right = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, words: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.temperature.clamp_(0, 1.9)
        left = functional.normalize(self.left(words), dim=1)
        right = functional.normalize(self.right(features), dim=1)
        logits = left @ right.t() * self.temperature.exp()
        same = torch.arange(len(logits), device=logits.device)
        return functional.cross_entropy(logits, same) + functional.cross_entropy(logits.t(), same)


class Speech(nn.Module):
    """Speech recognition: convolutions, a two-way GRU, and a loss over all alignments."""

    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Conv1d(8, 16, 3, 2, 1)
        self.norm = nn.LayerNorm(16)
        self.gru = nn.GRU(16, 12, batch_first=True, bidirectional=True)
        self.output = nn.Linear(24, 12)

    def forward(self, sound: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.subsample(sound).transpose(1, 2))
        chances = self.output(self.gru(hidden)[0]).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((len(words),), chances.shape[0], dtype=torch.long)
        targets = torch.full((len(words),), words.shape[1], dtype=torch.long)
        return functional.ctc_loss(chances, words, lengths, targets)


class Warped(nn.Module):
    """A spatial transformer: what to look at is learned; grids, sampling, bilinear resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(3 * 64, 6)
        self.look = nn.Conv2d(3, 8, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.head = nn.Linear(2 * 16 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=x.dtype, device=x.device)
        theta = (0.1 * self.where(x.flatten(1)) + start).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        x = functional.grid_sample(x, grid, align_corners=False)
        x = functional.interpolate(self.look(x), scale_factor=0.5, mode="bilinear")
        return self.head(functional.interpolate(self.shuffle(x), size=(16, 16)).flatten(1))


def _images(batch: int, seed: int) -> Any:
    return noise(batch, 3, 8, 8, seed=seed)


def _diffused(batch: int, seed: int) -> Any:
    steps = tokens(batch, below=20, seed=seed)
    return _images(batch, seed), noise(batch, 3, 8, 8, seed=seed + 9), steps


def _two(first: int, second: int) -> Any:
    return lambda n, seed: (noise(n, first, seed=seed), noise(n, second, seed=seed + 9))


ENTRIES = [
    Entry("flow", "generative", Coupled, lambda n, s: noise(n, 8, seed=s)),
    Entry("vae", "generative", Variational, _two(12, 4)),
    Entry("denoiser", "diffusion", Denoiser, _diffused),
    Entry("wavenet", "speech", WaveNet, lambda n, s: noise(n, 24, seed=s)),
    Entry(
        "ctc",
        "speech",
        Speech,
        lambda n, s: (noise(n, 8, 20, seed=s), tokens(n, 3, below=12, seed=s)),
    ),
    Entry("simsiam", "contrastive", Siamese, _two(8, 8)),
    Entry(
        "two-tower-contrast",
        "contrastive",
        Contrast,
        lambda n, s: (tokens(n, 3, seed=s), noise(n, 12, seed=s)),
    ),
    Entry("spatial-transformer", "vision", Warped, _images),
]
