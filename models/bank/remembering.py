# SPDX-License-Identifier: Apache-2.0
"""What a model keeps from one call to the next: keys and values, tables, averages, whole graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models.bank.entry import Entry, noise

WIDTH = 16


class KeysAndValues(nn.Module):
    """Attends to lists of keys and values of the last calls."""

    def __init__(self, kept: int = 2) -> None:
        super().__init__()
        self.query, self.key, self.value, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key, value = self.key(x), self.value(x)
        if not self.keys or len(self.keys[0]) != len(x):
            self.keys = [torch.zeros_like(key) for _ in range(self.kept)]
            self.values = [torch.zeros_like(value) for _ in range(self.kept)]
        keys, values = torch.cat([*self.keys, key], 1), torch.cat([*self.values, value], 1)
        found: torch.Tensor = self.last((self.query(x) @ keys.mT).softmax(-1) @ values)
        self.keys.append(key.detach())
        self.values.append(value.detach())
        del self.keys[: -self.kept], self.values[: -self.kept]
        return found


class Places(nn.Module):
    """Writes its keys to the next places of a buffer, which it counts, and attends to all."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("keys", torch.zeros(4, 12, WIDTH))
        self.at = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, _ = x.shape
        key = self.key(x)
        places = torch.arange(self.at, self.at + length, device=key.device) % 12
        keys = self.keys[:count].clone().index_copy(1, places, key)
        with torch.no_grad():
            self.keys[:count].copy_(keys)
        self.at += length
        return self.last((self.query(x) @ keys.mT).softmax(-1) @ keys)


class Past(nn.Module):
    """Adds what each layer made in the call before, from a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.past: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if number in self.past:
                x = x + 0.1 * self.past[number].mean(0)
            self.past[number] = x.detach()
        return x


@functools.lru_cache
def _waves(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    places = torch.arange(length, device=device)[:, None]
    return (places / 10 ** (torch.arange(WIDTH, device=device) / 4)).sin().to(dtype)


class Tables(nn.Module):
    """Makes a mask at its first call, and a table once for each shape that a function is given."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if self.mask is None or self.mask.device != x.device or len(self.mask) != length:
            self.mask = torch.full((length, length), -1e9, device=x.device).triu(1)
        x = x + _waves(length, x.dtype, x.device)
        scores = self.query(x) @ self.key(x).mT + self.mask.to(x.dtype)
        return self.last(scores.softmax(-1) @ x)


class Versioned(nn.Module):
    """Computes the norm of a weight anew when an optimizer has changed it, and else keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(WIDTH, WIDTH))
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.known: tuple[int, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.known is None or self.known[0] != self.weight._version:
            norm = torch.linalg.matrix_norm(self.weight.detach())
            self.known = (self.weight._version, norm)
        hidden = self.first(x) @ (self.weight / self.known[1])
        return self.last(torch.tanh(hidden))


class Through(nn.Module):
    """A state that goes from call to call with its gradients, as in truncated backpropagation."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.again, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inward(x)
        if self.state is not None:
            hidden = hidden + self.again(self.state)
        self.state = torch.tanh(hidden)
        return self.last(self.state)


def _through_calls(
    model: Any, batches: list[Any], before: Callable[[], None], calls: int = 3
) -> list[float]:
    """Train on the losses of several calls at once; the state goes on, its gradients do not."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        before()
        known = model.state is not None and len(model.state) == len(batch)
        model.state = model.state.detach() if known else None
        loss = sum(model(batch * (1 + call)).square().mean() for call in range(calls))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _one_by_one(model: Any, batches: list[Any], before: Callable[[], None]) -> list[float]:
    """Train as usual; peaks are not compared, since the example finds nothing that was kept."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        before()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _rows(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, WIDTH, seed=seed)


def _sequence(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, 5, WIDTH, seed=seed)


ENTRIES = [
    Entry(
        "keys-and-values",
        "remembering",
        KeysAndValues,
        _sequence,
        train=_one_by_one,
        sizes=(4, 4, 4),
        varies="what is kept is not there in the example",
    ),
    Entry("places", "remembering", Places, _sequence),
    Entry("past", "remembering", Past, _rows),
    Entry("tables", "remembering", Tables, _sequence),
    Entry("versioned", "remembering", Versioned, _rows),
    Entry(
        "through-calls",
        "remembering",
        Through,
        _rows,
        train=_through_calls,
        varies="a step is several calls",
    ),
]
