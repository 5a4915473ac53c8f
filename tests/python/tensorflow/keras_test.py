# SPDX-License-Identifier: Apache-2.0
"""What scripts do with a Keras model goes on working when the model is placed."""

from __future__ import annotations

from typing import Any

import baechi.tensorflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from baechi.tensorflow import _private_keras
from baechi.tensorflow.keras_model import ByName

import baechi

X = np.random.RandomState(0).randn(22, 6).astype("float32")
Y = np.random.RandomState(1).randint(0, 3, (22,))
SCATTERED: dict[str, Any] = {
    "cluster": "4x1GiB",
    "method": "random",
    "optimize": "none",
    "bounds": False,
}


def mlp(dropout: float = 0.3, **options: Any) -> Any:
    """Return the same compiled model every time: dropout, batch norm, two metrics."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", name="first"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(3, name="last"),
        ]
    )
    return compiled(model, **options)


def compiled(model: Any, **options: Any) -> Any:
    options = {"optimizer": "adam", "metrics": ["accuracy"], **options}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, **options)
    return model


def fit(model: Any, **options: Any) -> Any:
    return model.fit(X, Y, batch_size=8, verbose=0, shuffle=False, **options).history


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fit_evaluate_and_predict_give_the_same(seed: int) -> None:
    plain, model = mlp(), mlp()
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], seed=seed, **SCATTERED)
    assert len(set(placed.variable_devices.values())) == 4
    # 22 of batches of 8: the last one is smaller
    assert fit(model, epochs=2, validation_split=0.3) == fit(plain, epochs=2, validation_split=0.3)
    assert model.evaluate(X, Y, verbose=0) == plain.evaluate(X, Y, verbose=0)
    assert (model.predict(X, verbose=0) == plain.predict(X, verbose=0)).all()
    assert model.train_on_batch(X[:8], Y[:8]) == plain.train_on_batch(X[:8], Y[:8])
    placed.restore()
    assert fit(model) == fit(plain)
    assert model.evaluate(X, Y, verbose=0) == plain.evaluate(X, Y, verbose=0)


@pytest.mark.usefixtures("exact")
def test_several_steps_per_execution() -> None:
    plain, model = mlp(steps_per_execution=2), mlp(steps_per_execution=2)
    baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    assert fit(model, epochs=2) == fit(plain, epochs=2)


def test_with_rewritten_graphs_losses_agree_within_rounding() -> None:
    plain, model = mlp(), mlp()
    baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    found, expected = fit(model, epochs=3), fit(plain, epochs=3)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)


@pytest.mark.usefixtures("exact")
def test_save_and_load_while_placed(tmp_path: Any) -> None:
    model = mlp(dropout=0.0)  # Keras draws new seeds for a model that it loads
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    fit(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = model.predict(X, verbose=0)
    assert (loaded.predict(X, verbose=0) == expected).all()
    history = fit(model)
    assert fit(loaded) == history  # the optimizer's state came along
    where = placed.variable_devices
    model.load_weights(tmp_path / "model.weights.h5")
    assert placed.variable_devices == where
    assert (model.predict(X, verbose=0) == expected).all()
    # The loaded model can be placed as well, and goes on the same way.
    baechi.tensorflow.place(loaded, X[:8], Y[:8], seed=5, **SCATTERED)
    assert fit(loaded)["loss"] != history["loss"]


def test_functions_traced_before_are_made_again_or_fail() -> None:
    model = mlp()
    forward = tf.function(lambda x: model(x))
    expected = forward(X).numpy()
    assert model.predict(X, verbose=0) == pytest.approx(expected, abs=1e-6)
    model.evaluate(X, Y, verbose=0)
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    with pytest.raises(baechi.InputError, match="traced before"):
        forward(X)
    assert model.predict(X, verbose=0) == pytest.approx(expected, abs=1e-6)
    before = model.evaluate(X, Y, verbose=0)
    fit(model)
    assert model.evaluate(X, Y, verbose=0) != before
    placed.restore()
    forward(X)


def test_models_that_share_layers_say_what_to_do() -> None:
    def with_head(body: Any) -> Any:
        return compiled(keras.Sequential([keras.Input((6,)), body, keras.layers.Dense(3)]))

    body = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(8)])
    first, second = with_head(body), with_head(body)
    expected = second.predict(X, verbose=0)
    placed = baechi.tensorflow.place(first, X[:8], Y[:8], **SCATTERED)
    with pytest.raises(baechi.InputError, match="predict_function = None"):
        second.predict(X, verbose=0)
    with pytest.raises(baechi.InputError, match="is placed already"):
        baechi.tensorflow.place(second, X[:8], Y[:8], **{**SCATTERED, "seed": 9})
    second.predict_function = None
    assert second.predict(X, verbose=0) == pytest.approx(expected, abs=1e-6)
    placed.restore()
    second.predict_function = None
    assert second.predict(X, verbose=0) == pytest.approx(expected, abs=1e-6)


def test_evaluation_runs_where_training_does() -> None:
    model = mlp()
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    step = tf.function(lambda x, y: model.test_step((x, y)))
    graph = step.get_concrete_function(X, Y).graph
    found = {o.name: o.device for o in graph.get_operations() if o.type == "MatMul"}
    assert len(found) == 2
    for name, device in found.items():
        assert device == placed.device_of[name]
    assert len(set(found.values())) == 2


def test_names_that_training_does_not_have_go_to_their_layer() -> None:
    devices = ByName({"m/a/x": "0", "m/a/y": "1", "m/a/z": "1", "m/b/x": "2", "m/c": "3"})
    assert devices("m/b/x") == "2"
    assert devices("m/a/new") == "1"
    assert devices("m/b/deeper/new") == "2"
    assert devices("m/d/new") is None
    assert devices("new") is None


def test_batches_of_another_structure_are_refused() -> None:
    model = mlp()
    baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    with pytest.raises(ValueError, match="sample weights included"):
        model.fit(X, Y, batch_size=8, verbose=0, sample_weight=np.ones(22))


@pytest.mark.usefixtures("exact")
def test_sample_weights_and_datasets() -> None:
    weights = np.linspace(0, 1, 22).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(8)
    plain, model = mlp(), mlp()
    baechi.tensorflow.place(model, data, batch=8, **SCATTERED)
    history = model.fit(data, verbose=0, shuffle=False).history
    assert history == plain.fit(data, verbose=0, shuffle=False).history


def test_compiling_again_asks_to_place_again() -> None:
    model = mlp()
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    compiled(model, optimizer="sgd")
    with pytest.raises(baechi.InputError, match="place it anew"):
        fit(model)
    placed.restore()
    fit(model)


def test_the_gradient_barrier_is_only_gone_while_tracing() -> None:
    model = mlp()
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda: model.optimizer.apply(list(model.trainable_variables)))
    kinds = {o.type for o in step.get_concrete_function().graph.get_operations()}
    assert "IdentityN" in kinds
    with _private_keras.no_gradient_barrier():
        step = tf.function(lambda: model.optimizer.apply(list(model.trainable_variables)))
        kinds = {o.type for o in step.get_concrete_function().graph.get_operations()}
    assert "IdentityN" not in kinds
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    assert "IdentityN" not in {
        o.type for o in placed.function.graph.get_operations() if len(o.outputs) > 2
    }


def test_what_cannot_be_placed_is_said_in_a_sentence() -> None:
    def refused(model: Any, *words: str) -> None:
        with pytest.raises(baechi.InputError) as error:
            baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
        text = str(error.value)
        assert "\n" not in text
        for word in words:
            assert word in text, text

    refused(keras.Sequential([keras.layers.Dense(3)]), "model.compile")
    refused(mlp(jit_compile=True), "jit_compile=False")
    refused(mlp(run_eagerly=True), "run_eagerly=False")
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        distributed = mlp()
    refused(distributed, "outside of strategy.scope()")
    frozen = mlp()
    frozen.trainable = False
    refused(frozen, "trainable=True")

    class Unbuildable(keras.Model):
        def call(self, x: Any) -> Any:
            if not tf.executing_eagerly():
                raise TypeError("needs numbers")
            return x

    refused(compiled(Unbuildable()), "RuntimeError", "model(x)")
    with pytest.raises(baechi.InputError, match=r"place\(model, x, y\)"):
        baechi.tensorflow.place(mlp(), cluster="4x1GiB")
    with pytest.raises(baechi.DoesNotFit):
        baechi.tensorflow.place(mlp(), X, Y, cluster="2x1KiB")


def test_a_model_that_no_batch_has_built_yet_is_built_from_it() -> None:
    model = compiled(keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)]))
    assert not model.built
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    assert placed.check()
    fit(model)


def test_a_placed_model_is_not_placed_again() -> None:
    model = mlp()
    placed = baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    with pytest.raises(baechi.InputError, match="restore"):
        baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    placed.restore()
    baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)


def two_inputs() -> Any:
    """Words and numbers by name -> embedding, unrolled LSTM, shared layer -> two outputs."""
    keras.utils.set_random_seed(4)
    words = keras.Input((3,), dtype="int32", name="words")
    numbers = keras.Input((4,), name="numbers")
    read = keras.layers.LSTM(4, unroll=True)(keras.layers.Embedding(9, 4)(words))
    shared = keras.layers.Dense(4, activation="tanh", name="shared")
    both = keras.layers.Concatenate()([shared(read), shared(numbers)])
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(both),
        "size": keras.layers.Dense(1, name="size")(both),
    }
    model = keras.Model({"words": words, "numbers": numbers}, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss={
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": "mse",
        },
        jit_compile=False,
    )
    return model


@pytest.mark.usefixtures("exact")
def test_dictionaries_shared_layers_and_callbacks(tmp_path: Any) -> None:
    x = {"words": np.arange(30).reshape(10, 3) % 9, "numbers": np.ones((10, 4), "float32")}
    y = {"kind": np.arange(10) % 3, "size": np.linspace(0, 1, 10).astype("float32")[:, None]}

    def history(model: Any, name: str) -> Any:
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch)),
            keras.callbacks.ModelCheckpoint(tmp_path / name, save_weights_only=True),
            keras.callbacks.EarlyStopping(monitor="loss"),
        ]
        return model.fit(
            x, y, batch_size=4, epochs=3, verbose=0, shuffle=False, callbacks=callbacks
        ).history

    plain, model = two_inputs(), two_inputs()
    baechi.tensorflow.place(model, x, y, **SCATTERED)
    assert history(model, "a.weights.h5") == history(plain, "b.weights.h5")
    restored = two_inputs()
    restored.optimizer.build(restored.trainable_variables)
    restored.load_weights(tmp_path / "a.weights.h5")
    expected = plain.predict(x, verbose=0)
    for name, values in restored.predict(x, verbose=0).items():
        assert (values == expected[name]).all()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        plain, model = mlp(), mlp()
    finally:
        keras.config.set_dtype_policy("float32")
    baechi.tensorflow.place(model, X[:8], Y[:8], **SCATTERED)
    assert fit(model) == fit(plain)


def two_of_each() -> Any:
    """Two inputs and two outputs, as lists."""
    keras.utils.set_random_seed(5)
    inputs = [keras.Input((6,)), keras.Input((6,))]
    both = keras.layers.Concatenate()([keras.layers.Dense(4)(one) for one in inputs])
    outputs = [keras.layers.Dense(3, name="kind")(both), keras.layers.Dense(1, name="size")(both)]
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=[loss, "mse"], jit_compile=False)
    return model


@pytest.mark.usefixtures("exact")
def test_lists_of_inputs_and_outputs() -> None:
    x, y = [X, 2 * X], [Y, X[:, :1]]
    plain, model = two_of_each(), two_of_each()
    baechi.tensorflow.place(model, [X[:8], X[:8]], [Y[:8], X[:8, :1]], **SCATTERED)
    options = {"batch_size": 8, "verbose": 0, "shuffle": False}
    assert model.fit(x, y, **options).history == plain.fit(x, y, **options).history


@pytest.mark.usefixtures("exact")
def test_a_recurrent_layer_with_a_loop_is_one_operator() -> None:
    def model() -> Any:
        keras.utils.set_random_seed(6)
        layers = [keras.Input((3, 2)), keras.layers.LSTM(4), keras.layers.Dense(3)]
        return compiled(keras.Sequential(layers))

    x = X.reshape(22, 3, 2)
    plain, placed_one = model(), model()
    with pytest.warns(UserWarning, match="unroll"):
        baechi.tensorflow.place(placed_one, x[:8], Y[:8], **SCATTERED)
    options = {"batch_size": 8, "verbose": 0, "shuffle": False}
    assert placed_one.fit(x, Y, **options).history == plain.fit(x, Y, **options).history
