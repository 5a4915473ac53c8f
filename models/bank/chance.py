# SPDX-License-Identifier: Apache-2.0
"""Models that draw random numbers in their forward: dropout of all kinds, noise, and samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.bank.entry import Entry, noise
from models.bank.language import configured, labelled

WIDTH = 12


class Branches(nn.Module):
    """Two branches, each with dropout of its own, that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = functional.dropout(self.a(x).tanh(), 0.3, self.training)
        b = functional.alpha_dropout(self.b(x), 0.2, self.training)
        return self.last(functional.dropout(a * b, 0.5, self.training))


class Maps(nn.Module):
    """Convolutions that lose whole maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.drop, self.norm = nn.Dropout2d(0.3), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.feature_alpha_dropout(self.first(x), 0.2, self.training)
        return self.norm(self.drop(self.second(x.relu())))


class Depth(nn.Module):
    """Blocks that samples skip by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            kept = (torch.rand(len(x), 1, device=x.device) < 0.7).to(x.dtype)
            x = x + block(x).tanh() * kept / 0.7
        return x


class Variational(nn.Module):
    """An autoencoder that draws what it decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 8), nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.encode(x).chunk(2, -1)
        drawn = mean + torch.randn_like(spread) * (spread / 2).exp()
        return self.decode(drawn) - x, mean.square() + spread.exp() - spread


class Chosen(nn.Module):
    """Rows of a codebook by Gumbel's softmax, and by samples without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.book = nn.Linear(WIDTH, 6), nn.Embedding(6, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.score(x)
        soft = functional.gumbel_softmax(score, tau=0.7) @ self.book.weight
        hard = self.book(torch.multinomial(score.detach().softmax(-1), 2, replacement=True))
        return self.last(soft + hard.sum(1))


class Leaky(nn.Module):
    """Slopes that are drawn, and noise that is written into a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.rrelu(self.a(x), training=self.training)
        jitter = torch.empty_like(x).normal_(std=0.1)
        return self.b(x + jitter).sigmoid()


class Mixed(nn.Module):
    """Mixes each sample with another one, by a share that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = torch.randperm(len(x), device=x.device)
        share = torch.rand(len(x), 1, device=x.device, dtype=x.dtype)
        hidden = self.first(x).tanh()
        return self.last(share * hidden + (1 - share) * hidden[other])


class Again(nn.Module):
    """Dropout inside of checkpoints, which draw it again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), nn.GELU(), nn.Linear(WIDTH, WIDTH)
            )
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


class Recurrent(nn.Module):
    """An LSTM with dropout between its layers, and one mask for all steps (variational)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.4, batch_first=True)
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.rnn(x)
        state = torch.zeros_like(x[:, 0])
        mask = torch.bernoulli(torch.full_like(state, 0.6)) / 0.6
        for step in x.unbind(1):
            state = self.cell(step, state * mask)
        return state


class Attentive(nn.Module):
    """Two layers of PyTorch's own encoder, which drops in attention, too."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)


def _rows(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, WIDTH, seed=seed)


def _sequence(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, 3, WIDTH, seed=seed)


def _images(batch: int, seed: int) -> torch.Tensor:
    return noise(batch, 3, 6, 6, seed=seed)


def _entry(name: str, build: Any, inputs: Any = _rows, **more: Any) -> Entry:
    return Entry(name, "chance", build, inputs, chance=True, **more)


def _logits(out: Any) -> torch.Tensor:
    return out.logits.square().mean()  # transformers' own losses are of single precision


_LLM = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
_BERT = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}

ENTRIES = [
    _entry("dropout-branches", Branches),
    _entry("dropout-maps", Maps, _images),
    _entry("stochastic-depth", Depth),
    _entry("drawn-latents", Variational),
    _entry("gumbel-choice", Chosen),
    _entry("drawn-slopes", Leaky),
    _entry("mixup", Mixed),
    _entry("dropout-checkpointed", Again),
    # PyTorch has no graph of the cell for batches of any size.
    _entry("dropout-recurrent", Recurrent, _sequence, sizes=(4, 4, 4)),
    _entry("dropout-encoder", Attentive, _sequence),
    _entry(
        "gpt2-dropout",
        configured("GPT2LMHeadModel", "GPT2Config", **_LLM),
        labelled,
        loss=_logits,
        needs="transformers",
    ),
    _entry(
        "bert-dropout",
        configured("BertForMaskedLM", "BertConfig", **_BERT, num_attention_heads=2),
        labelled,
        loss=_logits,
        needs="transformers",
    ),
]
