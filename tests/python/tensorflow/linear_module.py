# SPDX-License-Identifier: Apache-2.0
"""A layer with a training step, and placements of it that chance chose."""

from __future__ import annotations

from typing import Any

import baechi.tensorflow
import tensorflow as tf
from baechi.tensorflow.graph_generator import graph_of

import baechi

DEVICES = {f"gpu:{i}": f"CPU:{i}" for i in range(4)}
FULL = "/job:localhost/replica:0/task:0/device:CPU:{}"
SPEC = tf.TensorSpec((None, 3), tf.float32)
X = tf.constant([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]])


class Linear(tf.Module):
    """A layer with its own training step.

    x -> MatMul(w) -> add(b) -> Relu -> Sum,  w and b -= 0.1 gradient,  steps += 1
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.random.stateless_normal((3, 4), (1, 2)), name="w")
        self.b = tf.Variable(tf.ones((4,)), name="b")
        self.steps = tf.Variable(0, dtype=tf.int64, name="steps")

    def loss(self, x: Any) -> Any:
        return tf.reduce_sum(tf.nn.relu(tf.matmul(x, self.w) + self.b))

    @tf.function
    def forward(self, x: Any) -> Any:
        return self.loss(x)

    def step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(x)
        for variable, gradient in zip(
            (self.w, self.b), tape.gradient(loss, [self.w, self.b]), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        self.steps.assign_add(1)
        return loss

    @tf.function
    def nested_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.forward(x)
        for variable, gradient in zip(
            (self.w, self.b), tape.gradient(loss, [self.w, self.b]), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return loss


def scattered(traced: Any, seed: int) -> dict[str, str]:
    """Place every colocation group somewhere."""
    captured = baechi.tensorflow.capture(traced, batch=2)
    graph = graph_of(captured, "gpu=rtx3090")
    plan = baechi.place_graph(graph, "4x1GiB", "random", seed=seed, optimize="none", bounds=False)
    return plan.device_of
