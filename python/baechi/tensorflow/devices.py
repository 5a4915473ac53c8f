# SPDX-License-Identifier: Apache-2.0
"""The devices of a cluster, and the logical devices of TensorFlow that stand for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from baechi._core import Cluster, InputError
from baechi.tensorflow import _private

DEFAULT_PRESET = "rtx3090"  # for a device that is called no more than "gpu"
_HOW_TO_SPLIT = (
    "split a physical one before TensorFlow starts with tf.config.set_logical_device_configuration"
)


def full_name(device: str) -> str:
    """Write a device as TensorFlow does in the graphs that it runs, e.g. of "GPU:1".

    What names no job and task, as "/job:worker/task:1/device:CPU:0" does, is of this process.

    Raises:
        InputError: It names no device of this process, or of the tasks that it is connected to.

    """
    try:
        spec = tf.DeviceSpec.from_string(device if "/" in device else f"/device:{device}")
    except ValueError:
        raise InputError(f"{device!r} is no name of a TensorFlow device such as 'GPU:0'") from None
    name = with_task(spec)
    known = [with_task(tf.DeviceSpec.from_string(d.name)) for d in tf.config.list_logical_devices()]
    if name not in known:
        mine = with_task(tf.DeviceSpec()) + "/device:"
        short = ", ".join(k.removeprefix(mine) for k in known)
        raise InputError(f"TensorFlow has no device {device!r}, only {short}; {_HOW_TO_SPLIT}")
    return name


def with_task(spec: Any) -> str:
    """Write a device with its job and task: those of this process where it names none."""
    mine = _private.this_task() if spec.job is None else spec
    whole = spec.replace(
        job=mine.job,
        replica=spec.replica or 0,
        task=(mine.task if spec.task is None else spec.task) or 0,
    )
    return str(whole.to_string())


def devices_for(cluster: Cluster, devices: Sequence[str] | None = None) -> dict[str, str]:
    """Return the TensorFlow device of each device of a cluster.

    Args:
        cluster: The planned devices.
        devices: One TensorFlow device each, in their order; by default the logical GPUs, or the
            logical CPUs when there are too few GPUs.

    """
    names = [device.name for device in cluster.devices]
    if devices is None:
        for kind in ("GPU", "CPU"):
            found = [d.name for d in tf.config.list_logical_devices(kind)]
            if len(found) >= len(names):
                devices = found[: len(names)]
                break
        else:
            gpus, cpus = (len(tf.config.list_logical_devices(kind)) for kind in ("GPU", "CPU"))
            raise InputError(
                f"the cluster has {len(names)} devices, and TensorFlow {gpus} GPUs and {cpus} CPUs"
                f": name a smaller cluster, {_HOW_TO_SPLIT}, "
                "or name a device for each with devices=[...]"
            )
    if len(devices) != len(names):
        raise InputError(
            f"devices={list(devices)} names {len(devices)}, and the cluster has {len(names)}: "
            "name one of TensorFlow's for each, the same one several times if need be"
        )
    return {name: full_name(device) for name, device in zip(names, devices, strict=True)}


def detected_cluster() -> tuple[Cluster, list[str]]:
    """Return the logical GPUs of this process as a cluster, or its CPUs when there are several.

    A logical GPU has the memory limit it was configured with, else an equal part of what its GPU
    has free. Logical CPUs are devices of kind "cpu", and share the memory of the machine.

    Raises:
        InputError: There is one device only.

    """
    tasks = {tf.DeviceSpec.from_string(d.name).task for d in tf.config.list_logical_devices()}
    if len(tasks) > 1:
        raise InputError(
            "this process is connected to other tasks, whose memory is unknown here: name the "
            "cluster, and a device for each with devices=['/job:worker/task:0/device:GPU:0', ...]"
        )
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        memory = gpu_memory()
        line = "+".join(f"1x{capacity}B" for capacity in memory)
        return Cluster(line), [d.name for d in gpus]
    cpus = tf.config.list_logical_devices("CPU")
    if len(cpus) < 2:
        raise InputError(
            f"TensorFlow sees no GPU and one CPU: {_HOW_TO_SPLIT}, and name the cluster, "
            "e.g. cluster='2x8GiB'"
        )
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Cluster(f"{len(cpus)}xcpu:{total // len(cpus)}B"), [d.name for d in cpus]


def gpu_memory() -> list[int]:
    """Return the capacity of every logical GPU, in their order: that of the physical ones."""
    capacities = []
    for index, physical in enumerate(tf.config.list_physical_devices("GPU")):
        split = tf.config.get_logical_device_configuration(physical) or [None]
        limits = [None if one is None else one.memory_limit for one in split]
        for limit in limits:
            if limit is not None:
                capacities.append(int(limit) << 20)
            else:
                capacities.append(_free_memory(index) // len(limits))
    return capacities


def _free_memory(index: int) -> int:
    """Return the bytes that TensorFlow may take of a physical GPU."""
    import subprocess

    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        return int(lines.splitlines()[index]) << 20
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        raise InputError(
            "the memory of the GPUs is unknown: name the cluster, e.g. cluster='2x8GiB', or set "
            "LogicalDeviceConfiguration(memory_limit=MiB) for each"
        ) from None
