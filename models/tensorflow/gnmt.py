# SPDX-License-Identifier: Apache-2.0
"""GNMT (Wu et al. 2016), machine translation by stacked LSTM layers with attention (Paper 5).

The layers are unrolled into cells, so that every cell of every step can be placed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import keras
from keras import layers, ops

from models.tensorflow import batches


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
        return cls(vocabulary=20, hidden=8, length=3, dropout=0.0)


@keras.saving.register_keras_serializable("baechi")
class Attention(layers.Layer):
    """Bahdanau's: a mixture of the encoder's outputs, weighed by v . tanh(key + query)."""

    def __init__(self, hidden: int, **options: Any) -> None:
        super().__init__(**options)
        self.query = layers.Dense(hidden, use_bias=False, name="query")
        self.score = layers.Dense(1, use_bias=False, name="score")

    def call(self, state: Any, keys: Any, memory: Any, padding: Any) -> Any:
        """Return the mixture for each sentence of the batch."""
        energy = ops.tanh(keys + self.query(state)[:, None, :])
        weights = ops.softmax(self.score(energy)[:, :, 0] + padding)
        return ops.matmul(weights[:, None, :], memory)[:, 0, :]


@keras.saving.register_keras_serializable("baechi")
class Encoder(layers.Layer):
    """Embedding and layers of cells; residual connections from the third layer on."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(**options)
        self.embedding = layers.Embedding(config.vocabulary, config.hidden, name="embedding")
        self.reverse = (
            layers.LSTMCell(config.hidden, name="reverse") if config.bidirectional else None
        )
        self.cells = [
            layers.LSTMCell(config.hidden, name=f"cell_{index}") for index in range(config.layers)
        ]
        self.dropout = layers.Dropout(config.dropout, name="dropout")

    def call(self, source: Any, training: bool = False) -> list[Any]:
        """Return the last layer's output for every word."""
        xs: list[Any] = ops.unstack(self.dropout(self.embedding(source), training=training), axis=1)
        for layer, cell in enumerate(self.cells):
            outputs = _run(cell, xs)
            if layer == 0 and self.reverse is not None:
                backward = _run(self.reverse, xs[::-1])[::-1]
                outputs = [ops.concatenate(b, 1) for b in zip(outputs, backward, strict=True)]
            outputs = [self.dropout(y, training=training) for y in outputs]
            if layer >= 2:
                outputs = [y + x for y, x in zip(outputs, xs, strict=True)]
            xs = outputs
        return xs


def _run(cell: Any, inputs: list[Any]) -> list[Any]:
    state = cell.get_initial_state(ops.shape(inputs[0])[0])
    outputs = []
    for x in inputs:
        y, state = cell(x, state)
        outputs.append(y)
    return outputs


@keras.saving.register_keras_serializable("baechi")
class Decoder(layers.Layer):
    """Layers of cells that all read the attention's mixture, and the classifier of words."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(**options)
        self.embedding = layers.Embedding(config.vocabulary, config.hidden, name="embedding")
        self.keys = layers.Dense(config.hidden, use_bias=False, name="keys")
        self.attention = Attention(config.hidden, name="attention")
        self.cells = [
            layers.LSTMCell(config.hidden, name=f"cell_{index}") for index in range(config.layers)
        ]
        self.dropout = layers.Dropout(config.dropout, name="dropout")
        self.classifier = layers.Dense(config.vocabulary, name="classifier")

    def call(self, target: Any, encoded: list[Any], padding: Any, training: bool = False) -> Any:
        """Return the logits of every word."""
        memory = ops.stack(encoded, 1)
        keys = self.keys(memory)
        context = ops.zeros_like(encoded[0])
        states = [cell.get_initial_state(ops.shape(target)[0]) for cell in self.cells]
        logits = []
        for x in ops.unstack(self.dropout(self.embedding(target), training=training), axis=1):
            for layer, cell in enumerate(self.cells):
                y, states[layer] = cell(ops.concatenate([x, context], 1), states[layer])
                y = self.dropout(y, training=training)
                x = y + x if layer >= 2 else y
                if layer == 0:
                    context = self.attention(x, keys, memory, padding)
            logits.append(self.classifier(x))
        return ops.stack(logits, 1)


@keras.saving.register_keras_serializable("baechi")
class Gnmt(keras.Model):
    """Pairs of sentences to logits for each target word."""

    def __init__(self, config: Config | dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.config = config if isinstance(config, Config) else Config(**config)
        self.encoder = Encoder(self.config, name="encoder")
        self.decoder = Decoder(self.config, name="decoder")

    def call(self, sentences: Any, training: bool = False) -> Any:
        """Return the logits of every word of the target."""
        source, target = sentences
        padding = ops.cast(ops.equal(source, 0), "float32") * -1e9
        encoded = self.encoder(source, training=training)
        return self.decoder(target, encoded, padding, training=training)

    def get_config(self) -> dict[str, Any]:
        """Return what makes the same model again."""
        return {"config": asdict(self.config), "name": self.name}


def build(config: Config) -> keras.Model:
    """Pairs of sentences to logits."""
    return Gnmt(config, name="gnmt")


def inputs(config: Config, batch: int) -> tuple[Any, Any]:
    """Return pairs of sentences, and the targets one word later."""
    return batches.sentences(batch, config.length, config.vocabulary)
