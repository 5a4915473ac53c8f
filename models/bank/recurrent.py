# SPDX-License-Identifier: Apache-2.0
"""Recurrence: cells in loops, teacher forcing, packed sequences, scans, memories."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from models.bank.entry import Entry, noise, tokens

WIDTH = 16


class TeacherForced(nn.Module):
    """Feeds itself what it said, but every third step what it should have said."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, 40)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(self.embedding(source))
        hidden, token, logits = state[0], target[:, 0], []
        for step in range(1, target.shape[1]):
            hidden = self.cell(self.embedding(token), hidden)
            logits.append(self.output(hidden))
            token = target[:, step] if step % 3 == 0 else logits[-1].argmax(1)
        found = torch.stack(logits, 1).flatten(0, 1)
        return functional.cross_entropy(found, target[:, 1:].flatten())


class Packed(nn.Module):
    """A two-way LSTM over sequences of different lengths, which are known on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * WIDTH, 4)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        hidden, (last, _) = self.lstm(packed)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(hidden, batch_first=True)
        return self.output(hidden.sum(1) + torch.cat([last[-2], last[-1]], 1))


class SlicedScan(nn.Module):
    """A recurrence whose results are written into slices of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        out, state = torch.zeros_like(key), torch.zeros_like(key[:, 0])
        for step in range(x.shape[1]):
            now = key[:, step]
            mixed = torch.exp(-self.decay) * state + now
            out[:, step] = torch.tanh(mixed)
            state = mixed * now.sigmoid()
        return self.output(out * key.sigmoid())


class TimeMix(nn.Module):
    """RWKV's mixing over time: exponentials kept in range by a running maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.key, self.value, self.gate, self.output = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.mix = nn.Parameter(torch.rand(3, WIDTH))
        self.decay, self.first = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.feed = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        before = functional.pad(x, (0, 0, 1, -1))
        key, value, gate = (
            layer(x * mix + before * (1 - mix))
            for layer, mix in zip((self.key, self.value, self.gate), self.mix, strict=True)
        )
        top = torch.zeros_like(x[:, 0])
        bottom, largest = torch.zeros_like(top), torch.full_like(top, -1e30)
        out = []
        for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
            most = torch.maximum(largest, self.first + k)
            old, new = torch.exp(largest - most), torch.exp(self.first + k - most)
            out.append((old * top + new * v) / (old * bottom + new))
            most = torch.maximum(largest - self.decay.exp(), k)
            old, new = torch.exp(largest - self.decay.exp() - most), torch.exp(k - most)
            top, bottom, largest = old * top + new * v, old * bottom + new, most
        return self.output(gate.sigmoid() * torch.stack(out, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._mixed(self.norms[0](x))
        return x + self.feed(self.norms[1](x)).square()


class SelectiveScan(nn.Module):
    """Mamba by hand: what the state keeps depends on what is read."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
        self.select = nn.Linear(WIDTH, 2 * states + 1)
        self.rates = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(WIDTH, 1))
        self.skip = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.states = states

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside, gate = self.inward(x).chunk(2, -1)
        inside = self.convolution(inside.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        inside = functional.silu(inside)
        step, into, out = self.select(inside).split([1, self.states, self.states], -1)
        step = functional.softplus(step + self.bias)
        kept = torch.exp(step[..., None] * -self.rates.exp())
        added = (step * inside)[..., None] * into[:, :, None]
        state, found = torch.zeros_like(kept[:, 0]), []
        for k, a, o in zip(kept.unbind(1), added.unbind(1), out.unbind(1), strict=True):
            state = k * state + a
            found.append(torch.einsum("bds,bs->bd", state, o))
        y = torch.stack(found, 1) + self.skip * inside
        return x + self.outward(y * functional.silu(gate))


class Memory(nn.Module):
    """Reads a list of what it wrote; the oldest entry is forgotten, the newest amended."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.query = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = [torch.zeros_like(x[:, 0])]
        out = []
        for item in x.unbind(1):
            slots = torch.stack(memory, 1)
            scores = (slots @ self.query(item).unsqueeze(2)).softmax(1)
            read = (scores * slots).sum(1)
            memory.append(torch.tanh(self.write(torch.cat([item, read], 1))))
            memory[-1] = memory[-1] + 0.1 * memory[0]
            memory = memory[-3:]
            out.append(self.output(torch.cat([read, memory[-1]], 1)))
        return torch.stack(out, 1)


class OrdinaryDifferential(nn.Module):
    """A neural differential equation by Runge-Kutta steps: one network, called 12 times."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(4, WIDTH)
        self.slope = nn.Sequential(nn.Linear(WIDTH + 1, 32), nn.Tanh(), nn.Linear(32, WIDTH))
        self.end = nn.Linear(WIDTH, 4)

    def _slope(self, y: torch.Tensor, time: float) -> torch.Tensor:
        return self.slope(torch.cat([y, torch.full_like(y[:, :1], time)], 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, h = self.start(x), 1 / 3
        for step in range(3):
            t = step * h
            a = self._slope(y, t)
            b = self._slope(y + h / 2 * a, t + h / 2)
            c = self._slope(y + h / 2 * b, t + h / 2)
            d = self._slope(y + h * c, t + h)
            y = y + h / 6 * (a + 2 * b + 2 * c + d)
        return self.end(y)


def _words(batch: int, seed: int) -> Any:
    return tokens(batch, 6, seed=seed), tokens(batch, 7, seed=seed + 9)


def _lengths(batch: int, seed: int) -> Any:
    lengths = torch.tensor([7, 3, 5, 1][:batch])
    inside = torch.arange(7) < lengths[:, None]
    return tokens(batch, 7, seed=seed) * inside, lengths


def _sequence(batch: int, seed: int) -> Any:
    return noise(batch, 8, WIDTH, seed=seed)


ENTRIES = [
    Entry("teacher-forcing", "recurrent", TeacherForced, _words),
    Entry("packed-lstm", "recurrent", Packed, _lengths),
    Entry("sliced-scan", "recurrent", SlicedScan, _sequence),
    Entry("rwkv-by-hand", "recurrent", TimeMix, _sequence),
    Entry("mamba-by-hand", "recurrent", SelectiveScan, _sequence),
    Entry("memory-list", "recurrent", Memory, _sequence),
    Entry("neural-ode", "recurrent", OrdinaryDifferential, lambda n, s: noise(n, 4, seed=s)),
]
