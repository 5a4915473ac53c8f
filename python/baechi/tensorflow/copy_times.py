# SPDX-License-Identifier: Apache-2.0
"""How long TensorFlow takes to copy between devices: its side of `baechi calibrate` (Paper 4.1)."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence

import tensorflow as tf

from baechi._core import InputError
from baechi.calibrate import Device
from baechi.tensorflow.devices import full_name, gpu_memory


def copies(names: Sequence[str]) -> TensorFlowCopies:
    """Return the copies between the named devices; without names, between all GPUs."""
    if not names:
        names = [device.name for device in tf.config.list_logical_devices("GPU")]
        if not names:
            raise InputError("no GPU is found; name devices, e.g. --devices GPU:0,CPU:0")
    _split_cpu([name for name in names if "CPU:" in name.upper()])
    full = [full_name(name) for name in names]
    if sum(":CPU:" in name for name in full) > 1:
        warnings.warn(
            "logical CPU devices share the machine's memory: a copy between them hands over a "
            "pointer, whatever the size",
            stacklevel=2,
        )
    return TensorFlowCopies(full)


def _split_cpu(names: Sequence[str]) -> None:
    """Make as many logical CPUs as are named, if TensorFlow has not started yet."""
    try:
        wanted = 1 + max((int(name.rpartition(":")[2]) for name in names), default=0)
    except ValueError:
        return  # no name of a device: full_name says so
    physical = tf.config.list_physical_devices("CPU")[0]
    if wanted == 1 or tf.config.get_logical_device_configuration(physical) is not None:
        return
    try:
        tf.config.set_logical_device_configuration(
            physical, [tf.config.LogicalDeviceConfiguration()] * wanted
        )
    except RuntimeError:
        return  # it has started: full_name says what there is


class TensorFlowCopies:
    """Copies between devices of TensorFlow, one at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self.devices: list[Device] = []
        counts: dict[str, int] = {}
        for name in names:
            kind = "cpu" if ":CPU:" in name else "gpu"
            index = counts[kind] = counts.get(kind, -1) + 1
            self.devices.append(Device(f"{kind}:{index}", kind, _capacity(name)))

    def time(self, source: int, target: int, size: int) -> Callable[[], float]:
        """Return a function that copies `size` bytes and returns the seconds until all is done."""
        try:
            with tf.device(self._names[source]):
                sent = tf.ones((size,), tf.uint8)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(str(error)) from None
        there = self._names[target]

        def copy() -> float:
            tf.test.experimental.sync_devices()
            start = time.perf_counter()
            try:
                with tf.device(there):
                    received = tf.identity(sent)
                tf.test.experimental.sync_devices()
            except tf.errors.ResourceExhaustedError as error:
                raise MemoryError(str(error)) from None
            seconds = time.perf_counter() - start
            if received.device != there:
                raise InputError(f"TensorFlow copied to {received.device} instead of {there}")
            return seconds

        return copy


def _capacity(name: str) -> int:
    if ":CPU:" in name:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return gpu_memory()[int(name.rpartition(":")[2])]
