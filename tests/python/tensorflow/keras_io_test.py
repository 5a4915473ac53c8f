# SPDX-License-Identifier: Apache-2.0
"""Programs as Keras' documentation has them: placed with what fit gets, they train the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import baechi.tensorflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from baechi.tensorflow.feeding import feed_of
from keras import layers

import baechi
from tests.python.tensorflow.linear_module import FULL

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((22, 8, 8, 1)).astype("float32")
ROWS = RANDOM.normal(size=(22, 6))  # float64, as NumPy makes them
LABELS = RANDOM.integers(0, 3, 22)
SCATTERED: dict[str, Any] = {
    "cluster": "4x1GiB",
    "method": "random",
    "optimize": "none",
    "bounds": False,
}
pytestmark = pytest.mark.usefixtures("exact")
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trains_the_same(
    make: Callable[[], Any],
    feed: Callable[[], tuple[Any, ...]],
    *batch: Any,
    held_out: tuple[Any, ...] | None = None,
    fit: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Fit a model as it is and placed, and compare all that comes out; return what was placed."""
    found, placed = [], None
    for mode in ("plain", "placed"):
        keras.utils.set_random_seed(3)
        model = make()
        if mode == "placed":
            placed = baechi.tensorflow.place(model, *(batch or feed()), **{**SCATTERED, **options})
        tf.random.set_seed(5)
        choices = {"epochs": 2, "verbose": 0, "shuffle": False, **(fit or {})}
        history = model.fit(*feed(), **choices).history
        results = model.evaluate(*held_out, verbose=0) if held_out else None
        found.append((history, results, [w.numpy() for w in model.weights]))
    assert placed is not None
    assert placed.check()
    assert len(set(placed.variable_devices.values())) > 1
    (history, results, weights), (our_history, our_results, our_weights) = found
    assert our_history == history
    assert our_results == results
    for ours, theirs in zip(our_weights, weights, strict=True):
        assert (ours == theirs).all()
    placed.restore()
    return placed


def convnet() -> Any:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def mlp() -> Any:
    model = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(3)])
    model.compile("adam", CROSSENTROPY, metrics=["accuracy"])
    return model


def rows(shuffled: bool = False) -> Any:
    data = tf.data.Dataset.from_tensor_slices((ROWS.astype("float32"), LABELS))
    return (data.shuffle(22, seed=1) if shuffled else data).batch(8)


def test_a_convnet_with_a_validation_split() -> None:
    trains_the_same(
        convnet,
        lambda: (IMAGES, LABELS),
        IMAGES[:8],
        LABELS[:8],
        held_out=(IMAGES, LABELS),
        fit={"batch_size": 8, "validation_split": 0.3},
    )


class Sampling(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs: Any) -> Any:
        mean, deviation = inputs
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed)
        return mean + keras.ops.exp(0.5 * deviation) * noise


class VAE(keras.Model):
    """Encoder and decoder; it has a training step, and no call."""

    def __init__(self) -> None:
        super().__init__()
        images = keras.Input((8, 8, 1))
        hidden = layers.Dense(8, activation="relu")(layers.Flatten()(images))
        mean, deviation = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
        code = Sampling()([mean, deviation])
        self.encoder = keras.Model(images, [mean, deviation, code])
        shown = layers.Dense(64, activation="sigmoid")(code_input := keras.Input((2,)))
        self.decoder = keras.Model(code_input, layers.Reshape((8, 8, 1))(shown))
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker]

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, deviation, code = self.encoder(data)
            shown = self.decoder(code)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(data, shown)) - 0.5 * (
                tf.reduce_mean(1 + deviation - tf.square(mean) - tf.exp(deviation))
            )
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def test_a_vae_without_call() -> None:
    def make() -> Any:
        model = VAE()
        model.compile(optimizer=keras.optimizers.Adam())
        return model

    trains_the_same(make, lambda: (IMAGES,), IMAGES[:8], fit={"batch_size": 8})


