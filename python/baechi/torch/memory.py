# SPDX-License-Identifier: Apache-2.0
"""The peak memory of each device, from the recorded step (beyond the paper).

Eager PyTorch allocates and frees in the order of the program, whatever order the devices work in,
so the peak under a placement is that of the recorded step with every storage on the device of the
operator that makes it, and a copy of it on every other device that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baechi.torch.capture import Capture, Run
from baechi.torch.profiler import OPTIMIZERS, kept_ops

LOSS = "loss/"


class _Step:
    """The recorded step under a placement."""

    def __init__(self, captured: Capture, device_of: Mapping[str, str], home: str | None) -> None:
        self._captured = captured
        self._home = home
        self._end = len(captured.trace)
        stands = kept_ops(captured)
        self._device: list[str | None] = []
        for index, op in enumerate(captured.ops):
            stand = stands[index]
            key = None if stand is None else captured.ops[stand].key
            loss = op.key.startswith(LOSS) and captured.training
            self._device.append(home if loss else device_of.get(key) if key is not None else None)
        self._freed = {e: at for at, e in enumerate(captured.trace) if isinstance(e, int)}
        self._changes: dict[str, list[tuple[int, int]]] = {}
        self._forward_end = self._end
        self._backward_end: dict[int, int] = {}
        for at, event in enumerate(captured.trace):
            if isinstance(event, Run) and event.backward:
                self._forward_end = min(self._forward_end, at)
                self._backward_end[event.op] = at
        self._next_op = [self._end] * (self._end + 1)  # where another operator runs
        following: int | None = None
        first = self._end
        for at in range(self._end - 1, -1, -1):
            event = captured.trace[at]
            self._next_op[at] = self._next_op[at + 1]
            if isinstance(event, Run):
                if following is not None and event.op != following:
                    self._next_op[at] = first
                following, first = event.op, at
        self._savers: dict[int, list[int]] = {}
        for index, op in enumerate(captured.ops):
            for tensor in op.saved:
                self._savers.setdefault(tensor, []).append(index)

    def peaks(self, permanent: Mapping[str, int]) -> dict[str, int]:
        """Return the most bytes that each device holds."""
        self._hold_tensors()
        result = dict(permanent)
        for device, changes in self._changes.items():
            now = peak = 0
            for _, change in sorted(changes, key=lambda c: (c[0], c[1] > 0)):
                now += change
                peak = max(peak, now)
            result[device] = result.get(device, 0) + peak
        return result

    def _hold(
        self, device: str | None, tensor: int, start: int, end: int, part: int | None = None
    ) -> None:
        size = self._captured.tensors[tensor].bytes
        size = size if part is None else min(part, size)
        if device is None or size == 0:
            return
        changes = self._changes.setdefault(device, [])
        changes.append((start, size))
        changes.append((max(end, start + 1), -size))

    def _hold_tensors(self) -> None:
        made: dict[int, tuple[str | None, int, bool]] = {}
        read: dict[int, dict[str | None, list[int]]] = {}
        self._parts: dict[tuple[int, str | None], dict[int, int]] = {}
        for at, event in enumerate(self._captured.trace):
            if not isinstance(event, Run):
                continue
            device = self._device[event.op]
            for tensor in event.made:
                made.setdefault(tensor, (device, at, event.backward))
            for tensor, size in event.reads:
                read.setdefault(tensor, {}).setdefault(device, []).append(at)
                if not event.backward:
                    size = self._captured.ops[event.op].arrives.get(tensor, size)
                parts = self._parts.setdefault((tensor, device), {})
                parts[event.op] = max(parts.get(event.op, 0), size)
        for tensor in {**made, **read}:
            owner, start, backward = made.get(tensor, (None, 0, False))
            readers = read.get(tensor, {})
            if backward:
                self._hold_gradient(tensor, owner, start, readers)
            else:
                self._hold_activation(tensor, owner, start, readers)

    def _saved_until(self, tensor: int, device: str | None) -> int | None:
        """Return when the last backward that was kept a tensor on a device for is over."""
        savers = [s for s in self._savers.get(tensor, ()) if self._device[s] == device]
        ends = [self._backward_end.get(s, self._freed.get(tensor, self._end)) for s in savers]
        return max(ends) + 1 if ends else None

    def _released(self, saved: int, tensor: int, device: str | None) -> int:
        """Return when a copy that was kept for the backward is freed: with its last node's run."""
        if all(self._device[s] == device for s in self._savers[tensor]):
            return min(saved, self._freed.get(tensor, saved))
        return saved

    def _hold_activation(
        self, tensor: int, owner: str | None, start: int, readers: Mapping[Any, list[int]]
    ) -> None:
        freed = self._freed.get(tensor, self._end)
        forward_reads = [at for ats in readers.values() for at in ats if at < self._forward_end]
        last_read = max(forward_reads, default=start) + 1
        saved = self._saved_until(tensor, owner)
        if saved is not None:
            end = min(saved, freed)
        elif tensor in self._savers or (self._captured.tensors[tensor].returned):
            end = min(freed, last_read if tensor in self._savers else self._forward_end)
        else:
            end = freed
        if self._captured.tensors[tensor].returned and owner == self._home:
            end = max(end, freed)
        self._hold(owner, tensor, start, end)
        for device, ats in readers.items():
            first = min(ats)
            if device == owner or (first >= self._forward_end and tensor in self._savers):
                continue
            saved = self._saved_until(tensor, device)
            until = min(self._forward_end, end if owner is not None else self._end)
            if saved is not None:
                until = self._released(saved, tensor, device)
            self._hold(device, tensor, first, until, max(self._parts[tensor, device].values()))

    def _hold_gradient(
        self, tensor: int, owner: str | None, start: int, readers: Mapping[Any, list[int]]
    ) -> None:
        freed = self._freed.get(tensor, self._end)
        elsewhere = {d: ats for d, ats in readers.items() if d != owner}
        sent = self._next_op[start]
        end = freed
        if elsewhere and freed < self._end:
            end = max([sent, *readers.get(owner, [])]) + 1
        self._hold(owner, tensor, start, min(end, freed))
        for device, ats in elsewhere.items():
            parts = sum(self._parts[tensor, device].values())
            self._hold(device, tensor, min(sent, min(ats)), max(freed, max(ats) + 1), parts)


def permanent_memory(
    captured: Capture, device_of: Mapping[str, str], optimizer: str
) -> dict[str, int]:
    """Return the bytes of weights and optimizer state on each device."""
    user: dict[str, str] = {}
    for op in captured.ops:
        for name in op.weights:
            if op.key in device_of:
                user.setdefault(name, device_of[op.key])
    state = OPTIMIZERS[optimizer] if captured.training else 0
    result = dict.fromkeys(device_of.values(), 0)
    last = next(iter(user.values()), next(iter(device_of.values())))
    for name, weight in captured.weights.items():
        last = user.get(name, last)
        result[last] += weight.bytes * (1 + (state if weight.trained else 0))
    return result


def peak_memory(
    captured: Capture,
    device_of: Mapping[str, str],
    *,
    optimizer: str = "adam",
    home: str | None = None,
) -> dict[str, int]:
    """Return the most bytes that each device holds during a step.

    Args:
        captured: The recorded step.
        device_of: The device of every operator.
        optimizer: Whose state is held beside each trained parameter.
        home: The device where the model is called and the loss is taken; None: not one of them.

    """
    step = _Step(captured, device_of, home)
    return step.peaks(permanent_memory(captured, device_of, optimizer))
