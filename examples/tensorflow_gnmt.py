#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GNMT trains on four logical devices, and the report shows why it is placed so.

    words -> [encoder: 4 LSTM layers, unrolled] -> [decoder: 4 LSTM layers + attention] -> logits
                CPU:0 ... CPU:3: whichever device the plan says, cell by cell

Needs `baechi[tensorflow]`; no GPU. The devices are parts of the CPU, so that the placement is real
and its speed is not. A minute with the default sizes; `--full` is the paper's model.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import webbrowser
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import baechi.tensorflow
import tensorflow as tf

import baechi
from models.tensorflow import MODELS


def main() -> None:
    """Place, train, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the paper's sizes; needs 16 GiB")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cluster", help="four devices (default: a third of one's need each)")
    parser.add_argument("--report", default="gnmt_report.html", help="the page to write")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    options = parser.parse_args()

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

    entry = MODELS["gnmt"]
    small = {"vocabulary": 500, "hidden": 64, "length": 6}
    config = entry.config(**({} if options.full else small))
    model = entry.compiled(config)
    x, y = entry.inputs(config, options.batch)

    start = time.perf_counter()
    captured = baechi.tensorflow.capture(model, x, y)
    need = baechi.tensorflow.plan(captured, cluster="1x1TiB", method="single").peaks["gpu:0"]
    print(f"one device would need {need / 2**20:.0f} MiB")
    cluster = options.cluster or f"4x{need // 3 // 2**20 + 1}MiB"
    placed = baechi.tensorflow.place(captured, cluster=cluster)
    assert placed.plan is not None
    print(f"traced, planned, placed and read back in {time.perf_counter() - start:.1f} s")
    print(f"{placed}; {placed.check()}")
    for device, peak in placed.plan.peaks.items():
        print(f"  {device}: at most {peak / 2**20:.1f} MiB of {cluster}")
    print(f"a step on such GPUs: {placed.plan.makespan_ns / 1e6:.1f} ms ({placed.plan.method})")

    model.fit(x, y, batch_size=options.batch, epochs=options.steps, verbose=2)
    page = baechi.report(placed.plan, options.report)
    print(f"report: {page}")
    if options.open:
        webbrowser.open(page.resolve().as_uri())
    placed.restore()


if __name__ == "__main__":
    main()
