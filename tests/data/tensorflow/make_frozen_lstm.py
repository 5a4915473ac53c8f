# SPDX-License-Identifier: Apache-2.0
"""Writes frozen_lstm.pb: a frozen model whose loop is Enter, Merge, Switch, NextIteration and Exit.

Needs tensorflow (2.21 made the committed file): ``python make_frozen_lstm.py frozen_lstm.pb``.
"""

import sys
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

model = keras.Sequential([keras.Input((5, 4)), keras.layers.LSTM(8), keras.layers.Dense(3)])
traced = tf.function(model).get_concrete_function(tf.TensorSpec((2, 5, 4)))
frozen = convert_variables_to_constants_v2(traced, lower_control_flow=True)
Path(sys.argv[1]).write_bytes(frozen.graph.as_graph_def(add_shapes=True).SerializeToString())
