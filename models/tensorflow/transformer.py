# SPDX-License-Identifier: Apache-2.0
"""Transformer base (Vaswani et al. 2017), machine translation by attention only (Paper 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from models.tensorflow import batches


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are the paper's."""

    vocabulary: int = 30_000
    width: int = 512
    feed_forward: int = 2048
    heads: int = 8
    layers: int = 6  # of the encoder, and of the decoder
    length: int = 50  # of source and target
    dropout: float = 0.1
    shared_embedding: bool = False  # one matrix for source, target and output; the paper has three

    @classmethod
    def small(cls) -> Config:
        """Return a model that trains in milliseconds."""
        return cls(
            vocabulary=20, width=8, feed_forward=16, heads=2, layers=1, length=4, dropout=0.0
        )


@keras.saving.register_keras_serializable("baechi")
class Block(layers.Layer):
    """Attention to itself, to the encoder's output if there is one, and two dense layers."""

    def __init__(self, config: Config, causal: bool, **options: Any) -> None:
        super().__init__(**options)
        self.causal = causal
        names = ["itself", "encoder"] if causal else ["itself"]
        self.attentions = [
            layers.MultiHeadAttention(config.heads, config.width // config.heads, name=name)
            for name in names
        ]
        self.wide = layers.Dense(config.feed_forward, activation="relu", name="wide")
        self.narrow = layers.Dense(config.width, name="narrow")
        self.norms = [
            layers.LayerNormalization(name=f"norm_{index}") for index in range(len(names) + 1)
        ]
        self.dropout = layers.Dropout(config.dropout, name="dropout")

    def call(self, x: Any, encoded: Any = None, training: bool = False) -> Any:
        """Return one vector per word."""
        for index, attention in enumerate(self.attentions):
            memory = x if index == 0 else encoded
            y = attention(x, memory, use_causal_mask=self.causal and index == 0)
            x = self.norms[index](x + self.dropout(y, training=training))
        y = self.narrow(self.wide(x))
        return self.norms[-1](x + self.dropout(y, training=training))


@keras.saving.register_keras_serializable("baechi")
class Transformer(keras.Model):
    """Pairs of sentences to logits for each target word."""

    def __init__(self, config: Config | dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.config = config = config if isinstance(config, Config) else Config(**config)
        self.embedding = layers.Embedding(config.vocabulary, config.width, name="embedding")
        if not config.shared_embedding:
            self.target_embedding = layers.Embedding(
                config.vocabulary, config.width, name="target_embedding"
            )
            self.classifier = layers.Dense(config.vocabulary, use_bias=False, name="classifier")
        self.encoder = [
            Block(config, False, name=f"encoder_{index}") for index in range(config.layers)
        ]
        self.decoder = [
            Block(config, True, name=f"decoder_{index}") for index in range(config.layers)
        ]
        self.dropout = layers.Dropout(config.dropout, name="dropout")

    def _embedded(self, embedding: Any, words: Any, training: bool) -> Any:
        x = embedding(words) * float(np.sqrt(self.config.width))
        return self.dropout(x + positions(self.config.length, self.config.width), training=training)

    def call(self, sentences: Any, training: bool = False) -> Any:
        """Return the logits of every word of the target."""
        source, target = sentences
        shared = self.config.shared_embedding
        x = self._embedded(self.embedding, source, training)
        for block in self.encoder:
            x = block(x, training=training)
        y = self._embedded(self.embedding if shared else self.target_embedding, target, training)
        for block in self.decoder:
            y = block(y, x, training=training)
        if shared:
            return ops.matmul(y, ops.transpose(self.embedding.embeddings))
        return self.classifier(y)

    def get_config(self) -> dict[str, Any]:
        """Return what makes the same model again."""
        return {"config": asdict(self.config), "name": self.name}


def positions(length: int, width: int) -> Any:
    """Return the sines and cosines that tell positions apart."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(width)[None, :] // 2 * 2 / width)
    return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)).astype("float32")


def build(config: Config) -> keras.Model:
    """Pairs of sentences to logits."""
    return Transformer(config, name="transformer")


def inputs(config: Config, batch: int) -> tuple[Any, Any]:
    """Return pairs of sentences, and the targets one word later."""
    return batches.sentences(batch, config.length, config.vocabulary)
