# SPDX-License-Identifier: Apache-2.0
"""The ML graphs of TensorFlow's training steps, and that rewriting them changes no result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from baechi.tensorflow import _private
from baechi.tensorflow.assigner import PlacedFunction
from baechi.tensorflow.devices import full_name
from baechi.tensorflow.feeding import feed_of
from baechi.tensorflow.graph_generator import capture, graph_of
from baechi.tensorflow.inlining import calls_in, split_input
from baechi.tensorflow.keras_model import capture_model
from baechi.tensorflow.rewriting import barriers_in, flattened, split_barriers

import baechi
from models.tensorflow import MODELS
from tests.python.tensorflow.keras_step import keras_step

GPU = "gpu=rtx3090"
pytestmark = pytest.mark.usefixtures("exact")


class Net(tf.Module):
    """Two layers with weights of their own, trained by hand; layers are functions of their own."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        self.weights = [
            tf.Variable(random.normal(size=(4, 4)).astype(np.float32)) for _ in range(2)
        ]
        self.count = tf.Variable(0)
        self.layer = tf.function(self._layer)
        self.step = tf.function(self._step)

    def _layer(self, x: tf.Tensor, index: int) -> tf.Tensor:
        self.count.assign_add(1)
        return tf.nn.relu(tf.matmul(x, self.weights[index]))

    def _step(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            y = self.layer(self.layer(x, 0), 1)
            loss = tf.reduce_mean(y * y)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return {"loss": loss}


X = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)


def losses(net: Any, function: Callable[..., Any], steps: int = 4) -> list[float]:
    """Train from the start and say how it went."""
    fresh = Net()
    for variable, value in zip(
        [*net.weights, net.count], [*fresh.weights, fresh.count], strict=True
    ):
        variable.assign(value)
    found = [float(function(x=tf.constant(X))["loss"]) for _ in range(steps)]
    assert int(net.count) == 2 * steps
    return found


def small_model() -> Any:
    keras.utils.set_random_seed(5)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dense(5),
        ]
    )


IMAGES = np.random.default_rng(6).normal(size=(4, 6, 6, 2)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3], np.int32)
SPECS = (tf.TensorSpec((4, 6, 6, 2)), tf.TensorSpec((4,), tf.int32))


def unpaired(graph: baechi.Graph) -> list[str]:
    """Return the backward operators named after a gradient that have no forward operator."""
    named = [graph[i] for i in range(len(graph)) if "gradient_tape/" in graph[i].name]
    assert named
    return [o.name for o in named if o.forward is None]


def test_operators_are_the_operations_by_name_and_variables_are_permanent() -> None:
    model, optimizer = small_model(), keras.optimizers.Adam()
    captured = capture(keras_step(model, optimizer), *SPECS)
    graph = graph_of(captured, GPU)
    assert graph.names == captured.names
    assert graph.names == [o.name for o in captured.graph.get_operations()]
    held = {id(v): v for v in captured.variables.values()}
    assert len(held) == len(captured.variables) > 20  # weights, moments, steps, learning rate
    for name, variable in captured.variables.items():
        shape = variable.shape.as_list()
        assert graph[name].permanent == int(np.prod(shape)) * variable.dtype.size, name
    assert sum(graph[n].permanent for n in graph.names) == sum(
        graph[n].permanent for n in captured.variables
    )
    assert unpaired(graph) == []
    assert captured.loops == []
    # Readers and writers of a variable are with it.
    reader = next(n for n in graph.names if n.endswith("Cast/ReadVariableOp"))
    handle = graph[reader].inputs[0][0]
    assert set(graph[reader].colocate) & set(graph[handle].colocate)


SMALLER: dict[str, dict[str, Any]] = {  # than the models' small sizes: tracing takes long
    "inception-v3": {"middle": (), "fine": 0},
    "gnmt": {"layers": 2, "length": 2},
    "transformer": {},
}


