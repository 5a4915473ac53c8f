# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's side of calibration. Copies between logical CPUs say nothing of real links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from baechi.tensorflow import copy_times

import baechi
from baechi import calibrate


def made(*names: str) -> copy_times.TensorFlowCopies:
    with pytest.warns(UserWarning, match="hands over a pointer"):
        return copy_times.copies(names)


def test_devices_are_numbered_as_a_cluster_has_them() -> None:
    copies = made("CPU:2", "/device:CPU:1")
    assert [(d.name, d.kind) for d in copies.devices] == [("cpu:0", "cpu"), ("cpu:1", "cpu")]
    assert all(device.capacity > 1 << 28 for device in copies.devices)


def test_copies_take_time_and_arrive() -> None:
    copies = made("CPU:0", "CPU:3")
    copy = copies.time(0, 1, 1 << 10)
    assert 0 < copy() < 10
    found = calibrate.measure(copies, largest=1 << 12, repeats=2)
    assert [(link.source, link.target) for link in found] == [
        ("cpu:0", "cpu:1"),
        ("cpu:1", "cpu:0"),
    ]
    assert all(len(link.samples) == 7 for link in found)
    assert all(sample.seconds > 0 for link in found for sample in link.samples)


def test_a_copy_that_went_elsewhere_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = made("CPU:0", "CPU:1")
    copy = copies.time(0, 1, 4)
    here = tf.constant(1.0)
    monkeypatch.setattr(tf, "identity", lambda _: here)
    with pytest.raises(baechi.InputError, match="instead of"):
        copy()


def test_a_device_without_room_ends_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = made("CPU:0", "CPU:1")
    ones = tf.ones

    def full(shape: tuple[int, ...], dtype: Any) -> Any:
        if shape[0] > 1000:
            raise tf.errors.ResourceExhaustedError(None, None, "no room")
        return ones(shape, dtype)

    monkeypatch.setattr(tf, "ones", full)
    (there, _) = calibrate.measure(copies, largest=1 << 20, repeats=1)
    assert [sample.bytes for sample in there.samples] == [1, 4, 16, 64, 256]


def test_what_is_no_device_is_told() -> None:
    with pytest.raises(baechi.InputError, match="TensorFlow has no device 'CPU:9'"):
        copy_times.copies(["CPU:0", "CPU:9"])
    if not tf.config.list_logical_devices("GPU"):
        with pytest.raises(baechi.InputError, match=r"no GPU is found.*--devices"):
            copy_times.copies([])


def test_the_command_makes_logical_cpus_and_a_cluster_of_them(tmp_path: Path) -> None:
    output = tmp_path / "cluster.json"
    arguments = ["--tensorflow", "--devices", "CPU:0,CPU:1", "--largest", "64", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "baechi.calibrate", *arguments, "-o", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cpu:0 -> cpu:1: latency" in done.stderr
    links = json.loads(output.read_text())["links"]
    assert [(link["from"], link["to"]) for link in links] == [
        ("cpu:0", "cpu:1"),
        ("cpu:1", "cpu:0"),
    ]
    assert len(baechi.Cluster(str(output)).devices) == 2
