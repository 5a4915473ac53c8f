# SPDX-License-Identifier: Apache-2.0
"""Places a step over two tasks of a ClusterSpec, for tasks_test.py: prints what came of it.

In a process of its own: one that is connected to other tasks stays so.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import baechi.tensorflow
import tensorflow as tf

TASKS = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2)]


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except baechi.InputError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Train three steps as TensorFlow runs them, then placed from the same weights."""
    spec = tf.train.ClusterSpec({"worker": [free_address(), free_address()]})
    servers = [tf.distribute.Server(spec, job_name="worker", task_index=task) for task in range(2)]
    tf.config.experimental_connect_to_cluster(spec)
    weights = [
        tf.Variable(tf.random.stateless_normal((8, 8), (i, 1), dtype=tf.float64)) for i in range(4)
    ]
    x = tf.random.stateless_normal((4, 8), (9, 9), dtype=tf.float64)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            with tf.device("/job:worker/task:1/device:CPU:0"):  # a part of a name is enough
                loss = tf.reduce_mean(y * y, name="asked")
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    before = [weight.numpy() for weight in weights]
    losses = [float(step(x)) for _ in range(3)]
    trained = [weight.numpy() for weight in weights]
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)

    def place(**options: Any) -> Any:
        search = {"method": "random", "seed": 3, "bounds": False, "verbose": False}
        return baechi.tensorflow.place(step, x, **{**search, **options})

    placed = place(cluster="2xcpu:1GiB", devices=[TASKS[0], "/job:worker/task:1/device:CPU:0"])
    landed = placed.check()
    told = [float(placed(x)) for _ in range(3)]
    found = {
        "losses": [told, losses],
        "same": all((w.numpy() == t).all() for w, t in zip(weights, trained, strict=True)),
        "landed": [bool(landed), str(landed)],
        "devices": sorted(set(placed.device_of.values())),
        "variables": sorted(set(placed.variable_devices.values())),
        "asked": next(d for name, d in placed.device_of.items() if name.endswith("asked")),
    }
    placed.restore()
    found["auto"] = refusal(lambda: place(cluster="auto"))
    elsewhere = ["/job:worker/task:7/device:CPU:0"] * 2
    found["seventh"] = refusal(lambda: place(cluster="2xcpu:1GiB", devices=elsewhere))
    here = place(cluster="2xcpu:1GiB", devices=["CPU:0", "CPU:0"])  # of this process
    found["here"] = sorted(set(here.device_of.values()))
    print(json.dumps(found))
    del servers


if __name__ == "__main__":
    main()