@pytest.mark.parametrize("name", sorted(SMALLER))
def test_every_gradient_has_a_forward_operator(name: str) -> None:
    entry = MODELS[name]
    config = dataclasses.replace(entry.small(), **SMALLER[name])
    model = entry.compiled(config, optimizer="sgd")
    x, y = entry.inputs(config, 2)
    captured = capture_model(model, feed_of((x, y)), dynamic_batch=False)
    assert captured.loops == []
    graph = graph_of(captured, GPU)
    assert graph.names == captured.names
    assert unpaired(graph) == []
    sums = [graph[n] for n in graph.names if graph[n].kind == "AddN" and graph[n].backward]
    assert all(operator.forward is not None for operator in sums)
    assert not any(graph[o.forward].backward for o in sums if o.forward is not None)
    products = [graph[n] for n in graph.names if graph[n].kind in ("MatMul", "Conv2D")]
    assert len([o for o in products if o.forward is None]) >= 2


def test_calls_are_inlined_and_train_the_same() -> None:
    net = Net()
    plain = net.step.get_concrete_function(tf.TensorSpec((3, 4), name="x"))
    assert len(calls_in(plain.graph.as_graph_def())) == 4  # two layers and their gradients
    expected = losses(net, plain)
    assert len(set(expected)) == len(expected)
    captured = capture(plain)
    assert calls_in(captured.graph.as_graph_def()) == []
    assert losses(net, captured.function) == expected
    graph = graph_of(captured, GPU)
    forward = {n: graph[n].forward for n in graph.names if graph[n].kind == "ReluGrad"}
    assert forward == {
        f"gradient_tape/{call}/Relu/ReluGrad": f"{call}/Relu"
        for call in ("StatefulPartitionedCall", "StatefulPartitionedCall_1")
    }
    assert unpaired(graph) == []


def test_calls_keep_their_order_and_their_results_apart() -> None:
    state = tf.Variable(1.0)

    @tf.function
    def both() -> Any:
        return state + 0.0, state * 10.0

    @tf.function
    def step() -> Any:
        before = both()
        state.assign(5.0)
        return before, both()

    traced = step.get_concrete_function()
    assert len(calls_in(traced.graph.as_graph_def())) == 2
    made = flattened(traced)
    before, after = tf.nest.map_structure(float, made())
    assert (before, after) == ((1.0, 10.0), (5.0, 50.0))
    # Not by luck: the write waits for the reads before it, those after it for the write.
    nodes = {node.name: node for node in made.graph.as_graph_def().node}

    def waits_for(name: str) -> set[str]:
        sources = {split_input(text)[0] for text in nodes[name].input}
        return sources.union(*(waits_for(source) for source in sources))

    (write,) = [n for n, node in nodes.items() if node.op == "AssignVariableOp"]
    reads = [n for n, node in nodes.items() if node.op == "ReadVariableOp"]
    early = [read for read in reads if write not in waits_for(read)]
    assert len(reads) == 4
    assert len(early) == 2
    assert set(early) <= waits_for(write)


def test_a_loaded_step_is_flat_and_trains_the_same(tmp_path: Path) -> None:
    net = Net()
    expected = losses(net, net.step)
    signature = net.step.get_concrete_function(tf.TensorSpec((3, 4), name="x"))
    tf.saved_model.save(net, str(tmp_path), signatures={"train": signature})
    captured = capture(tmp_path)
    assert calls_in(captured.graph.as_graph_def()) == []
    assert len(captured.variables) == 3
    assert losses(captured.owner, captured.function) == expected
    graph = graph_of(captured, GPU)
    pairs = {graph[n].forward for n in graph.names if graph[n].kind == "ReluGrad"}
    assert len(pairs) == 2
    assert all(pair is not None and pair.endswith("/Relu") for pair in pairs)
    with pytest.raises(baechi.InputError, match="none that is called 'serve', only train"):
        capture(tmp_path, signature="serve")