class GAN(keras.Model):
    """A discriminator and a generator with an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = keras.Sequential([layers.Flatten(), layers.Dense(4), layers.Dense(1)])
        self.generator = keras.Sequential([layers.Dense(64), layers.Reshape((8, 8, 1))])
        self.seed = keras.random.SeedGenerator(1)

    def compile(self, first: Any, second: Any, loss: Any) -> None:
        super().compile()
        self.first, self.second, self.score = first, second, loss

    def train_step(self, real: Any) -> Any:
        size = tf.shape(real)[0]
        noise = keras.random.normal((size, 4), seed=self.seed)
        both = tf.concat([self.generator(noise), real], axis=0)
        truth = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            first = self.score(truth, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(first, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise))
            second = self.score(tf.zeros((size, 1)), made)
        weights = self.generator.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(second, weights), weights, strict=True))
        return {"d_loss": first, "g_loss": second}


def test_a_gan_whose_step_makes_its_variables() -> None:
    def make() -> Any:
        model: Any = GAN()
        optimizers = [keras.optimizers.Adam(0.01) for _ in range(2)]
        model.compile(*optimizers, keras.losses.BinaryCrossentropy(from_logits=True))
        return model

    data = tf.data.Dataset.from_tensor_slices(IMAGES).batch(8)
    trains_the_same(make, lambda: (data,))


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_dataset_that_fit_gets_says_the_sizes_and_is_not_used_up(shuffled: bool) -> None:
    model = mlp()
    captured = baechi.tensorflow.capture(model, rows())
    assert captured.batch == 8
    trains_the_same(mlp, lambda: (rows(shuffled),))


def test_looking_at_a_shuffled_dataset_changes_no_order() -> None:
    orders = []
    for look in (False, True):
        tf.random.set_seed(2)
        data = tf.data.Dataset.range(20).shuffle(20).batch(4)
        if look:
            assert int(feed_of((data,)).batch_size or 0) == 4
        orders.append([batch.numpy().tolist() for _ in range(2) for batch in data])
    assert orders[0] == orders[1]
    assert orders[0][:5] != orders[0][5:]


def test_sentences_of_any_length() -> None:
    lengths = RANDOM.integers(2, 7, 22)

    def make() -> Any:
        model = keras.Sequential(
            [
                keras.Input((None,), dtype="int64"),
                layers.Embedding(9, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            ]
        )
        model.compile("adam", CROSSENTROPY)
        return model

    def words(index: Any) -> Any:
        return tf.range(tf.gather(lengths, index)) % 9, tf.gather(LABELS, index)

    data = tf.data.Dataset.range(22).map(words).padded_batch(8)
    placed = trains_the_same(make, lambda: (data,))
    assert placed.plan.graph["data"].outputs == [8 * 8 * int(lengths[:8].max())]


class Bag(keras.Model):
    """Words of ragged or sparse sentences -> mean of their vectors -> Dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.add_weight(shape=(9, 4), name="table")
        self.last = layers.Dense(3)

    def call(self, words: Any) -> Any:
        if isinstance(words, tf.RaggedTensor):
            vectors = tf.ragged.map_flat_values(tf.gather, tf.convert_to_tensor(self.table), words)
            return self.last(tf.reduce_mean(vectors, axis=1))
        return self.last(
            tf.nn.embedding_lookup_sparse(self.table.value, words, None, combiner="mean")
        )


def test_attention_whose_gradients_have_no_known_rank() -> None:
    def translator() -> Any:
        source = keras.Input((7,), dtype="int32", name="source")
        target = keras.Input((5,), dtype="int32", name="target")
        embedding = layers.Embedding(20, 8, mask_zero=True)
        read, *state = layers.LSTM(8, return_sequences=True, return_state=True)(embedding(source))
        said = layers.LSTM(8, return_sequences=True)(embedding(target), initial_state=state)
        looked_at = layers.AdditiveAttention()([said, read])
        scores = layers.Dense(20)(layers.Concatenate()([said, looked_at]))
        model = keras.Model([source, target], scores)
        model.compile(keras.optimizers.RMSprop(0.01), CROSSENTROPY, metrics=["accuracy"])
        return model

    tokens = RANDOM.integers(1, 20, (22, 12)).astype("int32")
    texts = {"source": tokens[:, :7], "target": tokens[:, 7:]}
    loops, rank = "loops are placed", "whose rank is unknown until the step runs"
    with pytest.warns(UserWarning, match=loops), pytest.warns(UserWarning, match=rank):
        trains_the_same(translator, lambda: (texts, tokens[:, 7:]), fit={"batch_size": 22})


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_sentences(kind: str) -> None:
    sentences = [[int(w) for w in RANDOM.integers(0, 9, 1 + i % 4)] for i in range(22)]
    words: Any = tf.ragged.constant(sentences, dtype=tf.int64)
    if kind == "sparse":
        words = words.to_sparse()

    def make() -> Any:
        model = Bag()
        model.compile("adam", CROSSENTROPY)
        return model

    data = tf.data.Dataset.from_tensor_slices((words, LABELS)).batch(8)
    trains_the_same(make, lambda: (data,), held_out=(data,))


