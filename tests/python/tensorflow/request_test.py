# SPDX-License-Identifier: Apache-2.0
"""What Keras users are told of wrong arguments: the argument, the value, and what would do."""

from __future__ import annotations

import traceback
from typing import Any

import baechi.tensorflow
import keras
import numpy
import pytest
import tensorflow as tf

from baechi import DoesNotFit, InputError

X = numpy.ones((4, 6), "float32")
Y = numpy.zeros((4, 3), "float32")
TWO = ["CPU:0", "CPU:1"]


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return model


def doubled(x: Any) -> Any:
    return x * 2.0


def test_the_stages_and_their_error_are_all_that_is_public() -> None:
    assert baechi.tensorflow.__all__ == ["NotAsPlanned", "capture", "measure", "place", "plan"]
    assert baechi.tensorflow.NotAsPlanned.__module__ == "baechi.tensorflow"
    for name in ("assign", "capture_model", "trace", "Placed", "profile_of_runs"):
        assert not hasattr(baechi.tensorflow, name)


# What is asked with, beside a model, its batch and two devices; what the answer says.
WRONG: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"batch": 0}, ("batch: ", "from 1 on", "int 0")),
    ({"batch": "8"}, ("batch: ", "str '8'")),
    ({"batch": True}, ("batch: ", "bool True")),
    ({"class_weight": [1, 2]}, ("class_weight: ", "{0: 1.0, 1: 2.5}", "list [1, 2]")),
    ({"devices": "CPU:1"}, ("devices: ", "['GPU:0', 'GPU:1']", "str 'CPU:1'")),
    ({"devices": [0, 1]}, ("devices: ", "int 0")),
    (
        {"devices": ["CPU:7", "CPU:1"]},
        ("'CPU:7'", "only CPU:0", "set_logical_device_configuration"),
    ),
    ({"profile": "guess"}, ("profile: ", "'measure'", "'guess', which is no file either")),
    ({"profile": 3}, ("profile: ", "int 3")),
    ({"profile": ["gpu=rtx3090", None]}, ("profile: ", "NoneType None")),
    ({"profile": "cpu=foo"}, ("profile: unknown device 'foo'", "rtx3090")),
    (
        {"profile": "gpu=rtx3090"},
        ("profile: ", "'gpu'", "'cpu'", "profile='cpu=rtx3090'", "'2xgpu:"),
    ),
    ({"plan": 3}, ("plan: ", "int 3", "baechi.tensorflow.plan")),
    ({"order": "planned", "recompute": "auto"}, ("recompute: ", "runs every operation once")),
    ({"cluster": 2}, ("cluster: ", "'2x24GiB+2x8GiB@0.6'", "int 2")),
    (
        {"cluster": "9xcpu:1MiB"},
        ("9 devices", "0 GPUs and 4 CPUs", "a smaller cluster", "devices="),
    ),
]


@pytest.mark.parametrize(("asked", "said"), WRONG)
def test_a_wrong_argument_is_named(asked: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        baechi.tensorflow.place(compiled(), X, Y, **{"cluster": "2xcpu:1MiB", **asked})
    text = str(error.value)
    assert "\n" not in text
    assert all(words in text for words in said), text
    assert not any(words in text for words in ("--", "<bytes>", "the file")), text


def test_a_plan_that_runs_operations_twice_is_only_a_plan() -> None:
    weights = [tf.Variable(tf.ones((16, 16))) for _ in range(3)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
        return tape.gradient(y, weights)

    x = tf.ones((64, 16))
    options: Any = {"cluster": "2xcpu:1MiB", "order": "planned", "budget": "20ms"}
    plan = baechi.tensorflow.plan(step, x, recompute="all", **options)
    assert plan.recomputed
    with pytest.raises(InputError, match=r"plan: it runs '.*' a second time; .* every operation"):
        baechi.tensorflow.place(step, x, plan=plan)
    with pytest.raises(InputError, match=r"replicas: a placed function runs one"):
        baechi.tensorflow.place(step, x, replicas=2, **options)


def test_a_wrong_target_is_named() -> None:
    with pytest.raises(InputError, match=r"target: expected a compiled Keras model, .*found int 3"):
        baechi.tensorflow.place(3, X, Y, cluster="2xcpu:1MiB")
    with pytest.raises(InputError, match=r"target: 'model' is no SavedModel: .*model.export"):
        baechi.tensorflow.plan("model", cluster="2xcpu:1MiB")


def test_a_batch_that_a_model_cannot_train_on_is_told_with_keras_reason() -> None:
    with pytest.raises(InputError, match=r"None values not supported.*as fit gets them"):
        baechi.tensorflow.place(compiled(), X, cluster="2xcpu:1MiB")
    with pytest.raises(InputError, match=r"expected axis -1 of input shape .* value 6"):
        baechi.tensorflow.place(compiled(), X[:, :5], Y, cluster="2xcpu:1MiB")


def test_an_open_size_is_asked_for_in_pythons_words() -> None:
    with pytest.raises(InputError) as error:
        baechi.tensorflow.place(doubled, tf.TensorSpec((None, 6)), cluster="2xcpu:1MiB")
    assert str(error.value).endswith("an open dimension: give it with batch=N")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda: baechi.tensorflow.place(compiled(), X, Y, cluster="2x1B", devices=TWO),
            DoesNotFit,
        ),
        (lambda: baechi.tensorflow.place(3), InputError),
        (lambda: baechi.tensorflow.plan(compiled(), X, Y, cluster="2x1GiB+"), InputError),
        (lambda: baechi.tensorflow.capture(3), InputError),
        (lambda: baechi.tensorflow.measure(3), InputError),  # type: ignore[arg-type]
    ],
)
def test_an_error_of_the_user_ends_at_the_users_call(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sum(file != __file__ for file in files) == 1


@pytest.mark.parametrize(
    ("target", "batch", "sentence"),
    [
        (keras.Sequential, (X, Y), "target: Sequential is a class: give what it makes"),
        ("net.keras", (X, Y), "target: 'net.keras' is a model in a file: load it with keras"),
        (compiled, (X, Y[:2]), r"the batch .* is none that fit takes: .*'x' sizes: 4 'y' sizes: 2"),
        (
            compiled,
            (X, ["a"] * 4),
            r"the batch \(ndarray, list\) is none that .*: these are not",
        ),
    ],
)
def test_what_no_step_can_be_made_of_is_named(target: Any, batch: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        baechi.tensorflow.capture(target() if target is compiled else target, *batch)


def test_kinds_of_devices_that_are_not_here_are_refused() -> None:
    captured = baechi.tensorflow.capture(compiled(), X, Y)
    with pytest.raises(InputError, match="kinds: TensorFlow has no devices 'CPUS' here, only CPU"):
        baechi.tensorflow.measure(captured, kinds={"CPUS": "gpu"})
