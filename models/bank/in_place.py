# SPDX-License-Identifier: Apache-2.0
"""Changes in place: buffers that steps update, queues, views written through, masked writes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from models.bank.entry import Entry, noise, tokens

WIDTH = 16


class Quantised(nn.Module):
    """VQ-VAE whose codes follow moving averages of what they stood for; straight-through."""

    def __init__(self, codes: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(8, 8, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        )
        self.register_buffer("book", torch.randn(codes, 8))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.book.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x)
        flat = features.movedim(1, -1).reshape(-1, 8)
        nearest = torch.cdist(flat, self.book).argmin(1)
        codes = self.book[nearest].reshape_as(features.movedim(1, -1)).movedim(-1, 1)
        if self.training:
            with torch.no_grad():
                chosen = functional.one_hot(nearest, len(self.book)).to(flat)
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.t() @ flat, alpha=0.1)
                self.book.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
        near = functional.mse_loss(features, codes.detach())
        found = self.decoder(features + (codes - features).detach())
        return functional.mse_loss(found, x) + 0.25 * near


class Queue(nn.Module):
    """MoCo: keys of a slowly following copy of the encoder, and a queue of earlier ones."""

    def __init__(self, length: int = 12) -> None:
        super().__init__()
        self.query = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)
        )
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", functional.normalize(noise(length, 8), dim=1))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def _follow(self) -> None:
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.mul_(0.9).add_(fast, alpha=0.1)

    def _enqueue(self, keys: torch.Tensor) -> None:
        places = (self.at + torch.arange(len(keys), device=self.at.device)) % len(self.queue)
        self.queue.index_copy_(0, places, keys)
        self.at.add_(len(keys)).remainder_(len(self.queue))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        query = functional.normalize(self.query(x), dim=1)
        with torch.no_grad():
            self._follow()
            key = functional.normalize(self.key(other), dim=1)
        same = (query * key).sum(1, keepdim=True)
        logits = torch.cat([same, query @ self.queue.clone().t()], 1) / 0.2
        with torch.no_grad():
            self._enqueue(key)
        return functional.cross_entropy(
            logits, torch.zeros(len(x), dtype=torch.long, device=x.device)
        )


class Views(nn.Module):
    """Writes through views of views: halves, columns, a diagonal, every other row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers[0](x) * 1
        left, right = y[:, :8], y[:, 8:]
        left.mul_(2)
        early = self.layers[1](y.clone())
        right[:, ::2].add_(left[:, 1::2])
        y.view(len(y), 4, 4).diagonal(dim1=1, dim2=2).mul_(0.5)
        late = self.layers[2](y.clone())
        y[::2] = early[::2]
        y.t()[0].zero_()
        return self.layers[3](y + late) + right.sum(1, keepdim=True)


class MaskedWrites(nn.Module):
    """Fills what a mask says: by a tensor, a number, an index, and from a source in order."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.mask = nn.Parameter(torch.randn(WIDTH))
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, words: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words).clone()
        hidden[words % 5 == 0] = self.mask
        hidden = self.first(hidden)
        hidden = hidden.masked_fill((words % 7 == 0)[..., None], 0.5)
        rows = torch.arange(len(words), device=words.device)
        hidden[rows, words.argmax(1)] += 1
        spots = (words % 3 == 0)[..., None].expand_as(hidden)
        hidden = hidden.masked_scatter(spots, self.second(extra))
        return self.second(torch.where(words[..., None] > 20, hidden, -hidden))


class Positions(nn.Module):
    """Positions that count what is no padding, filled in row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, WIDTH), nn.Embedding(16, WIDTH)
        self.output = nn.Linear(WIDTH, 40)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.zeros(2, *words.shape, dtype=torch.long, device=words.device)
        for row in range(len(words)):
            count = int(mask[row].sum())
            steps = torch.arange(count, device=words.device).expand(2, -1)
            places[:, row, mask[row].bool()] = steps.to(places.device) + 1
        return self.output(self.words(words) + self.places(places).sum(0))


class RunningNorm(nn.Module):
    """Normalises by statistics that it keeps itself, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("mean", torch.zeros(3, WIDTH))
        self.register_buffer("variance", torch.ones(3, WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for number, layer in enumerate(self.layers):
            x = layer(x)
            with torch.no_grad():
                self.mean[number].lerp_(x.mean(0), 0.1)
                self.variance[number] = self.variance[number] * 0.9 + x.var(0) * 0.1
            x = torch.relu((x - self.mean[number]) * (self.variance[number] + 1e-5).rsqrt())
        return x / self.calls


class BatchNorms(nn.Module):
    """Batch norms of images and sequences in training, one of them used at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.shared = nn.BatchNorm2d(8)
        self.middle = nn.Conv2d(8, 8, 3, 1, 1)
        self.cumulative = nn.BatchNorm1d(8, momentum=None)
        self.group, self.instance = (
            nn.GroupNorm(2, 8),
            nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(self.shared(self.stem(x)))
        x = x + self.instance(self.shared(self.middle(x)))
        x = self.cumulative(self.group(x).flatten(2))
        return self.head(x.mean(2))


class RunningSum(nn.Module):
    """Layers that add to one tensor, which is read in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        seen = []
        for layer in self.layers:
            x = layer(x).tanh()
            total += x
            seen.append(total * 1)
        return self.last(total) + torch.stack(seen).sum(0)


class Parametrised(nn.Module):
    """Weights that are computed: spectral norm with its power iteration, weight norm, rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.spectral = parametrizations.spectral_norm(nn.Conv2d(3, 8, 3, 2, 1))
        self.scaled = parametrizations.weight_norm(nn.Linear(8, WIDTH))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False))
        self.both = parametrizations.spectral_norm(nn.Linear(WIDTH, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu(self.spectral(x), 0.2).mean((2, 3))
        return self.both(torch.tanh(self.orthogonal(self.scaled(x))))


class OldSpectral(nn.Module):
    """The norms by hooks, as older GANs have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.spectral_norm(nn.Linear(8, WIDTH))
        self.second = nn.utils.spectral_norm(nn.Linear(WIDTH, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _images(batch: int, seed: int) -> Any:
    return noise(batch, 3, 8, 8, seed=seed)


def _rows(width: int) -> Any:
    return lambda batch, seed: noise(batch, width, seed=seed)


def _masked(batch: int, seed: int) -> Any:
    return tokens(batch, 6, seed=seed), noise(6 * batch, WIDTH, seed=seed)


def _padded(batch: int, seed: int) -> Any:
    mask = torch.arange(6) < torch.tensor([6, 4, 2, 5][:batch])[:, None]
    return tokens(batch, 6, seed=seed), mask.long()


ENTRIES = [
    Entry("vq-vae", "in place", Quantised, _images),
    Entry("moco", "in place", Queue, lambda n, s: (noise(n, 8, seed=s), noise(n, 8, seed=s + 9))),
    Entry("views", "in place", Views, _rows(WIDTH)),
    Entry("masked-writes", "in place", MaskedWrites, _masked),
    Entry("counted-positions", "in place", Positions, _padded),
    Entry("running-norm", "in place", RunningNorm, _rows(WIDTH)),
    Entry("running-sum", "in place", RunningSum, _rows(WIDTH)),
    Entry("batch-norms", "in place", BatchNorms, _images),
    Entry("parametrised", "in place", Parametrised, _images),
    Entry("old-spectral-norm", "in place", OldSpectral, _rows(8)),
]
