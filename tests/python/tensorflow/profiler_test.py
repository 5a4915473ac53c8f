# SPDX-License-Identifier: Apache-2.0
"""Measured costs of TensorFlow's training steps, and what a trace says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from baechi.tensorflow import profiler
from baechi.tensorflow.captured import Captured
from baechi.tensorflow.graph_generator import capture, graph_of
from baechi.tensorflow.profiler import measure
from baechi.tensorflow.step_stats import bytes_of, give_back_fused, measured_steps
from tensorflow.core.framework import step_stats_pb2

import baechi
from tests.python.tensorflow.keras_step import keras_step

FLOAT = 4
X = np.random.default_rng(1).normal(size=(4, 6, 6, 2)).astype(np.float32)
Y = np.array([0, 1, 2, 3], np.int32)


def captured_step(batch: int | None = 4) -> tuple[Captured, Any]:
    """Capture a step of a small convolutional network with Adam."""
    keras.utils.set_random_seed(5)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="relu", name="conv"),
            layers.BatchNormalization(),
            layers.Flatten(name="flat"),
            layers.Dense(5, name="dense"),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    specs = tf.TensorSpec((batch, 6, 6, 2)), tf.TensorSpec((batch,), tf.int32)
    return capture(keras_step(model, optimizer), *specs), model


def test_a_measured_step_has_times_sizes_and_memory_of_every_operator(tmp_path: Path) -> None:
    captured, model = captured_step()
    before = [v.numpy() for v in model.variables]
    profile = measure(captured, X, Y, steps=3, warmup=1)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert list(profile.operators) == captured.names
    assert profile.device_kinds == ["cpu"]
    assert profile.batch_size == 4
    assert "3 replayed steps" in profile.source

    kinds = {o.name: o.type for o in captured.graph.get_operations()}
    times = {n: o.times["cpu"] for n, o in profile.operators.items()}
    ran = [n for n in times if times[n] > 0]
    assert len(ran) > 0.85 * len(times)  # the rest is arguments and what the step does not need
    for name in times:
        if kinds[name] in ("MatMul", "Conv2D", "Conv2DBackpropFilter", "AssignVariableOp"):
            assert times[name] > 0, name
    # A nanosecond is told apart: microseconds would be all multiples of a thousand.
    assert sum(time % 1000 != 0 for time in times.values()) > 0.5 * len(ran)

    product = next(n for n in kinds if kinds[n] == "MatMul")
    flat, read = (t.op.name for t in captured.graph.get_operation_by_name(product).inputs)
    assert (kinds[flat], kinds[read]) == ("Reshape", "ReadVariableOp")
    assert profile.operators[read].outputs == [48 * 5 * FLOAT]
    assert profile.operators[read].allocated == [0]  # it is the variable
    assert profile.operators[flat].outputs == [4 * 48 * FLOAT]
    assert profile.operators[flat].allocated == [0]  # the same bytes in another shape
    assert profile.operators[product].outputs == [4 * 5 * FLOAT]
    (taken,) = profile.operators[product].allocated
    assert taken is not None
    assert taken >= 4 * 5 * FLOAT

    permanent = {n: o.permanent for n, o in profile.operators.items() if o.permanent}
    assert set(permanent) == set(captured.variables)
    assert sum(v or 0 for v in permanent.values()) == sum(
        int(np.prod(v.shape)) * v.dtype.size for v in captured.variables.values()
    )

    profile.save(tmp_path / "profile.json")
    graph = graph_of(captured, tmp_path / "profile.json")
    assert graph.names == captured.names
    assert graph.device_kinds == ["cpu"]
    assert {n: graph[n].times["cpu"] for n in graph.names} == times
    assert baechi.place_graph(graph, "2xcpu:1GiB", method="m-etf").fits


def allocated_peak(stats: Any) -> int:
    """Return the most that was allocated at once during a step, as the trace has it."""
    records = [
        (record.alloc_micros, record.alloc_bytes)
        for device in stats.dev_stats
        for node in device.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    ]
    return int(max(itertools.accumulate(size for _, size in sorted(records))))


def test_predicted_peaks_are_not_below_measured_ones() -> None:
    """An alias counts in full, so a prediction is too high rather than too low."""
    captured, _ = captured_step()
    with profiler._replay(captured, ((X, Y), {}), {}) as run:
        run()
        taken = allocated_peak(run())
    profile = measure(captured, X, Y, steps=2, warmup=1)
    permanent = sum(o.permanent or 0 for o in profile.operators.values())
    assert taken > permanent / 10
    plan = baechi.place_graph(graph_of(captured, profile), "1xcpu:1GiB", method="single")
    assert permanent + taken <= plan.peaks["cpu:0"] < 2 * (permanent + taken)


def test_sizes_that_shapes_leave_open_come_from_the_profile() -> None:
    captured, _ = captured_step(batch=None)
    assert captured.batch is None
    profile = measure(captured, X, Y, steps=1, warmup=0)
    assert profile.batch_size == 4
    graph = graph_of(captured, profile)
    static, _ = captured_step()
    expected = graph_of(static, "gpu=t4")
    for kind in ("MatMul", "Relu", "Conv2DBackpropFilter"):
        sizes = [graph[n].outputs for n in graph.names if graph[n].kind == kind]
        assert sizes == [expected[n].outputs for n in expected.names if expected[n].kind == kind], (
            kind
        )


def test_the_model_can_be_measured_over_several_devices() -> None:
    captured, _ = captured_step()
    graph = graph_of(captured, "cpu=cpu")
    plan = baechi.place_graph(graph, "2xcpu:1GiB", method="balanced")
    devices = {"cpu:0": "CPU:0", "cpu:1": "CPU:1"}
    profile = measure(
        captured,
        X,
        Y,
        steps=1,
        warmup=0,
        device_of={n: devices[d] for n, d in plan.device_of.items()},
        kinds={"CPU": "little"},
    )
    assert profile.device_kinds == ["little"]
    alone = measure(captured, X, Y, steps=1, warmup=0)
    for name, operator in profile.operators.items():
        assert operator.outputs == alone.operators[name].outputs, name


def test_loops_have_the_time_of_all_their_rounds() -> None:
    weight = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def step(x: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(rounds):
            x = tf.matmul(x, weight)
        return x

    with pytest.warns(UserWarning, match="unroll"):
        captured = capture(
            step.get_concrete_function(tf.TensorSpec((64, 64)), tf.TensorSpec((), tf.int32))
        )
    (loop,) = captured.loops
    x = np.ones((64, 64), np.float32)
    few = measure(captured, x, np.int32(2), steps=3)
    many = measure(captured, x, np.int32(60), steps=3)
    assert many.operators[loop].times["cpu"] > 4 * few.operators[loop].times["cpu"] > 0


def test_a_loaded_step_is_measured(tmp_path: Path) -> None:
    module = tf.Module()
    module.weight = tf.Variable(tf.ones((3, 3)))
    module.layer = tf.function(lambda x: tf.nn.relu(tf.matmul(x, module.weight)))

    @tf.function
    def step(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(module.layer(x))
        module.weight.assign_sub(0.1 * tape.gradient(loss, module.weight))
        return {"loss": loss}

    signature = step.get_concrete_function(tf.TensorSpec((2, 3), name="x"))
    tf.saved_model.save(module, str(tmp_path), signatures={"train": signature})
    captured = capture(tmp_path)
    profile = measure(captured, x=np.ones((2, 3), np.float32), steps=1, warmup=0)
    assert list(profile.operators) == captured.names
    operations = captured.graph.get_operations()
    (forward, *backward) = [o.name for o in operations if o.type == "MatMul"]
    assert profile.operators[forward].times["cpu"] > 0
    assert any(profile.operators[n].times["cpu"] > 0 for n in backward)


@pytest.mark.parametrize("resource", [False, True])
def test_a_tensorflow_1_graph_is_measured(resource: bool) -> None:
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, (None, 4), "x")
        ones = v1.ones_initializer()
        weight = v1.get_variable("weight", (4, 4), initializer=ones, use_resource=resource)
        loss = tf.reduce_mean(tf.nn.relu(tf.matmul(x, weight, name="product")), name="loss")
        train = v1.train.AdamOptimizer(0.1).minimize(loss, name="train")
    captured = capture(graph, fetches=[loss, train])
    fed = {x: np.ones((3, 4), np.float32)}
    profile = measure(captured, fetches=[loss, train], feed_dict=fed, steps=2, warmup=1)
    assert list(profile.operators) == captured.names
    assert profile.batch_size == 3
    assert profile.operators["product"].times["cpu"] > 0
    assert profile.operators["product"].outputs == [3 * 4 * FLOAT]
    assert profile.operators["weight/Adam"].permanent == 16 * FLOAT
    made = graph_of(captured, profile)
    assert made["product"].outputs == [3 * 4 * FLOAT]
    assert made["weight"].permanent == 16 * FLOAT
    with pytest.raises(baechi.InputError, match="give fetches"):
        measure(captured)


def test_what_cannot_be_measured_is_told() -> None:
    captured, _ = captured_step()
    for arguments, words in (
        ((X,), "takes 2 tensors as arguments, not 1"),
        ((X[:, :3], Y), "has the shape"),
        ((tf.TensorSpec((4, 6, 6, 2)), Y), "give tensors or arrays"),
    ):
        with pytest.raises(baechi.InputError, match=words):
            measure(captured, *arguments, steps=1, warmup=0)
    with pytest.raises(baechi.InputError, match=r"steps=0, warmup=.: expected at least 1 step"):
        measure(captured, X, Y, steps=0)
    with pytest.raises(baechi.InputError, match="are for a TensorFlow 1 graph"):
        measure(captured, X, Y, fetches=["loss"])
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([1], [2]), default_value=0
    )
    looked_up = capture(
        tf.function(lambda k: table.lookup(k)).get_concrete_function(tf.TensorSpec((), tf.int32))
    )
    with pytest.raises(baechi.InputError, match="a table, an iterator or the like"):
        measure(looked_up, np.int32(1), steps=1, warmup=0)


# What a trace says, on traces made by hand.


def node(device: Any, name: str, start: int, end: int, label: str = "") -> Any:
    added = device.node_stats.add(node_name=name, timeline_label=label)
    added.op_start_rel_nanos, added.op_end_rel_nanos = start, end
    added.op_end_rel_micros = end // 1000
    return added


def allocate(stats: Any, peak: int, *sizes: int) -> None:
    memory = stats.memory.add(allocator_name="a", peak_bytes=peak, total_bytes=sum(sizes))
    for size in sizes:
        memory.allocation_records.add(alloc_bytes=size)
        memory.allocation_records.add(alloc_bytes=-size)


def output(stats: Any, slot: int, shape: tuple[int, ...], allocated: int) -> None:
    tensor = stats.output.add(slot=slot).tensor_description
    tensor.dtype = tf.float32.as_datatype_enum
    for size in shape:
        tensor.shape.dim.add(size=size)
    tensor.allocation_description.allocated_bytes = allocated


GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_a_gpus_operators_take_the_time_of_their_kernels() -> None:
    """The host only launches them. The names are those of CUPTI's trace."""
    stats = step_stats_pb2.StepStats()
    host = stats.dev_stats.add(device=GPU)
    node(host, "conv", 0, 9_000)
    node(host, "shape", 0, 700)
    node(stats.dev_stats.add(device=CPU), "text", 100, 400)
    kernels = stats.dev_stats.add(
        device=GPU.replace("/job:localhost/replica:0/task:0", "") + "/stream:all"
    )
    for end in (30, 12):  # two kernels of one operator; whole microseconds, as CUPTI gives them
        added = kernels.node_stats.add(node_name="conv:Conv2D")
        added.op_end_rel_micros = end
    node(kernels, "unknown", 0, 5_000)
    for other in ("/stream:14<Compute>", "/stream:15<MemcpyP2P>", "/memcpy", "/sync"):
        node(stats.dev_stats.add(device=GPU + other), "conv", 0, 1_000_000)
    (found,) = measured_steps(
        [stats], {"conv": "Conv2D", "shape": "Shape", "text": "StringJoin", "gone": "NoOp"}
    )
    assert {n: (m.time, m.kind) for n, m in found.items()} == {
        "conv": (42_000, "GPU"),
        "shape": (700, "GPU"),
        "text": (300, "CPU"),
    }


