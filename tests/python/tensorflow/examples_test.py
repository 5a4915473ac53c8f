# SPDX-License-Identifier: Apache-2.0
"""The example of limited memory runs: plans without a GPU, steps and peaks with one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

METHODS = ("m-topo", "m-etf", "m-sct", "auto")


def run_example(root: Path, *arguments: str) -> str:
    script = root / "examples" / "tensorflow_insufficient_memory.py"
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_plans(root: Path) -> None:
    out = run_example(root, "mlp", "--small", "--batch", "8", "--memory", "1")
    assert "take no memory limit" in out
    for method in METHODS:
        assert re.search(rf"{method} on 4x1MiB: \d+ ms, peaks of", out), out


@pytest.mark.skipif(
    not tf.config.list_physical_devices("GPU"), reason="needs a GPU and TensorFlow's build for it"
)
def test_limited_gpus_train_what_one_of_them_cannot(root: Path) -> None:
    # 54 million weights: 214 MB, and as much for gradients and each of Adam's two slots
    out = run_example(root, "mlp", "--batch", "128", "--memory", "700", "--steps", "2")
    assert "one device: out of memory" in out
    peaks = [
        (int(found), int(planned))
        for found, planned in re.findall(r"peak (\d+) MiB, planned (\d+) MiB", out)
    ]
    assert len(peaks) >= 4
    for found, _ in peaks:
        assert found <= 700
    assert re.search(r"auto: \d+ ms per step", out), out
