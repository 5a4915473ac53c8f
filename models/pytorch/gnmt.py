# SPDX-License-Identifier: Apache-2.0
"""GNMT (Wu et al. 2016), machine translation by stacked LSTM layers with attention (Paper 5).

The layers are unrolled into cells, so that every cell of every step can be placed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from models.pytorch import batches

State = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are the paper's."""

    vocabulary: int = 30_000
    hidden: int = 512
    layers: int = 4  # of the encoder, and of the decoder
    length: int = 40  # of source and target: the number of steps that are unrolled
    bidirectional: bool = True  # the encoder's first layer
    dropout: float = 0.2

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(vocabulary=40, hidden=16, length=5, dropout=0.0)


class Attention(nn.Module):
    """Bahdanau's: a mixture of the encoder's outputs, weighed by v . tanh(key + query)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(
        self, state: torch.Tensor, keys: torch.Tensor, memory: torch.Tensor, padding: torch.Tensor
    ) -> torch.Tensor:
        energy = torch.tanh(keys + self.query(state).unsqueeze(1))
        scores = self.score(energy).squeeze(2) + padding
        weights = torch.softmax(scores, 1).unsqueeze(1)
        return torch.bmm(weights, memory).squeeze(1)


class Encoder(nn.Module):
    """Embedding and layers of cells; residual connections from the third layer on."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        self.embedding = nn.Embedding(config.vocabulary, hidden)
        self.backward_cell = nn.LSTMCell(hidden, hidden) if config.bidirectional else None
        second = 2 * hidden if config.bidirectional else hidden
        widths = [hidden, second, *[hidden] * (config.layers - 2)][: config.layers]
        self.cells = nn.ModuleList(nn.LSTMCell(width, hidden) for width in widths)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: torch.Tensor) -> list[torch.Tensor]:
        xs = [self.dropout(self.embedding(ids)) for ids in source.unbind(1)]
        for layer, cell in enumerate(self.cells):
            outputs = _run(cell, xs)
            if layer == 0 and self.backward_cell is not None:
                reverse = _run(self.backward_cell, xs[::-1])[::-1]
                outputs = [torch.cat(both, 1) for both in zip(outputs, reverse, strict=True)]
            outputs = [self.dropout(y) for y in outputs]
            if layer >= 2:
                outputs = [y + x for y, x in zip(outputs, xs, strict=True)]
            xs = outputs
        return xs


def _run(cell: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    state: State | None = None
    outputs = []
    for x in inputs:
        state = cell(x, state)
        outputs.append(state[0])
    return outputs


class Decoder(nn.Module):
    """Layers of cells that all read the attention's mixture, and the classifier of words."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        self.embedding = nn.Embedding(config.vocabulary, hidden)
        self.keys = nn.Linear(hidden, hidden, bias=False)
        self.attention = Attention(hidden)
        self.cells = nn.ModuleList(nn.LSTMCell(2 * hidden, hidden) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(hidden, config.vocabulary)

    def forward(
        self, target: torch.Tensor, encoded: list[torch.Tensor], padding: torch.Tensor
    ) -> list[torch.Tensor]:
        memory = torch.stack(encoded, 1)
        keys = self.keys(memory)
        context = torch.zeros_like(encoded[0])
        states: list[State | None] = [None] * len(self.cells)
        logits = []
        for ids in target.unbind(1):
            x = self.dropout(self.embedding(ids))
            for layer, cell in enumerate(self.cells):
                state: State = cell(torch.cat([x, context], 1), states[layer])
                states[layer] = state
                y = self.dropout(state[0])
                x = y + x if layer >= 2 else y
                if layer == 0:
                    context = self.attention(x, keys, memory, padding)
            logits.append(self.classifier(x))
        return logits


class Gnmt(nn.Module):
    """Sentences to logits, one tensor per target word; with labels, to the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        padding = (source == 0).float() * -1e9
        logits = self.decoder(target, self.encoder(source), padding)
        if labels is None:
            return logits
        losses = [
            functional.cross_entropy(step, words)
            for step, words in zip(logits, labels.unbind(1), strict=True)
        ]
        return torch.stack(losses).mean()


def inputs(
    config: Config, batch: int, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """Return pairs of sentences, and the targets one word later."""
    shape = (batch, config.length)
    target = batches.tokens((batch, config.length + 1), config.vocabulary, 2)
    return batches.on(
        device,
        source=batches.tokens(shape, config.vocabulary),
        target=target[:, :-1].contiguous(),
        labels=target[:, 1:].contiguous(),
    )
