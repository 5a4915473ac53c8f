# SPDX-License-Identifier: Apache-2.0
"""Which versions of TensorFlow there are tests for, and what another one has to do as they do."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from baechi._core import InputError
from baechi.tensorflow import _private
from baechi.tensorflow.devices import with_task

FIRST_TESTED = (2, 17)
LAST_TESTED = (2, 21)


def version() -> tuple[int, int]:
    """Return the major and minor version of the TensorFlow that is installed."""
    major, minor = tf.__version__.split(".")[:2]
    return int(major), int(minor)


def _session_traces_all() -> bool:
    graph = tf.Graph()
    with graph.as_default():
        tf.square(tf.constant(3.0, name="three"), name="nine")
        proto = tf.compat.v1.train.export_meta_graph()
    again = tf.Graph()
    with again.as_default():
        _private.import_meta_graph(proto)
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    with tf.compat.v1.Session(graph=again, config=_private.session_config()) as session:
        value = session.run("nine:0", options=options, run_metadata=metadata)
    traced = {n.node_name for d in metadata.step_stats.dev_stats for n in d.node_stats}
    return value == 9 and {"three", "nine"} <= traced


def self_test() -> list[str]:
    """Return what is not as expected in the TensorFlow that is installed; empty when all is."""
    wrong = []
    devices = [d.name for d in tf.config.list_logical_devices()]
    with tf.device(devices[0]):
        weight = tf.Variable([2.0])

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        return tf.square(weight) + x

    traced = step.get_concrete_function(tf.TensorSpec((1,), tf.float32))
    definition = traced.graph.as_graph_def()
    outputs = [tensor.name for tensor in traced.graph.outputs]
    if (
        _private.bodies_of(definition)
        or float(_private.rebuilt(traced, definition, outputs, [])(tf.constant([1.0]))[0]) != 5
    ):
        wrong.append("a function made of its own GraphDef gives another result")
    if not _session_traces_all():
        wrong.append("a session does not trace all operations as they are")
    identity = id(weight)
    before = [o.name for o in traced.graph.get_operations()]
    target = with_task(tf.DeviceSpec.from_string(devices[-1]))
    old = _private.move(weight, target)
    if weight.device != target or id(weight) != identity or weight.numpy()[0] != 2:
        wrong.append("a variable does not move in place")
    for operation in traced.graph.get_operations():
        if operation.type != "Placeholder":
            _private.set_device(operation, target)
    captured = [weight.handle if c is old else c for c in traced.captured_inputs]
    if not any(c is weight.handle for c in captured):
        wrong.append("a function does not capture the handles of its variables")
    placed = _private.function_of(traced.graph, traced.function_type, captured)
    found: list[Any] = []
    graphs = _private.partition_graphs(lambda: found.append(placed(tf.constant([1.0]))))
    if float(found[0][0]) != 5:
        wrong.append("a function made of a changed graph gives another result")
    where = {n.name.split("/")[-1]: n.device for g in graphs for n in g.node}
    if where.get("Square") != target:
        wrong.append("the device that an operation ran on cannot be read back")
    try:
        stale = traced(tf.constant([1.0]))
    except tf.errors.OpError:
        pass
    else:
        if stale.shape == (1,):
            wrong.append("a function traced before a move goes on with old weights")
    _private.move_back(weight, old)
    if float(traced(tf.constant([1.0]))[0]) != 5 or not before:
        wrong.append("a variable does not move back")
    return wrong


@functools.cache
def require_tested() -> None:
    """Raise InputError if an unknown version of TensorFlow does not do what we need."""
    if FIRST_TESTED <= version() <= LAST_TESTED:
        return
    first, last = (".".join(map(str, v)) for v in (FIRST_TESTED, LAST_TESTED))
    try:
        wrong = self_test()
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    if wrong:
        raise InputError(
            f"TensorFlow {tf.__version__} cannot be used ({wrong[0]}): "
            f"install a version from {first} to {last}"
        )