def test_a_loaded_step_runs_on_two_devices(tmp_path: Path) -> None:
    net = Net()
    expected = losses(net, net.step)
    signature = net.step.get_concrete_function(tf.TensorSpec((3, 4), name="x"))
    tf.saved_model.save(net, str(tmp_path), signatures={"train": signature})
    captured = capture(tmp_path)
    graph = graph_of(captured, GPU)
    plan = baechi.place_graph(graph, "2x1GiB", method="balanced")
    devices = {"gpu:0": full_name("CPU:0"), "gpu:1": full_name("CPU:1")}
    placed = PlacedFunction(captured.function, {n: devices[d] for n, d in plan.device_of.items()})
    assert len(set(placed.expected.values())) == 2
    assert losses(captured.owner, placed.function) == expected
    assert placed.check()


def test_the_barrier_of_all_gradients_is_split() -> None:
    model = small_model()
    optimizer = keras.optimizers.SGD(0.1)
    traced = tf.function(keras_step(model, optimizer)).get_concrete_function(*SPECS)
    definition = traced.graph.as_graph_def()
    assert [len(n.input) for n in definition.node if n.op == "IdentityN"] == [
        2 * len(model.trainable_variables)
    ]
    start = [v.numpy() for v in model.variables]

    def train(function: Any) -> list[float]:
        for variable, value in zip(model.variables, start, strict=True):
            variable.assign(value)
        return [float(function(tf.constant(IMAGES), tf.constant(LABELS))) for _ in range(3)]

    expected = train(traced)
    captured = capture(traced)
    after = captured.graph.as_graph_def()
    assert barriers_in(after) == []
    assert train(captured.function) == expected
    # No operator passes on more than one gradient now.
    graph = graph_of(captured, GPU)
    for variable in model.trainable_variables:
        assert np.isfinite(variable.numpy()).all()
    for name in graph.names:
        if graph[name].kind == "Identity" and "IdentityN" in name:
            assert len(graph[name].inputs) == 1
            assert len(graph[name].outputs) == 1


def test_a_split_barrier_keeps_ports_controls_and_names() -> None:
    definition = tf.compat.v1.GraphDef()
    for name in ("a", "b", "taken/0"):
        definition.node.add(name=name, op="Placeholder")
    barrier = definition.node.add(name="taken", op="IdentityN", device="/CPU:1")
    barrier.input.extend(["a", "b:1", "^taken/0"])
    barrier.attr["T"].list.type.extend([tf.float32.as_datatype_enum, tf.int32.as_datatype_enum])
    user = definition.node.add(name="user", op="Pack")
    user.input.extend(["taken:1", "taken", "^taken", "^a"])
    user.attr["_class"].list.s.extend([b"loc:@taken", b"loc:@a"])
    made, renamed = split_barriers(definition)
    nodes = {node.name: node for node in made.node}
    assert list(nodes) == ["a", "b", "taken/0", "taken/0_1", "taken/1", "user"]
    assert list(nodes["taken/0_1"].input) == ["a", "^taken/0"]
    assert list(nodes["taken/1"].input) == ["b:1", "^taken/0"]
    assert nodes["taken/1"].attr["T"].type == tf.int32.as_datatype_enum
    assert nodes["taken/1"].device == "/CPU:1"
    assert list(nodes["user"].input) == ["taken/1", "taken/0_1", "^taken/0_1", "^taken/1", "^a"]
    assert list(nodes["user"].attr["_class"].list.s) == [b"loc:@taken/0_1", b"loc:@a"]
    assert renamed("taken:1") == "taken/1:0"
    assert renamed("a:0") == "a:0"


def test_shared_scalars_are_fewer_operators_and_train_the_same() -> None:
    model, optimizer = small_model(), keras.optimizers.Adam(0.05)
    step = keras_step(model, optimizer)
    plain = capture(step, *SPECS)
    start = [v.numpy() for v in [*model.variables, *optimizer.variables]]

    def train(function: Any) -> list[float]:
        for variable, value in zip([*model.variables, *optimizer.variables], start, strict=True):
            variable.assign(value)
        return [float(function(tf.constant(IMAGES), tf.constant(LABELS))) for _ in range(3)]

    expected = train(plain.function)
    shared = capture(step, *SPECS, share_scalars=True)
    assert len(shared.names) < 0.8 * len(plain.names)
    assert train(shared.function) == expected
    assert unpaired(graph_of(shared, GPU)) == []
    reads = [o for o in shared.graph.get_operations() if o.type == "ReadVariableOp"]
    rates = [o for o in reads if o.inputs[0].op.name in _named(shared, optimizer.learning_rate)]
    assert len(rates) == 1
    # What is read before and after it is written stays apart.
    steps = [o for o in reads if o.inputs[0].op.name in _named(shared, optimizer.iterations)]
    assert len(steps) >= 1


