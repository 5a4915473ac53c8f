# SPDX-License-Identifier: Apache-2.0
"""Models that tests of the new rooms share, each with an example."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Twice(nn.Module):
    """A module that is called twice, batch norm's averages, calls of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.middle = nn.Linear(16, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        h = self.middle(self.first(x))
        return self.last(h) + self.last(h * 2)


class Convolutions(nn.Module):
    """Branches over one image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = nn.functional.relu(self.stem(x))
        both = torch.cat([self.left(x), self.right(x)], 1)
        return self.head(nn.functional.max_pool2d(self.norm(both), 2).mean((2, 3)))


class Tied(nn.Module):
    """An embedding and a head of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.middle(self.embedding(tokens)).tanh())


class Recurrent(nn.Module):
    """An LSTM that holds its weights in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0])


def _gpt2() -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    tokens = torch.arange(16).reshape(2, 8)
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def _llama() -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=32, num_attention_heads=4, num_key_value_heads=2, use_cache=False, **sizes
    )
    tokens = torch.arange(16).reshape(2, 8)
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


_MADE: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)),
        {"input": torch.ones(3, 4)},
    ),
    "twice": lambda: (Twice(), {"x": torch.ones(6, 8)}),
    "block": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        {"src": torch.ones(2, 3, 8)},
    ),
    "convolutions": lambda: (Convolutions(), {"x": torch.ones(2, 3, 8, 8)}),
    "tied": lambda: (Tied(), {"tokens": torch.arange(6).reshape(2, 3)}),
    "lstm": lambda: (Recurrent(), {"x": torch.ones(3, 2, 4)}),
}
if importlib.util.find_spec("transformers") is not None:
    _MADE |= {"gpt2": _gpt2, "llama": _llama}

ALL = tuple(_MADE)


def made(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model and the keyword arguments of a call."""
    torch.manual_seed(0)
    return _MADE[name]()


def total(output: Any) -> Any:
    """Return a loss of any output."""
    loss = getattr(output, "loss", None)
    return output.float().mean() if loss is None else loss
