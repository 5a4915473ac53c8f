# SPDX-License-Identifier: Apache-2.0
"""What cannot be placed is refused in one sentence that says what to do."""

from __future__ import annotations

import baechi.tensorflow
import pytest
import tensorflow as tf
from baechi.tensorflow import _private, versions
from baechi.tensorflow.placing import assign
from baechi.tensorflow.tracing import trace

import baechi
from tests.python.tensorflow.linear_module import DEVICES, FULL, SPEC, Linear, scattered


def one_sentence(error: pytest.ExceptionInfo[BaseException], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def test_options_are_checked_before_anything_is_traced() -> None:
    for run in (baechi.tensorflow.place, baechi.tensorflow.plan):
        with pytest.raises(baechi.InputError) as error:
            run(None, cluster="2x1GiB", bugdet=1)
        one_sentence(error, "has no option 'bugdet'; did you mean 'budget'?")
        with pytest.raises(baechi.InputError) as error:
            run(None, cluster="2x1GiB", threads=0)
        one_sentence(error, "threads: expected a whole number from 1 to 1024, found '0'")


def test_what_cannot_be_measured_or_placed_is_named() -> None:
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.measure(Linear().step)  # type: ignore[arg-type]
    one_sentence(error, "captured: expected what baechi.tensorflow.capture(...) returned, found")
    captured = baechi.tensorflow.capture(Linear().step, SPEC)
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.measure(captured, kinds="gpu")  # type: ignore[arg-type]
    one_sentence(error, "kinds: expected what to call the kinds of devices", "found str 'gpu'")
    empty = baechi.tensorflow.capture(tf.Graph(), fetches=[])
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.place(empty, cluster="2x1GiB", devices=list(DEVICES.values())[:2])
    one_sentence(error, "what was captured has no operations")


def test_a_plan_of_another_graph_is_refused() -> None:
    module = Linear()
    traced = trace(module.step, SPEC)
    device_of = scattered(traced, 1)
    with pytest.raises(baechi.InputError) as error:
        assign(traced, {**device_of, "elsewhere/MatMul": "gpu:0"}, DEVICES)
    one_sentence(error, "elsewhere/MatMul", "plan the graph")
    less = {name: device for name, device in device_of.items() if name != "MatMul"}
    with pytest.raises(baechi.InputError) as error:
        assign(traced, less, DEVICES)
    one_sentence(error, "'MatMul'", "plan the graph")
    with pytest.raises(baechi.InputError) as error:
        assign(traced, {**device_of, "MatMul": "tpu:0"}, DEVICES)
    one_sentence(error, "'tpu:0'")
    with pytest.raises(baechi.InputError) as error:
        assign(traced, device_of, {**DEVICES, "gpu:1": "GPU:7"})
    one_sentence(error, "'GPU:7'", "set_logical_device_configuration")
    assert module.w.device == FULL.format(0)


def test_xla_is_refused() -> None:
    compiled = tf.function(lambda x: x + 1, jit_compile=True)
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.place(compiled, SPEC, cluster="2x1GiB")
    one_sentence(error, "jit_compile=False")
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.place(compiled.get_concrete_function(SPEC), cluster="2x1GiB")
    one_sentence(error, "jit_compile=False")


def test_a_distribution_strategy_is_refused() -> None:
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(baechi.InputError) as error,
    ):
        baechi.tensorflow.place(Linear().step, SPEC, cluster="2x1GiB")
    one_sentence(error, "outside of strategy.scope()")


def test_too_few_devices_are_told() -> None:
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.place(Linear().step, SPEC, cluster="5x1GiB", batch=2)
    one_sentence(error, "set_logical_device_configuration")
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.place(Linear().step, SPEC, cluster="2x1GiB", devices=["CPU:0"], batch=2)
    one_sentence(error, "the cluster has 2")


def test_an_unknown_version_is_used_if_its_self_test_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert versions.self_test() == []
    monkeypatch.setattr(versions, "version", lambda: (3, 0))
    versions.require_tested.cache_clear()
    versions.require_tested()
    monkeypatch.setattr(_private, "set_device", lambda *_: None)
    versions.require_tested.cache_clear()
    with pytest.raises(baechi.InputError) as error:
        baechi.tensorflow.place(Linear().step, SPEC, cluster="2x1GiB", batch=2)
    one_sentence(error, "read back", "install a version from 2.17 to 2.21")
    monkeypatch.undo()
    versions.require_tested.cache_clear()


def test_a_version_whose_stale_functions_go_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_private, "_empty", lambda *_: None)
    assert versions.self_test() == ["a function traced before a move goes on with old weights"]


def test_variables_of_a_strategy_are_refused() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        weight = tf.Variable(tf.eye(3), name="weight")
    with pytest.raises(baechi.InputError, match=r"'weight' belongs to a distribution strategy"):
        trace(lambda x: tf.matmul(x, weight), SPEC)