def test_three_sizes_of_an_output_are_kept_apart() -> None:
    stats = step_stats_pb2.StepStats()
    device = stats.dev_stats.add(device=CPU)
    product = node(device, "product", 0, 10)
    allocate(product, 1024 + 256 + 100, 100, 1024, 256)
    output(product, 0, (16, 16), 1024)
    output(product, 1, (3,), 256)  # rounded up
    output(product, 2, (16, 16), 1024)  # no second one of this size was allocated: an alias
    alias = node(device, "alias", 0, 10)
    output(alias, 0, (256,), 1024)
    forwarded = node(device, "forwarded", 0, 10)
    allocate(forwarded, 40, 40)
    output(forwarded, 0, (256,), 1024)
    no_records = node(device, "no_records", 0, 10)
    no_records.memory_stats.temp_memory_size = 77
    (found,) = measured_steps(
        [stats], dict.fromkeys(["product", "alias", "forwarded"], "Op") | {"no_records": "Op"}
    )
    assert found["product"].transferred == {0: 1024, 1: 12, 2: 1024}
    assert found["product"].allocated == {0: 1024, 1: 256, 2: 0}
    assert found["product"].temporary == 100
    assert found["alias"].transferred == {0: 1024}
    assert found["alias"].allocated == {0: 0}
    assert found["alias"].temporary == 0
    assert found["forwarded"].allocated == {0: 0}
    assert found["forwarded"].temporary == 40
    assert found["no_records"].temporary == 77


