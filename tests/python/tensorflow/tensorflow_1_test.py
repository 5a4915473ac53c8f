# SPDX-License-Identifier: Apache-2.0
"""The ML graphs of graphs that were made with TensorFlow 1."""

from __future__ import annotations

from typing import Any

import baechi.tensorflow
import pytest
import tensorflow as tf
from baechi.tensorflow.graph_generator import capture, graph_of, without_barriers

import baechi

GPU = "gpu=rtx3090"
pytestmark = pytest.mark.usefixtures("exact")


def tf1_graph(*, resource: bool) -> tuple[tf.Graph, Any, Any]:
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, (3, 4), "x")
        weight = v1.get_variable(
            "weight", (4, 4), initializer=v1.ones_initializer(), use_resource=resource
        )
        y = tf.nn.relu(tf.matmul(x, weight, name="product"), name="relu")
        loss = tf.reduce_mean(y * y, name="loss")
        train = v1.train.AdamOptimizer(0.1).minimize(loss, name="train")
    return graph, loss, train


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("through", ["graph", "meta graph"])
def test_tensorflow_1_graphs(resource: bool, through: str) -> None:
    graph, _, _ = tf1_graph(resource=resource)
    target: Any = graph
    if through == "meta graph":
        with graph.as_default():
            target = tf.compat.v1.train.export_meta_graph()
    captured = capture(target)
    assert captured.function is None
    made = graph_of(captured, GPU)
    assert made.names == [o.name for o in captured.graph.get_operations()]
    assert set(captured.variables) >= {"weight", "weight/Adam", "weight/Adam_1"}
    assert made["weight"].permanent == made["weight/Adam"].permanent == 64
    update = next(n for n in made.names if "ApplyAdam" in made[n].kind)
    assert set(made[update].colocate) & set(made["weight"].colocate)
    gradient = next(
        n for n in made.names if n.startswith("gradients/product_grad/") and "MatMul" in n
    )
    assert made[gradient].forward == "product"
    assert made["gradients/relu_grad/ReluGrad"].forward == "relu"


def test_operations_that_a_step_does_not_run_move_nothing() -> None:
    graph, loss, train = tf1_graph(resource=True)
    with graph.as_default():
        tf.compat.v1.train.Saver(name="saver")
    with pytest.raises(baechi.InputError, match="no known shape"):
        graph_of(capture(graph), GPU)
    made = graph_of(capture(graph, fetches=[loss, train.name]), GPU)
    assert made.names == [o.name for o in graph.get_operations()]
    assert made["product"].outputs == [48]
    saving = [n for n in made.names if n.startswith("saver/")]
    assert saving
    assert sum(sum(made[n].outputs) for n in saving) == 0


def test_a_graph_with_an_open_size_is_told_in_words_of_this_interface() -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.placeholder(tf.float32, (None, 4), "x")
    open_size = r"^the captured graph: node 'x': .*open dimension: give it with batch=N$"
    with pytest.raises(baechi.InputError, match=open_size):
        baechi.tensorflow.plan(graph, cluster="2x1GiB")
    assert baechi.tensorflow.plan(graph, cluster="2x1GiB", batch=3).graph["x"].outputs == [48]


def test_a_tensorflow_1_graph_with_a_barrier() -> None:
    graph = tf.Graph()
    with graph.as_default():
        a, b = tf.constant(2.0, name="a"), tf.constant(3.0, name="b")
        first, second = tf.raw_ops.IdentityN(input=[a, b], name="all")
        tf.subtract(second, first, name="result")
    with pytest.warns(UserWarning, match="'all' passes all gradients on as one operator"):
        capture(graph)
    split = without_barriers(graph)
    captured = capture(split)
    assert {"all/0", "all/1", "result"} <= set(captured.names)
    with tf.compat.v1.Session(graph=split) as session:
        assert session.run("result:0") == 1.0
