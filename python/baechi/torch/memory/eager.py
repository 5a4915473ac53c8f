# SPDX-License-Identifier: Apache-2.0
"""The peak memory of each device, from the recorded step (beyond the paper).

Eager PyTorch allocates and frees in the order of the program, whatever order the devices work in,
so the peak under a placement is that of the recorded step with every storage on the device of the
operator that makes it, and a copy of it on every other device that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from baechi.torch.base import _private
from baechi.torch.memory.beside import gradient_memory, permanent_memory, update_memory
from baechi.torch.memory.gradients import TICKS, Gradients
from baechi.torch.memory.outputs import Outputs
from baechi.torch.memory.recomputed import Recomputed
from baechi.torch.record.autograd_graph import AutogradNode
from baechi.torch.record.recorded_step import (
    LOSS,
    Capture,
    KernelRun,
    TensorObject,
    kept_ops,
    rounded,
)
from baechi.torch.weights.homes import homes_by_name

UPDATE = "the optimizer's update"


@dataclass(frozen=True)
class Peak:
    """The most bytes that a device holds, and what runs then."""

    bytes: int
    operator: str


@dataclass(frozen=True)
class StepContext:
    """What decides the memory of a step beside the placement."""

    optimizer: str = "adam"  # whose state is held beside each trained parameter
    home: str | None = None  # the device where the model is called; None: not one of them
    given: int = 0  # bytes of the arguments that the caller holds there
    host: Collection[str] = ()  # those of the devices that are the CPU
    held_gradients: bool = False  # those of the step before are there while the forward runs
    held_outputs: bool = True  # what that step returned, too, until the model returns again
    # The memory that a device has a share of, as logical devices of one physical device do; the
    # peaks are then those of the memories.
    memory_of: Mapping[str, str] = field(default_factory=dict)


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return what an allocator takes for tensors; those that share memory count once."""
    storages = {_private.storage_address(t): t.untyped_storage().nbytes() for t in tensors}
    return sum(map(rounded, storages.values()))