def _named(captured: Any, variable: Any) -> list[str]:
    handle = variable.value.handle
    return [n for n, v in captured.variables.items() if _private.handle_of(v) is handle]


def test_a_read_after_a_write_is_not_the_read_before_it() -> None:
    count = tf.Variable(1.0)

    @tf.function
    def step() -> Any:
        before = count + 0.0
        count.assign_add(1.0)
        return before, count + 0.0

    traced = step.get_concrete_function()
    shared = flattened(traced, share=True)
    assert [float(value) for value in shared()] == [1.0, 2.0]
    assert [float(value) for value in shared()] == [2.0, 3.0]


def test_what_is_colocated_with_a_shared_or_an_argument_stays_importable() -> None:
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def step(x: tf.Tensor) -> Any:
        graph = tf.compat.v1.get_default_graph()
        first, again = (
            tf.raw_ops.ReadVariableOp(resource=weight.handle, dtype=tf.float32) for _ in range(2)
        )
        with graph.colocate_with(again.op):
            second = tf.square(first)
        with graph.colocate_with(x.op):
            return second + x

    traced = step.get_concrete_function(tf.TensorSpec((2,)))
    colocated = [n for n in traced.graph.as_graph_def().node if "_class" in n.attr]
    assert len(colocated) >= 2
    shared = flattened(traced, share=True)
    assert shared(tf.constant([1.0, 1.0])).numpy().tolist() == [2.0, 5.0]
    reads = [o for o in shared.graph.get_operations() if o.type == "ReadVariableOp"]
    assert len(reads) == 1
    square = shared.graph.get_operation_by_name("Square")
    assert square.colocation_groups() == [b"loc:@" + reads[0].name.encode()]


def test_loops_are_one_operator_and_said_to_be() -> None:
    weight = tf.Variable(2.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = x * weight
        return x

    with pytest.warns(UserWarning, match=r"'while' is placed as one operator.*unroll"):
        captured = capture(step.get_concrete_function(tf.TensorSpec(())))
    assert captured.loops == ["while"]
    graph = graph_of(captured, GPU)
    assert "while" in graph
    assert float(captured.function(tf.constant(1.0))) == 8.0


def test_sizes_that_shapes_leave_open_need_a_number() -> None:
    model = small_model()
    specs = (tf.TensorSpec((None, 6, 6, 2)), tf.TensorSpec((None,), tf.int32))
    captured = capture(keras_step(model, keras.optimizers.SGD(0.1)), *specs)
    with pytest.raises(baechi.InputError, match="open dimension"):
        graph_of(captured, GPU)
    graph = graph_of(captured, GPU, batch=4)
    assert graph.batch_size == 4
    relu = next(n for n in graph.names if graph[n].kind == "Relu")
    assert graph[relu].outputs == [4 * 4 * 4 * 3 * 4]  # 4 images of 4 x 4, 3 channels of 4 bytes
    assert graph_of(captured, GPU, batch=8)[relu].outputs == [2 * 4 * 4 * 4 * 3 * 4]


def test_what_cannot_be_captured_is_told() -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(1.0)
    with pytest.raises(baechi.InputError, match="takes no inputs here"):
        capture(graph, tf.TensorSpec(()))


def test_inputs_of_nodes_are_told_apart() -> None:
    assert split_input("a/b") == ("a/b", 0)
    assert split_input("a:12") == ("a", 12)
    assert split_input("^a") == ("a", 0)
