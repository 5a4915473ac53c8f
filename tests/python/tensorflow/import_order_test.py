# SPDX-License-Identifier: Apache-2.0
"""Our extension and TensorFlow's libraries live in one process, whichever comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest

USE = """
import baechi
weight = tf.Variable([[1.0]])
traced = tf.function(lambda x: tf.matmul(x, weight)).get_concrete_function([[2.0]])
definition = traced.graph.as_graph_def(add_shapes=True).SerializeToString()
graph = baechi.Graph.from_graph_def(definition, costs="gpu=rtx3090")
print(len(graph), baechi.place_graph(graph, "2x1GiB").fits)
"""


@pytest.mark.parametrize(
    "imports", ["import tensorflow as tf, baechi", "import baechi, tensorflow as tf"]
)
def test_a_graph_is_read_and_placed(imports: str) -> None:
    command = [sys.executable, "-c", imports + USE]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "6 True\n"