class StepMemory:
    """The recorded step under a placement."""

    def __init__(
        self,
        captured: Capture,
        device_of: Mapping[str, str],
        weights: Mapping[str, str],
        around: StepContext,
    ) -> None:
        self._captured = captured
        self._around = around
        self._home = home = around.home
        self._weight_device = weights
        self._end = len(captured.trace)
        stands = kept_ops(captured)
        self._device: list[str | None] = []
        for index, op in enumerate(captured.ops):
            stand = stands[index]
            key = None if stand is None else captured.ops[stand].key
            loss = op.key.startswith(LOSS) and captured.training
            device = home if key is None else device_of.get(key)  # of an argument, a view
            if op.only_views and op.returned and isinstance(op.returned[0], str):
                device = weights.get(op.returned[0])  # it is a weight's view
            if op.inner is not None:
                device = self._device[op.inner] or home
            self._device.append(home if loss else device)
        self._freed = {e: at for at, e in enumerate(captured.trace) if isinstance(e, int)}
        self._changes: dict[str, list[tuple[int, int]]] = {}
        self._forward_end = self._returned = self._end
        self._begins = [op.end for op in captured.ops]
        for at, event in enumerate(captured.trace):
            if isinstance(event, KernelRun) and event.backward:
                self._forward_end = min(self._forward_end, at)
            elif isinstance(event, KernelRun):
                self._begins[event.op] = min(self._begins[event.op], at)
        self._savers: dict[int, list[int]] = {}
        for index, op in enumerate(captured.ops):
            for tensor in op.saved:
                self._savers.setdefault(tensor, []).append(index)
        self._objects: dict[int, list[TensorObject]] = {}
        for seen in captured.seen:
            self._objects.setdefault(seen.tensor, []).append(seen)
        self._handed_on: dict[int, list[int]] = {}  # what is handed on of it, by number
        for number, seen in enumerate(captured.seen):
            if seen.handed is not None:
                self._handed_on.setdefault(seen.handed, []).append(number)
        self._takers: dict[int, list[int]] = {}  # of what the code holds
        self._takers_of: dict[int, list[int]] = {}  # of a storage
        for index, op in enumerate(captured.ops):
            for number in op.takes:
                self._takers.setdefault(number, []).append(index)
                self._takers_of.setdefault(captured.seen[number].tensor, []).append(index)

    def peaks(self, devices: Iterable[str]) -> dict[str, Peak]:
        """Return the most bytes that each memory holds."""
        around, weights = self._around, self._weight_device
        permanent = dict.fromkeys(devices, 0)
        always = [permanent_memory(self._captured, weights, around.optimizer), self.constants()]
        if around.held_gradients:
            always.append(gradient_memory(self._captured, weights))
        if around.home is not None:
            always.append({around.home: around.given})
        for held in always:
            for device, size in held.items():
                permanent[device] = permanent.get(device, 0) + size
        update = update_memory(self._captured, weights, around.optimizer, around.host)
        return self._peaks_over(permanent, update)

    def constants(self) -> dict[str, int]:
        """Return the bytes that are held as long as there is a program: of modules, none."""
        return {}

    def _peaks_over(
        self, permanent: Mapping[str, int], update: Mapping[str, int]
    ) -> dict[str, Peak]:
        memory_of = self._around.memory_of
        self._hold_tensors()
        held, more = _by_memory(permanent, memory_of), _by_memory(update, memory_of)
        changes: dict[str, list[tuple[int, int]]] = {}
        for device, own in self._changes.items():
            changes.setdefault(memory_of.get(device, device), []).extend(own)
        result = {}
        for memory, kept in held.items():
            now, peak, peak_at = 0, 0, 0
            for at, change in sorted(changes.get(memory, ()), key=lambda c: (c[0], c[1] > 0)):
                if at >= self._end * TICKS:
                    break  # the optimizer's update, with the gradients
                now += change
                if now > peak:
                    peak, peak_at = now, at
            if now + more.get(memory, 0) > peak:
                peak, peak_at = now + more.get(memory, 0), self._end * TICKS
            result[memory] = Peak(kept + peak, self._running_at(peak_at // TICKS))
        return result

    def _running_at(self, at: int) -> str:
        if at >= self._end and self._captured.training:
            return UPDATE
        for event in reversed(self._captured.trace[: at + 1]):
            if isinstance(event, KernelRun):
                return self._captured.ops[event.op].key
        return self._captured.ops[0].key if self._captured.ops else UPDATE

    def _hold(self, device: str | None, tensor: int, start: int, end: int) -> None:
        size = self._captured.tensors[tensor].bytes
        self._hold_bytes(device, size, start * TICKS, max(end, start + 1) * TICKS)

    def _hold_bytes(self, device: str | None, size: int, start: int, end: int) -> None:
        if device is not None:
            changes = self._changes.setdefault(device, [])
            changes.append((start, size))
            changes.append((end, -size))

    def _device_of_node(self, node: AutogradNode) -> str | None:
        if node.weight is not None:
            return self._weight_device.get(node.weight)
        if node.leaf is not None:
            maker = self._captured.tensors[node.leaf].producer
            return self._home if maker is None else self._device[maker]
        return self._home if node.op is None else self._device[node.op]

    def _hold_tensors(self) -> None:
        gradients = Gradients(
            self._captured,
            self._device_of_node,
            self._hold_bytes,
            self._sent_behind(),
            added_to_held=self._around.held_gradients,
        ).replay()
        made: dict[int, tuple[str | None, int]] = {}
        for at, event in enumerate(self._captured.trace):
            if isinstance(event, KernelRun):
                for tensor in event.made:
                    made.setdefault(tensor, (self._device[event.op], at))
        forward = {t: where for t, where in made.items() if t not in gradients}
        self._outputs = Outputs(self._captured, self._device, self._home, forward)
        self._returned = self._outputs.returned_at(self._begins, self._forward_end)
        self._hold_forward(forward)
        if self._around.held_outputs:
            last = self._outputs.of_last_step()
            self._hold_bytes(self._home, last, 0, self._returned * TICKS + 1)
        if self._captured.again:
            Recomputed(self._captured, self._device, self._hold_bytes).hold(forward)

    def _hold_forward(self, made: Mapping[int, tuple[str | None, int]]) -> None:
        """Hold what the forward makes; `made`: the device and the event, by tensor."""
        for tensor, (device, start) in made.items():
            if self._is_kept(tensor):  # and what it replaces is there until then
                self._hold(device, tensor, 0, start + 1)
                self._hold(device, tensor, start, self._end)
                continue
            self._hold(device, tensor, start, self._activation_end(tensor, device, start))
        for number, ops in self._takers.items():
            self._hold_copies(number, ops, made)
        self._hold_copies_beside(made)
        for size, until in self._outputs.sent_home(self._takers):
            start, end = self._returned * TICKS, self._end if until is None else until
            self._hold_bytes(self._home, size, start, max(end * TICKS, start + 1))

    def _is_kept(self, tensor: int) -> bool:
        """Whether the model keeps a tensor for its next call."""
        known = self._captured.tensors[tensor]
        maker = None if known.producer is None else self._captured.ops[known.producer]
        return (
            tensor not in self._freed
            and not known.returned
            and maker is not None
            and not maker.key.startswith(LOSS)
        )

    def _sent_behind(self) -> dict[tuple[int, int], int]:
        """Return when an output of a node first goes to another device, as nodes are ordered."""
        result: dict[tuple[int, int], int] = {}
        for number, ops in self._takers.items():
            seen = self._captured.seen[number]
            if seen.node is None:
                continue
            maker = self._captured.nodes[seen.node[0]].op if seen.maker is None else seen.maker
            near = None, None if maker is None else self._device[maker]
            away = [op for op in ops if self._device[op] not in near]
            if away:  # a view by attribute, which no operator returned, is sent when it is read
                sender = seen.sender(away[0])
                result[seen.node] = 2 * away[0] - 1 if sender is None else 2 * sender
        return result

    def _released(self, tensor: int, savers: Iterable[int]) -> int | None:
        """Return when the backwards of operators let go of a tensor that they saved."""
        ops = self._captured.ops
        return max((ops[s].released.get(tensor, self._end) for s in savers), default=None)

    def _savers_on(self, tensor: int, device: str | None) -> list[int]:
        return [s for s in self._savers.get(tensor, ()) if self._device[s] == device]

    def _activation_end(self, tensor: int, device: str | None, start: int) -> int:
        """Return when the memory of what an operator made in the forward is freed on its device."""
        freed = self._freed.get(tensor, self._end)
        if self._captured.tensors[tensor].returned and device == self._home:
            return freed
        saved = self._released(tensor, self._savers_on(tensor, device))
        held = [
            self._held_until(s, device)
            for s in self._objects.get(tensor, ())
            if s.handed is None or self._giver(s) == device  # else it is another's copy
        ]
        local = max(held, default=start if tensor in self._savers else freed)
        if tensor in self._savers or self._captured.tensors[tensor].returned:
            local = min(local, self._forward_end)
        return min(max(local, saved or 0), freed)

    def _held_until(self, seen: TensorObject, device: str | None) -> int:
        """Return when a device lets go of a tensor: of a gradient for another, when it is sent.

        That is when all has run of what made it, whose other gradients are there by then, too.
        """
        if seen.reader is not None and self._device[seen.reader] != device:
            return self._captured.ops[seen.given[-1]].end if seen.given else 0
        return self._end if seen.until is None else seen.until

    def _giver(self, seen: TensorObject) -> str | None:
        """Return the device that a gradient is handed on from."""
        assert seen.handed is not None
        reader = self._captured.seen[seen.handed].reader
        return None if reader is None else self._device[reader]

    def _with_handed_on(self, number: int, where: str | None) -> list[int]:
        """Return what the code holds of a copy on a device: it, and what is handed on there."""
        found = [number]
        for other in self._handed_on.get(number, ()):
            reader = self._captured.seen[other].reader
            if reader is not None and self._device[reader] == where:
                found += self._with_handed_on(other, where)
        return found

    def _hold_copies(self, number: int, takers: list[int], made: Any) -> None:
        """Hold what is sent of a tensor to the devices of those who take it."""
        seen = self._captured.seen[number]
        owner = made[seen.tensor][0] if seen.tensor in made else self._home
        where = owner if seen.reader is None else self._device[seen.reader]
        near = {owner} if owner == where else set()
        if seen.handed is not None:
            if self._giver(seen) == where:
                return  # it is what came there
            near = set()
        kept = any(self._device[s] == where for s in seen.kept)
        same = self._with_handed_on(number, where)
        ends = [self._captured.seen[n].until for n in same]
        until = self._forward_end if kept else max(self._end if u is None else u for u in ends)
        also = [t for n in same[1:] for t in self._takers.get(n, ())]
        for device in {self._device[t] for t in takers} - near:
            mine = [t for t in takers if self._device[t] == device]
            start = self._begins[mine[0]] * TICKS
            sender = seen.sender(mine[0])
            if sender is not None:  # it is sent before that one's own arguments are let go of
                start = min(start, self._captured.ops[sender].end * TICKS - 1)
            savers = [
                saver
                for saver in self._savers_on(seen.tensor, device)
                if saver in (*mine, *also) or self._captured.ops[saver].inner in mine
            ]
            end = max(min(until, self._forward_end), self._released(seen.tensor, savers) or 0)
            self._hold_bytes(device, seen.bytes, start, max(end * TICKS, start + 1))

    def _hold_copies_beside(self, made: Mapping[int, tuple[str | None, int]]) -> None:
        """Hold what is sent of tensors that operators read beside their arguments."""
        readers: dict[tuple[int, str], list[int]] = {}
        for index, op in enumerate(self._captured.ops):
            device = self._device[index]
            for tensor in op.reads.keys() - op.arrives.keys():
                if tensor in made and device is not None and made[tensor][0] not in (None, device):
                    readers.setdefault((tensor, device), []).append(index)
        for (tensor, device), ops in readers.items():
            if any(self._device[t] == device for t in self._takers_of.get(tensor, ())):
                continue  # it is there for those who take it
            held = [s.until for s in self._objects.get(tensor, ())]
            until = max((self._end if u is None else u for u in held), default=self._end)
            savers = [index for index in ops if tensor in self._captured.ops[index].saved]
            end = max(min(until, self._forward_end), self._released(tensor, savers) or 0)
            self._hold(device, tensor, self._begins[ops[0]], end)


def _by_memory(counts: Mapping[str, int], memory_of: Mapping[str, str]) -> dict[str, int]:
    result: dict[str, int] = {}
    for device, count in counts.items():
        memory = memory_of.get(device, device)
        result[memory] = result.get(memory, 0) + count
    return result


def peak_memory(captured: Capture, device_of: Mapping[str, str], **options: Any) -> dict[str, int]:
    """Return the most bytes of `peaks_of`; the options are those of `StepContext`."""
    found = peaks_of(captured, device_of, StepContext(**options))
    return {device: peak.bytes for device, peak in found.items()}


def peaks_of(
    captured: Capture, device_of: Mapping[str, str], around: StepContext
) -> dict[str, Peak]:
    """Return the most bytes that each device holds during a step of the model's own code.

    Args:
        captured: The recorded step.
        device_of: The device of every operator.
        around: What else decides.

    """
    step = StepMemory(captured, device_of, homes_by_name(captured, device_of), around)
    return step.peaks(device_of.values())
