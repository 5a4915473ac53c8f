# SPDX-License-Identifier: Apache-2.0
"""Predicted steps of placed Keras models beside measured ones, on logical devices of the CPU."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from experiments.page import Column, Page, Table, changes, milliseconds, nanoseconds, percent
from experiments.progress import each

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMMARY = """\
**Work.** What the profiler measured of all operators, each alone, is -19 to +14% off the processor
time that a step takes of all cores: what TensorFlow needs to start an operator and to hand its
result over is in the one and not in the other, and grows with the number of devices.

**Steps.** The predicted step is that of a machine with one core for each device, which runs one
operator at a time. This one has two cores for all of them, and TensorFlow runs operators that wait
for nothing on any core that is free, on one device as well. That is why steps on one device, and
those that m-TOPO predicts to be as long, are 16 to 42% shorter than predicted; and steps that
`auto` spreads over four devices are up to 54% longer, since four devices need four cores. What a
placement gains cannot be seen on such devices."""
# Logical devices share the memory: a tensor is handed over, not copied.
LINK = "20us,20GB/s"
WAYS = ((1, "single"), (2, "m-topo"), (4, "m-topo"), (4, "auto"))
# Kernels that take long beside what TensorFlow needs to start one; changes of the small sizes.
MEDIUM: dict[str, tuple[dict[str, Any], int]] = {
    "mlp": ({"inputs": 784, "hidden": 1024, "layers": 4, "dropout": 0.0}, 128),
    "transformer": (
        {"vocabulary": 2000, "width": 128, "feed_forward": 512, "layers": 2, "length": 32},
        16,
    ),
    "gnmt": ({"vocabulary": 2000, "hidden": 128, "length": 5}, 64),
    "inception-v3": ({"image": 107, "width": 0.25}, 8),
}


def four_devices() -> None:
    """Split the CPU, one thread per kernel: before TensorFlow does anything else."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 4
        )


def rows_of(name: str, sizes: Mapping[str, Any], batch: int, steps: int) -> list[dict[str, Any]]:
    """Place one model in all ways, with costs measured each time."""
    import dataclasses

    import baechi.tensorflow

    from models.tensorflow import MODELS

    entry = MODELS[name]
    config = dataclasses.replace(entry.small(), **sizes)
    x, y = entry.inputs(config, batch)
    rows = []
    for devices, method in WAYS:
        model = entry.compiled(config)
        cluster = baechi.Cluster(f"{devices}x4GiB", link=LINK)
        placed = baechi.tensorflow.place(
            model, x, y, cluster=cluster, profile="measure", method=method, bounds=False
        )
        timed = [_step(model, x, y) for _ in range(2 + steps)][2:]
        placed.restore()
        found = {"workload": name, "sizes": changes(sizes), "batch": batch, "devices": devices}
        rows.append(found | _compared(placed.plan, timed))
    return rows


def _compared(plan: Any, timed: list[tuple[float, float]]) -> dict[str, Any]:
    """Return what was predicted, what was measured, and how far off that is."""
    wall, used = (nanoseconds(statistics.median(part)) for part in zip(*timed, strict=True))
    work = sum(plan.busy_ns.values())
    return {
        "method": plan.method,
        "operators": len(plan.graph),
        "work": work,
        "processor": used,
        "work_error": work / used - 1,
        "predicted": plan.makespan_ns,
        "measured": wall,
        "error": plan.makespan_ns / wall - 1,
        "load": round(os.getloadavg()[0], 1),
    }


def _step(model: Any, x: Any, y: Any) -> tuple[float, float]:
    start, used = time.perf_counter(), time.process_time()
    model.train_on_batch(x, y)
    return time.perf_counter() - start, time.process_time() - used


def table(rows: list[dict[str, Any]]) -> Table:
    """What was predicted beside what was measured."""
    return Table(
        "Real clock, kernels of the CPU",
        [
            Column("workload", "model"),
            Column("batch", "batch"),
            Column("devices", "devices"),
            Column("method", "method"),
            Column("operators", "operators"),
            Column("work", "predicted work", milliseconds),
            Column("processor", "processor time", milliseconds),
            Column("work_error", "error", percent),
            Column("predicted", "predicted step", milliseconds),
            Column("measured", "measured", milliseconds),
            Column("error", "error", percent),
            Column("load", "load"),
        ],
        rows,
        "Milliseconds, medians of 5 steps of `train_on_batch`. *Predicted work* is what the "
        "profiler measured of all operators, on the wall's clock; *processor time* is what the "
        "step took of all cores; *load* is how many programs wanted one of two cores.",
    )


def page(rows: list[dict[str, Any]]) -> Page:
    """The page, from its rows."""
    return Page(
        "truth_tensorflow",
        "Is the prediction true? TensorFlow",
        "Keras models of models/tensorflow train on four logical devices of this machine's CPU, "
        "placed by baechi.tensorflow.place with costs measured there. The models are small; their "
        "sizes are at the end.",
        "b",
        [table(rows)],
        SUMMARY,
        sizes="What is not as in the tests of models/tensorflow.",
    )


def run() -> Page:
    """The page."""
    four_devices()
    rows: list[dict[str, Any]] = []
    for name in each(list(MEDIUM)):
        rows += rows_of(name, *MEDIUM[name], 5)
    return page(rows)
