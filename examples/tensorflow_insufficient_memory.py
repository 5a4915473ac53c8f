#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs with too little memory, as in Paper 5: one GPU fails, several small ones train.

    one GPU, limited      [whole step] -> ResourceExhaustedError
    four GPUs, limited    [part] [part] [part] [part]: m-TOPO, m-ETF, m-SCT, auto

GNMT has no plan in 30% of the paper's memory, where the paper's has one: give it --memory 5200
(with 3200 m-TOPO alone finds one).

Each GPU is a logical one with a memory limit, so that one large GPU can stand for several small
ones. Without a GPU nothing can be limited: then it says what a run would need, and that is planned.
Needs `baechi[tensorflow]`, and TensorFlow's build for GPUs to run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import baechi.tensorflow
import tensorflow as tf

import baechi
from models.tensorflow import MODELS

METHODS = ("m-topo", "m-etf", "m-sct", "auto")


def limit_gpus(count: int, memory: int) -> list[str]:
    """Make `count` logical GPUs of `memory` MiB from the physical ones; none without a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return []
    for index, gpu in enumerate(gpus):
        mine = len(range(index, count, len(gpus)))
        limits = [tf.config.LogicalDeviceConfiguration(memory_limit=memory)] * mine
        if mine:
            tf.config.set_logical_device_configuration(gpu, limits)
    return [device.name for device in tf.config.list_logical_devices("GPU")[:count]]


def time_of_steps(model: Any, x: Any, y: Any, steps: int) -> float:
    """Return the median seconds of a training step, the first ones left out."""
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        model.train_on_batch(x, y)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def on_one(entry: Any, config: Any, batch: tuple[Any, Any], device: str, steps: int) -> None:
    """Try to train on one device."""
    try:
        with tf.device(device):
            seconds = time_of_steps(entry.compiled(config), *batch, steps)
        print(f"  one device: {seconds * 1e3:.0f} ms per step: it fits, choose a smaller --memory")
    except tf.errors.ResourceExhaustedError as error:
        print(f"  one device: out of memory ({str(error).splitlines()[0][:80]})")


def on_all(
    entry: Any, config: Any, batch: tuple[Any, Any], cluster: str, devices: list[str], steps: int
) -> None:
    """Train on all devices, as each method plans it."""
    for method in METHODS:
        with tf.device("CPU:0"):  # so that the first GPU is not full of weights before they move
            model = entry.compiled(config)
        try:
            placed = baechi.tensorflow.place(
                model, *batch, cluster=cluster, method=method, devices=devices, dynamic_batch=False
            )
        except baechi.DoesNotFit as error:
            print(f"  {method}: {error}")
            continue
        assert placed.plan is not None
        for device in devices:
            tf.config.experimental.reset_memory_stats(device.removeprefix("/device:"))
        try:
            seconds = time_of_steps(model, *batch, steps)
        except tf.errors.ResourceExhaustedError as error:
            print(f"  {method}: out of memory all the same ({str(error).splitlines()[0][:80]})")
        else:
            print(f"  {method}: {seconds * 1e3:.0f} ms per step")
        for device, planned in zip(devices, placed.plan.peaks.values(), strict=True):
            found = tf.config.experimental.get_memory_info(device.removeprefix("/device:"))["peak"]
            print(f"    {device}: peak {found >> 20} MiB, planned {planned >> 20} MiB")
        placed.restore()


def without_gpus(model: Any, batch: tuple[Any, Any], cluster: str, one: str) -> None:
    """Say what is missing, and plan."""
    print(
        "  no GPU: the CPU's logical devices take no memory limit, so neither the failure nor the\n"
        "  peaks can be shown here, and transfers between them cost nothing; the plans:"
    )
    captured = baechi.tensorflow.capture(model, *batch)
    for devices, method in ((one, "single"), *((cluster, method) for method in METHODS)):
        try:
            plan = baechi.tensorflow.plan(captured, cluster=devices, method=method)
        except baechi.DoesNotFit as error:
            print(f"  {method} on {devices}: {error}")
            continue
        peaks = ", ".join(f"{peak / 2**20:.1f}" for peak in plan.peaks.values())
        print(f"  {method} on {devices}: {plan.makespan_ns / 1e6:.0f} ms, peaks of {peaks} MiB")


def main() -> None:
    """Run one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", choices=MODELS, default="inception-v3")
    parser.add_argument("--batch", type=int, help="default: the paper's")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument(
        "--memory",
        type=int,
        default=2400,
        help="MiB of each (30%% of the paper's, in which gnmt has no plan)",
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    options = parser.parse_args()
    devices = limit_gpus(options.devices, options.memory)

    entry = MODELS[options.model]
    config = entry.small() if options.small else entry.config()
    batch = entry.inputs(config, options.batch or entry.batches[0])
    cluster = f"{options.devices}x{options.memory}MiB"
    print(f"{options.model}, batch {len(batch[1])}, {cluster}:")
    if not devices:
        without_gpus(entry.compiled(config), batch, cluster, f"1x{options.memory}MiB")
        return
    on_one(entry, config, batch, devices[0], options.steps)
    on_all(entry, config, batch, cluster, devices, options.steps)


if __name__ == "__main__":
    main()
