# SPDX-License-Identifier: Apache-2.0
"""Models that tests share, each with an example, and how a model of a few parts is written."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def module(parts: Callable[..., dict[str, Any]] = dict) -> Callable[[Callable[..., Any]], Any]:
    """Make of a forward a class of modules; ``parts`` are made in order, of what a module is given.

    ``@module(lambda width: {"layer": nn.Linear(width, width)})`` stands above the forward.
    """

    def of(forward: Callable[..., Any]) -> Any:
        def build(self: Any, *given: Any, **named: Any) -> None:
            nn.Module.__init__(self)
            for name, part in parts(*given, **named).items():
                setattr(self, name, part)

        own = {"__init__": build, "forward": forward, "__module__": forward.__module__}
        own |= {"__doc__": forward.__doc__, "__qualname__": forward.__qualname__}
        return type(forward.__name__, (nn.Module,), own)

    return of


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


@module(lambda: {"cells": nn.LSTM(4, 5), "head": nn.Linear(5, 2)})
def Recurrent(self: Any, x: Any) -> Any:
    """An LSTM that holds its weights in a list, too."""
    return self.head(self.cells(x)[0])


def tiny(
    kind: str,
    layers: int,
    width: int,
    heads: int = 4,
    *,
    words: int = 64,
    length: int = 16,
    **more: Any,
) -> Any:
    """Return GPT-2 or Llama of transformers, without dropout; `more` are of its configuration."""
    import transformers

    if kind == "gpt2":
        sizes = {"n_positions": length, "n_embd": width, "n_layer": layers, "n_head": heads}
        off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config: Any = transformers.GPT2Config(vocab_size=words, **sizes, **off, **ends, **more)
        return transformers.GPT2LMHeadModel(config)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    more |= {"num_attention_heads": heads, "max_position_embeddings": length}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=words, **sizes, **more)
    )


def language_model(
    name: str, layers: int = 8, width: int = 64, samples: int = 16
) -> tuple[nn.Module, dict[str, Any]]:
    """Return GPT-2 or Llama in double precision; by default those of bench/torch_steps.py."""
    tokens = torch.arange(samples * 16).reshape(samples, 16) % 63 + 1
    model = tiny(name, layers, width, use_cache=False)
    return model.double(), {"input_ids": tokens, "labels": tokens}


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
    for _name in ("gpt2", "llama"):
        _MADE[_name] = functools.partial(language_model, _name, 2, 16, 2)

ALL = tuple(_MADE)


def made(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model and the keyword arguments of a call."""
    torch.manual_seed(0)
    return _MADE[name]()


def total(output: Any) -> Any:
    """Return a loss of any output."""
    loss = getattr(output, "loss", None)
    return output.float().mean() if loss is None else loss
