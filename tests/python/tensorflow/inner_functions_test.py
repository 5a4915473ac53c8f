# SPDX-License-Identifier: Apache-2.0
"""Functions that a step calls are TensorFlow's own: signatures, seeds, variables and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import baechi.tensorflow
import numpy as np
import pytest
import tensorflow as tf

import baechi
from tests.python.tensorflow.linear_module import FULL

X = tf.constant([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]])
SCATTERED: dict[str, Any] = {
    "cluster": "4x1GiB",
    "method": "random",
    "optimize": "none",
    "bounds": False,
}
pytestmark = pytest.mark.usefixtures("exact")


def runs(make: Callable[[], Any], count: int = 3) -> tuple[list[Any], list[Any]]:
    """Return what a step gives as TensorFlow runs it and placed: both made anew."""
    found = []
    for placed in (False, True):
        tf.random.set_seed(7)
        step = make()
        run = baechi.tensorflow.place(step, X, **SCATTERED) if placed else tf.function(step)
        tf.random.set_seed(7)
        found.append([run(X).numpy().tolist() for _ in range(count)])
    return found[0], found[1]


def test_values_become_what_the_input_signature_says() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def norm(v: Any) -> Any:
        return tf.norm(v * 2)  # of a list: four numbers

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def product(a: Any) -> Any:
        return tf.cast(a * 2_000_000_000, tf.float64)  # wraps

    def step(x: Any) -> Any:
        return tf.cast(norm([1.0, 2.0]) + 0 * tf.reduce_sum(x), tf.float64) + product(5)

    plain, placed = runs(lambda: step)
    assert placed == plain
    assert plain[0] == pytest.approx(20**0.5 + 1410065408)


def test_the_input_signature_of_the_step_itself_holds() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def norm(v: Any) -> Any:
        return tf.norm(v * 2)

    placed = baechi.tensorflow.place(norm, [1.0, 2.0], **SCATTERED)
    assert placed([3.0, 4.0]).numpy() == 10


def test_numpy_arguments_stay_as_they_are() -> None:
    table = np.ones(3, np.float32)

    @tf.function
    def called(values: Any) -> Any:
        values += 1.0
        return tf.reduce_sum(values)

    plain, placed = runs(lambda: lambda x: called(table) + 0 * tf.reduce_sum(x))
    assert placed == plain == [6.0] * 3
    assert table.tolist() == [1, 1, 1]


def test_random_numbers_are_those_of_the_called_functions() -> None:
    @tf.function
    def noise(x: Any) -> Any:
        return x + tf.random.normal((3,)) + tf.random.uniform((3,), seed=3)

    def step(x: Any) -> Any:
        return tf.stack([tf.random.normal((2, 3)), noise(x), noise(x), tf.nn.dropout(x, 0.5)])

    plain, placed = runs(lambda: step)
    assert placed == plain
    assert plain[0] != plain[1]


@pytest.mark.parametrize("inner", [False, True])
def test_variables_may_be_made_by_the_first_call(inner: bool) -> None:
    def make() -> Any:
        module = tf.Module()
        module.weight = None

        @tf.function
        def relu(x: Any) -> Any:
            if inner and module.weight is None:
                module.weight = tf.Variable(tf.ones((3, 2)))
            if tf.reduce_sum(x) < 0:  # tensors decide: AutoGraph converts it
                x = -x
            return x

        @tf.function
        def step(x: Any) -> Any:
            x = relu(x)
            if module.weight is None:
                module.weight = tf.Variable(tf.ones((3, 2)))
            module.weight.assign_add(tf.ones((3, 2)) * 0.1)
            return tf.reduce_sum(tf.matmul(x, module.weight))

        return step

    plain, placed = runs(make)
    assert placed == plain
    assert len(set(plain)) == 3


def test_a_step_is_traced_once() -> None:
    traces = []

    @tf.function
    def called(x: Any) -> Any:
        for _ in tf.range(2):
            x = x + 1.0
        return x

    def step(x: Any) -> Any:
        traces.append(x)
        return tf.reduce_sum(called(x))

    with pytest.warns(UserWarning, match="placed as one operator"):
        baechi.tensorflow.place(step, X, **SCATTERED)
    assert len(traces) == 1


def test_an_argument_that_is_not_used_may_have_an_open_size() -> None:
    @tf.function
    def called(x: Any) -> Any:
        return tf.reduce_sum(x * 2.0)

    specs = [tf.TensorSpec((None, 3)), tf.TensorSpec((None, 5))]
    placed = baechi.tensorflow.place(lambda x, _: called(x), *specs, batch=2, **SCATTERED)
    assert placed(X, tf.ones((2, 5))).numpy() == -0.5


def test_devices_that_the_program_asks_for_are_kept() -> None:
    weight = tf.Variable(tf.eye(3))

    @tf.function
    def called(x: Any) -> Any:
        return tf.tanh(x, name="called_tanh")

    def step(x: Any) -> Any:
        with tf.device("CPU:3"):
            x = tf.tanh(tf.matmul(x, weight), name="asked")
            x = called(x)
        return tf.reduce_sum(x)

    expected = tf.function(step)(X).numpy()
    for method in ("m-etf", "single", "random"):
        options = {**SCATTERED, "method": method}
        placed = baechi.tensorflow.place(step, X, **options)
        found = {n: d for n, d in placed.device_of.items() if n.endswith(("asked", "_tanh"))}
        assert list(found.values()) == [FULL.format(3)] * 2
        assert placed(X).numpy() == expected
        placed.restore()


def test_devices_asked_for_are_those_of_the_same_number_where_the_cluster_is_elsewhere() -> None:
    def step(x: Any) -> Any:
        with tf.device("GPU:3"):
            return tf.tanh(x, name="asked")

    plan = baechi.tensorflow.plan(step, X, cluster="16xv100")
    assert plan.device_of["asked"] == "v100:3"


def test_devices_besides_those_of_the_cluster_are_kept_too() -> None:
    def step(x: Any) -> Any:
        with tf.device("CPU:3"):
            x = tf.tanh(x, name="asked")
        return tf.reduce_sum(x)

    placed = baechi.tensorflow.place(step, X, cluster="2x1GiB", method="m-etf")
    assert placed.device_of["asked"] == FULL.format(3)
    assert placed.device_of["Sum"] != FULL.format(3)
    assert placed.check()

    def elsewhere(x: Any) -> Any:
        with tf.device("GPU:7"):
            return tf.tanh(x, name="asked")

    with pytest.raises(baechi.InputError, match=r"operation 'asked' asks for its device.*GPU:7"):
        baechi.tensorflow.place(elsewhere, X, cluster="2x1GiB", method="m-etf")


@pytest.mark.parametrize("method", ["m-topo", "m-etf", "m-sct", "balanced", "random"])
def test_what_is_colocated_with_an_argument_can_be_elsewhere(method: str) -> None:
    weights = [tf.Variable(tf.eye(3)) for _ in range(4)]

    def step(x: Any) -> Any:
        x = tf.debugging.assert_all_finite(x, "not finite")
        return tf.reduce_sum(tf.add_n([tf.matmul(x, weight) for weight in weights]))

    placed = baechi.tensorflow.place(step, X, **{**SCATTERED, "method": method})
    assert placed(X).numpy() == -1
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        placed(X / 0.0)


def test_a_concrete_function_keeps_its_colocation() -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tf.debugging.assert_all_finite(x, "not finite")

    concrete = step.get_concrete_function(X)
    before = concrete.graph.as_graph_def()
    placed = baechi.tensorflow.place(concrete, **SCATTERED)
    assert placed.check()
    placed.restore()
    assert concrete.graph.as_graph_def() == before


def test_sparse_arguments_are_looked_up() -> None:
    table = tf.Variable(tf.reshape(tf.range(80.0), (20, 4)))
    ids = tf.constant([1, 2, 3], tf.int64)
    sparse = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], ids, [2, 2])

    def step(words: Any) -> Any:
        return tf.nn.embedding_lookup_sparse(table, words, None, combiner="mean")

    expected = step(sparse).numpy()
    placed = baechi.tensorflow.place(step, sparse, **SCATTERED)
    assert (placed(sparse).numpy() == expected).all()
    assert table.device != FULL.format(0)