def test_a_kernel_for_two_operators_gives_its_time_to_the_heavy_one() -> None:
    stats = step_stats_pb2.StepStats()
    device = stats.dev_stats.add(device=CPU)
    bias = node(device, "bias", 0, 500, "bias = _MklNativeConv2DWithBias(x, w, b)")
    allocate(bias, 4096 + 64, 64, 4096)
    output(bias, 0, (4, 256), 64)
    node(device, "x", 0, 3, "x = Identity(in)")
    operators = {"bias": "BiasAdd", "conv": "Conv2D", "x": "Identity", "w": "Const"}
    (found,) = measured_steps([stats], operators)
    sources = {"bias": ["conv", "b"], "conv": ["x", "w"], "x": []}
    give_back_fused(found, operators, lambda name: sources[name])
    assert (found["conv"].time, found["conv"].temporary) == (500, 4096)
    assert (found["bias"].time, found["bias"].temporary) == (0, 0)
    assert found["conv"].allocated == {0: 64}
    assert found["bias"].transferred == found["conv"].transferred == {0: 4096}
    assert found["x"].time == 3
    assert "w" not in found


def test_parts_of_a_loop_count_for_it_and_microseconds_where_nothing_is_finer() -> None:
    stats = step_stats_pb2.StepStats()
    device = stats.dev_stats.add(device=CPU)
    for _ in range(3):
        node(device, "while/body/_1/while/MatMul", 0, 50)
    node(device, "whiles", 0, 1)
    coarse = device.node_stats.add(node_name="coarse")
    coarse.op_start_rel_micros, coarse.op_end_rel_micros = 2, 5
    (found,) = measured_steps(
        [stats], {"while": "While", "coarse": "Relu", "whiles": "Relu"}, ["while"]
    )
    assert {n: m.time for n, m in found.items()} == {"while": 150, "coarse": 3000, "whiles": 1}


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (tf.float32, (2, 3), 24),
        (tf.bfloat16, (), 2),
        (tf.bool, (0, 7), 0),
        (tf.resource, (), 0),
        (tf.string, (5,), 0),
    ],
)
def test_bytes_of_tensors(dtype: Any, shape: tuple[int, ...], expected: int) -> None:
    assert bytes_of(dtype.as_datatype_enum, shape) == expected


def test_a_reference_to_a_variable_is_nothing() -> None:
    assert bytes_of(tf.float32.as_datatype_enum + 100, (4, 4)) == 0