def test_functional_model_of_sparse_rows() -> None:
    def make() -> Any:
        sparse = keras.Input((6,), sparse=True)
        dense = keras.Input((6,))
        both = layers.Concatenate()([layers.Dense(4)(sparse), layers.Dense(4)(dense)])
        model = keras.Model([sparse, dense], layers.Dense(3)(both))
        model.compile("adam", CROSSENTROPY)
        return model

    sparse = tf.sparse.from_dense(np.where(ROWS > 0, ROWS, 0).astype("float32"))
    data = tf.data.Dataset.from_tensor_slices(((sparse, ROWS.astype("float32")), LABELS)).batch(8)
    trains_the_same(make, lambda: (data,))


@pytest.mark.parametrize("as_dataset", [False, True])
def test_class_weights(as_dataset: bool) -> None:
    weights = {0: 1.0, 1: 0.5, 2: 3.0}
    fit: dict[str, Any] = {"class_weight": weights}
    if as_dataset:
        trains_the_same(mlp, lambda: (rows(),), fit=fit, class_weight=weights)
        return
    batch = (ROWS[:8], LABELS[:8])
    fit["batch_size"] = 8
    trains_the_same(mlp, lambda: (ROWS, LABELS), *batch, fit=fit, class_weight=weights)
    with pytest.raises(baechi.InputError, match="what fit of a Keras model takes"):
        baechi.tensorflow.place(lambda x: x, ROWS, class_weight=weights)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        part = slice(8 * index, 8 * index + 8)
        return ROWS[part], LABELS[part]


def test_a_pydataset_and_a_generator() -> None:
    weights = {0: 2.0, 1: 1.0, 2: 1.0}
    fit = {"class_weight": weights}
    trains_the_same(mlp, lambda: (Batches(workers=2),), fit=fit, class_weight=weights)
    with pytest.warns(UserWarning, match=r"2 batches of the generator.*make it anew"):
        trains_the_same(
            mlp,
            lambda: ((Batches()[i % 3] for i in range(6)),),
            fit={"steps_per_epoch": 3},
        )


def test_a_generator_that_is_used_up_is_refused() -> None:
    with pytest.raises(baechi.InputError, match="the generator gives no batch"):
        baechi.tensorflow.place(mlp(), (Batches()[i] for i in range(0)), **SCATTERED)
    with pytest.warns(UserWarning, match="1 batch of the generator was taken"):
        baechi.tensorflow.plan(mlp(), (Batches()[i] for i in range(1)), **SCATTERED)


def test_a_function_of_ragged_sentences() -> None:
    table = tf.Variable(RANDOM.normal(size=(9, 4)))

    def total(words: Any) -> Any:
        vectors = tf.ragged.map_flat_values(tf.gather, table, words)
        return tf.reduce_sum(tf.reduce_mean(vectors, axis=1))

    spec = tf.RaggedTensorSpec([None, None], tf.int64)
    placed = baechi.tensorflow.place(total, spec, batch=8, **SCATTERED)
    for sentences in ([[1], [2, 3, 4]], [[5, 6], [7], [8, 1, 2, 3]]):
        words = tf.ragged.constant(sentences, dtype=tf.int64)
        assert float(placed(words)) == float(total(words))


def test_specs_say_what_fit_feeds() -> None:
    specs = (tf.TensorSpec((None, 6)), tf.TensorSpec((None,), tf.int64))
    trains_the_same(mlp, lambda: (rows(),), *specs, batch=8)


def test_variables_are_no_arguments() -> None:
    for variable in (tf.Variable(tf.eye(6), name="w"), keras.Variable(np.eye(6), name="w")):
        with pytest.raises(baechi.InputError, match=r"'w.*' is a variable.*from outside"):
            baechi.tensorflow.place(lambda x, w: x @ w, ROWS, variable, cluster="2x1GiB")


def test_what_fit_cannot_trace_is_said_in_a_sentence() -> None:
    class Broken(keras.Model):
        def train_step(self, _: Any) -> Any:
            raise KeyError("words")

    model = Broken()
    model.compile("adam")
    with pytest.raises(baechi.InputError, match=r"KeyError: 'words'.*train_on_batch") as error:
        baechi.tensorflow.place(model, ROWS, LABELS, **SCATTERED)
    assert "\n" not in str(error.value)


def test_the_cpus_of_a_machine_are_a_cluster_of_cpus() -> None:
    placed = baechi.tensorflow.place(mlp(), rows())
    assert placed.plan is not None
    assert {device.kind for device in placed.plan.cluster.devices} == {"cpu"}
    assert placed.plan.graph.device_kinds == ["cpu"]
    assert set(placed.device_of.values()) <= {FULL.format(i) for i in range(4)}
