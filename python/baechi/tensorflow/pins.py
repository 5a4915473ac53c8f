# SPDX-License-Identifier: Apache-2.0
"""The devices that a program asks for itself, with tf.device: plans and placements keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from baechi._core import Cluster, Graph, graph_from_arrays, graph_to_arrays
from baechi.tensorflow import _private
from baechi.tensorflow.devices import with_task

# Operations that are gone when a function runs: its arguments and results are those of the call.
INTERFACE = frozenset(["Placeholder", "PlaceholderWithDefault", "_Arg", "_Retval"])


def asked_devices(graph: Any) -> dict[str, str]:
    """Return the full TensorFlow device of every operation that asks for one, by name.

    Operations that take a variable or another resource are not among them: TensorFlow runs these
    where the resource is, whatever they ask for.
    """
    found = {}
    for operation in graph.get_operations():
        device = _private.user_device(operation)
        if not device or operation.type in INTERFACE:
            continue
        if any(tensor.dtype == tf.resource for tensor in operation.inputs):
            continue
        spec = tf.DeviceSpec.from_string(device)
        if spec.device_type is not None:
            found[operation.name] = with_task(spec.replace(device_index=spec.device_index or 0))
    return found


def pinned(
    graph: Graph, asked: Mapping[str, str], cluster: Cluster, devices: Mapping[str, str]
) -> Graph:
    """Return the ML graph with operators bound to the devices that they ask for.

    Args:
        graph: The ML graph.
        asked: What `asked_devices` returned. What the cluster does not have is left out: the
            assigner leaves those operations where they ask to be.
        cluster: The devices to plan for.
        devices: The TensorFlow device of each; empty for a cluster that is not here, whose devices
            are then taken to be TensorFlow's in the same order.

    """
    ours = {device: name for name, device in devices.items()}
    if not devices:
        for index, device in enumerate(cluster.devices):
            kind = "CPU" if device.kind.startswith("cpu") else "GPU"
            ours[with_task(tf.DeviceSpec(device_type=kind, device_index=index))] = device.name
    pins = {name: ours[device] for name, device in asked.items() if device in ours}
    if not pins:
        return graph
    arrays = graph_to_arrays(graph)
    names = graph.names
    arrays["devices"] = [pins.get(name) for name in names]
    return graph_from_arrays(names, name=graph.name, **arrays)


def without_second_runs(graph: Graph) -> Graph:
    """Return the ML graph of a step whose runtime runs every operation once: none may run again."""
    arrays = graph_to_arrays(graph)
    arrays["recompute"] = np.zeros(len(graph), dtype=bool)
    return graph_from_arrays(graph.names, name=graph.name, **arrays)
