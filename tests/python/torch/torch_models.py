# SPDX-License-Identifier: Apache-2.0
"""Small models of the shapes that matter, each with inputs and a batch of another size."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from baechi.torch.trace.exported import export
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions and a shortcut; the activation and the sum are in place."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride) if inside != outside else None
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.activation(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Inception(nn.Module):
    """Branches that meet in `torch.cat`, and an output that is a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.point = nn.ModuleList(nn.Conv2d(c, 8, 1) for c in (8, 24))
        self.wide = nn.ModuleList(nn.Conv2d(c, 8, 3, padding=1) for c in (8, 24))
        self.wider = nn.ModuleList(nn.Conv2d(c, 8, 5, padding=2) for c in (8, 24))
        self.side_head = nn.Linear(24, 10)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.relu(self.stem(x))
        side = None
        for point, wide, wider in zip(self.point, self.wide, self.wider, strict=True):
            pooled = functional.max_pool2d(x, 3, 1, 1)
            x = torch.cat([point(x), functional.relu(wide(x)), wider(pooled)], dim=1)
            side = x if side is None else side
        assert side is not None
        return {"side": self.side_head(side.mean((2, 3))), "main": self.head(x.mean((2, 3)))}


class UNet(nn.Module):
    """Long skips from the way down to the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 1, 1)])
        self.bottom = nn.Conv2d(16, 16, 3, 1, 1)
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(8, 8, 2, 2)]
        )
        self.up = nn.ModuleList([nn.Conv2d(32, 8, 3, 1, 1), nn.Conv2d(16, 8, 3, 1, 1)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.down:
            x = functional.leaky_relu(down(x), inplace=True)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        x = torch.tanh(self.bottom(x))
        for rise, up in zip(self.rise, self.up, strict=True):
            x = torch.relu_(up(torch.cat([rise(x), skips.pop()], dim=1)))
        return self.head(x)


class Attention(nn.Module):
    """Additive attention with a bare parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Parameter(torch.randn(width) / width)

    def forward(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        energy = torch.tanh(self.query(query).unsqueeze(1) + self.key(keys)) @ self.score
        return (torch.softmax(energy, 1).unsqueeze(2) * keys).sum(1)


class Translation(nn.Module):
    """A recurrent encoder and decoder: cells called in a loop, tied weights, keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.encoder = nn.LSTM(16, 16, num_layers=2, batch_first=True)
        self.cells = nn.ModuleList([nn.LSTMCell(32, 16), nn.LSTMCell(16, 16)])
        self.attention = Attention(16)
        self.output = nn.Linear(16, 40, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: torch.Tensor, *, target: torch.Tensor) -> torch.Tensor:
        keys, (hidden, cell) = self.encoder(self.embedding(source))
        states = [(hidden[i], cell[i]) for i in range(2)]
        logits = []
        for token in self.embedding(target).unbind(1):
            context = self.attention(states[1][0], keys)
            states[0] = self.cells[0](torch.cat([token, context], 1), states[0])
            states[1] = self.cells[1](states[0][0], states[1])
            logits.append(self.output(states[1][0]))
        return torch.stack(logits, 1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.position = nn.Parameter(torch.randn(1, 12, 16) / 4)
        self.core = nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True)
        self.output = nn.Linear(16, 40, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        source = self.embedding(source) + self.position[:, : source.shape[1]]
        target = self.embedding(target) + self.position[:, : target.shape[1]]
        return self.output(self.core(source, target, tgt_mask=mask))


class Turns(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.positive = nn.Linear(8, 8)
        self.negative = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if x.sum() > 0:
            return self.positive(y) * y
        return torch.sigmoid(self.negative(y)) - y


@dataclass
class Case:
    """A model under test."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]  # by batch size


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 40, (batch, length), generator=torch.Generator().manual_seed(seed))


def images(batch: int, size: int = 16) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch))


def _turns(batch: int) -> torch.Tensor:  # one size goes the one way, the other the other
    return torch.full((batch, 8), 0.1 if batch % 2 == 0 else -0.1)


CASES = {
    "resnet": Case(ResNet, images),
    "inception": Case(Inception, images),
    "unet": Case(UNet, images),
    "lstm": Case(Translation, lambda n: {"source": tokens(n, 6), "target": tokens(n, 4, 2)}),
    "transformer": Case(Transformer, lambda n: (tokens(n, 6), tokens(n, 5, 2))),
    "turns": Case(Turns, _turns),
}


def _causal(batch: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(batch, 8), "labels": tokens(batch, 8)}


_BLOCKS = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_WORDS = {**_BLOCKS, "vocab_size": 40, "max_position_embeddings": 16}
_PICTURES = {**_BLOCKS, "image_size": 16, "patch_size": 8}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GPT2 = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
_T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
_WHISPER = {
    "vocab_size": 40,
    "num_mel_bins": 8,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_source_positions": 8,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _configured(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return what builds a model of transformers from a configuration."""

    def build() -> nn.Module:
        transformers = importlib.import_module("transformers")
        built: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return built

    return build


def _sounds(batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    features = torch.randn(batch, 8, 16, generator=generator)
    return {"input_features": features, "labels": tokens(batch, 6)}


def _pictures_and_words(batch: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch, 8), "pixel_values": images(batch), "return_loss": True}


def _classes(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": images(batch), "labels": tokens(batch, 1).flatten() % 4}


@functools.cache
def exported(name: str) -> Any:
    """Return the graph of a model in training, traced once: it names weights and holds none."""
    case = CASES.get(name) or TRANSFORMERS[name]
    torch.manual_seed(7)
    return export(case.build(), case.inputs(2))


TRANSFORMERS = {
    "gpt2": Case(
        _configured(
            "GPT2LMHeadModel",
            "GPT2Config",
            **_GPT2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        _causal,
    ),
    "llama": Case(
        _configured("LlamaForCausalLM", "LlamaConfig", **_WORDS, num_key_value_heads=1), _causal
    ),
    "t5": Case(
        _configured(
            "T5ForConditionalGeneration",
            "T5Config",
            **_T5,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        ),
        _causal,
    ),
    "bert": Case(
        _configured("BertForMaskedLM", "BertConfig", **_WORDS, **_NO_DROPOUT),
        lambda n: {**_causal(n), "attention_mask": torch.ones(n, 8).long()},
    ),
    "vit": Case(
        _configured(
            "ViTForImageClassification", "ViTConfig", **_PICTURES, **_NO_DROPOUT, num_labels=4
        ),
        _classes,
    ),
    "mixtral": Case(
        _configured(
            "MixtralForCausalLM",
            "MixtralConfig",
            **_WORDS,
            num_key_value_heads=1,
            num_local_experts=3,
        ),
        _causal,
    ),
    "clip": Case(
        _configured(
            "CLIPModel",
            "CLIPConfig",
            text_config={**_WORDS, "eos_token_id": 2},
            vision_config=_PICTURES,
            projection_dim=8,
        ),
        _pictures_and_words,
    ),
    "whisper": Case(
        _configured("WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER, dropout=0.0),
        _sounds,
    ),
}

ALL = {**CASES, **(TRANSFORMERS if importlib.util.find_spec("transformers") else {})}


def built(case: Case) -> Any:
    torch.manual_seed(7)
    return case.build()


def deep() -> Any:
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(12)))
