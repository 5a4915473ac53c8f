# SPDX-License-Identifier: Apache-2.0
"""Writes cnn_step.pb: one training step of a small convolutional network, as TensorFlow traces it.

Needs tensorflow (2.21 made the committed file): ``python make_cnn_step.py cnn_step.pb``.
"""

import sys
from pathlib import Path

import keras
import tensorflow as tf

model = keras.Sequential(
    [
        keras.layers.Input((16, 16, 3)),
        keras.layers.Conv2D(8, 3, padding="same"),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.build(model.trainable_variables)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(jit_compile=False)
def step(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return value


traced = step.get_concrete_function(
    tf.TensorSpec((None, 16, 16, 3)), tf.TensorSpec((None,), tf.int64)
)
graph = traced.graph.as_graph_def(add_shapes=True)
Path(sys.argv[1]).write_bytes(graph.SerializeToString())
