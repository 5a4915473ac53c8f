# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow's trace of a session step says of each operator (Paper 4.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_DEVICE = re.compile(r"/device:(\w+):(\d+)(?:/(.*))?$", re.IGNORECASE)
_KERNELS = "stream:all"  # every kernel of a GPU, whatever its stream
_FIRST_REFERENCE = 100  # data types above are references to variables of TensorFlow 1


@dataclass
class Measured:
    """One operator in one step; what has no kernel of its own on a GPU has its host time."""

    device: str = ""  # "CPU:0"
    host: int = 0  # nanoseconds on the host: of a GPU's operator no more than its launch
    kernels: int | None = None  # nanoseconds of its kernels on a GPU
    temporary: int = 0
    transferred: dict[int, int] = field(default_factory=dict)  # by port
    allocated: dict[int, int] = field(default_factory=dict)
    ran: str = ""  # the operation that ran, which may stand for two

    @property
    def time(self) -> int:
        """Nanoseconds."""
        return self.host if self.kernels is None else self.kernels

    @property
    def kind(self) -> str:
        """TensorFlow's name for the kind of the device, such as "GPU"."""
        return self.device.partition(":")[0]


def nanoseconds(node: Any) -> int:
    """Return how long an operator or kernel ran; where nanoseconds are missing, microseconds."""
    precise = node.op_end_rel_nanos - node.op_start_rel_nanos
    if precise > 0:
        return int(precise)
    return max(0, int(node.op_end_rel_micros - node.op_start_rel_micros)) * 1000


def bytes_of(dtype: int, sizes: Iterable[int]) -> int:
    """Return what another device has to be sent of a tensor; handles and text are nothing."""
    kind = tf.dtypes.as_dtype(dtype) if dtype < _FIRST_REFERENCE else None
    if kind is None or kind in (tf.resource, tf.variant, tf.string):
        return 0
    total = int(kind.size)
    for size in sizes:
        total *= size
    return total


def measured_steps(
    steps: Sequence[Any], operators: Mapping[str, str], loops: Iterable[str] = ()
) -> list[dict[str, Measured]]:
    """Return for each step what was measured of each operator.

    Args:
        steps: The StepStats of traced runs.
        operators: The operation of each operator, by name; what else ran is left out.
        loops: Operators that are whole loops: what runs as part of one counts for it.

    """
    return [_measured_step(step, operators, tuple(f"{name}/" for name in loops)) for step in steps]


def _measured_step(
    step: Any, operators: Mapping[str, str], loops: tuple[str, ...]
) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    launched: list[tuple[str, Any]] = []
    for device in step.dev_stats:
        match = _DEVICE.search(device.device)
        if match is None:
            continue
        name = f"{match[1].upper()}:{match[2]}"
        if match[3] is None:
            for node in device.node_stats:
                operator = _operator(node.node_name, operators, loops)
                if operator is not None:
                    own = operator == node.node_name
                    _add(found.setdefault(operator, Measured()), node, name, own=own)
        elif match[3] == _KERNELS:
            launched.extend((name, node) for node in device.node_stats)
    for name, node in launched:
        operator = _operator(_without_kind(node.node_name, operators), operators, loops)
        if operator is not None:
            measured = found.setdefault(operator, Measured(device=name))
            measured.kernels = (measured.kernels or 0) + nanoseconds(node)
    return found


def _without_kind(name: str, operators: Mapping[str, str]) -> str:
    """Return the operator of a kernel, which may be called "operator:Operation"."""
    if name in operators:
        return name
    return name.rpartition(":")[0] or name


def _operator(name: str, operators: Mapping[str, str], loops: tuple[str, ...]) -> str | None:
    if name in operators:
        return name
    return next((loop[:-1] for loop in loops if name.startswith(loop)), None)


def _add(measured: Measured, node: Any, device: str, *, own: bool) -> None:
    """Add one run of an operator, or of a part of a loop."""
    measured.device = device
    measured.host += nanoseconds(node)
    peak = sum(int(memory.peak_bytes) for memory in node.memory)
    if not own:
        measured.temporary = max(measured.temporary, peak)
        return
    records = sorted(
        int(record.alloc_bytes)
        for memory in node.memory
        for record in memory.allocation_records
        if record.alloc_bytes > 0
    )
    for output in node.output:
        tensor = output.tensor_description
        taken = int(tensor.allocation_description.allocated_bytes)
        if taken > 0 and taken in records:
            records.remove(taken)
        else:  # nothing was allocated for it: it is its input, or a variable, under another name
            taken = 0
        measured.allocated[output.slot] = taken
        measured.transferred[output.slot] = bytes_of(
            tensor.dtype, (dim.size for dim in tensor.shape.dim)
        )
    kept = sum(measured.allocated.values())
    if node.memory:
        measured.temporary = max(measured.temporary, peak - kept)
    else:
        measured.temporary = max(measured.temporary, int(node.memory_stats.temp_memory_size))
    _, _, run = node.timeline_label.partition(" = ")
    measured.ran = run.partition("(")[0]


def give_back_fused(
    found: dict[str, Measured],
    operators: Mapping[str, str],
    producers: Callable[[str], Iterable[str]],
) -> None:
    """Share out what ran as one operation: TensorFlow lets oneDNN's kernels do two at once.

    A convolution with a bias runs under the name of the bias; the time is the convolution's.
    """
    for name in list(found):
        measured = found[name]
        if not measured.ran or measured.ran == operators[name]:
            continue
        for producer in producers(name):
            if producer not in found and operators.get(producer, "?") in measured.ran:
                found[producer] = Measured(
                    device=measured.device,
                    host=measured.host,
                    kernels=measured.kernels,
                    temporary=measured.temporary,
                    transferred=dict(measured.transferred),
                    allocated=dict(measured.allocated),
                )
                measured.host, measured.temporary = 0, 0
                measured.kernels = None if measured.kernels is None else 0
                measured.allocated = dict.fromkeys(measured.allocated, 0)
                break
