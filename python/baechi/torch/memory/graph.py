# SPDX-License-Identifier: Apache-2.0
"""The peak memory of each device while an exported graph runs (beyond the paper).

A recorded step of the graph says what every call makes, keeps and frees; the schedule that the
executor will run says on which device that is, and when its program drops what it has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baechi.torch.memory.eager import Peak, StepContext, StepMemory
from baechi.torch.memory.gradients import TICKS
from baechi.torch.record.recorded_step import Capture, rounded
from baechi.torch.trace.graph import ExportedGraph
from baechi.torch.trace.schedule import Return, Run, RunBlock, Schedule, Settle, Wait, is_everywhere

# Ticks behind the last kernel of a call, in the order in which its program goes on.
_DROPPED, _SENT, _LET_GO = 1, 2, 3

_Copy = tuple[int, int, int]  # a value, the device it went to, and its version


class _VariableTimes:
    """From when to when the program of a schedule holds its variables, in ticks of the record."""

    def __init__(self, graph: ExportedGraph, schedule: Schedule, ends: Mapping[int, int]) -> None:
        self.ends = dict.fromkeys(range(len(graph.nodes)), 0)  # of values where they are made
        self.starts: dict[_Copy, int] = {}
        self.copy_ends: dict[_Copy, int] = {}
        now = 0
        for step in schedule.steps:
            if isinstance(step, (Run, RunBlock)):
                nodes = step.segment.nodes if isinstance(step, RunBlock) else (step.node,)
                came = step.segment.reads if isinstance(step, RunBlock) else ()
                last = {r: n for n in nodes for r in graph.nodes[n].reads}
                last |= dict.fromkeys(came, nodes[-1])  # it holds its arguments to its end
                for index in nodes:
                    here = schedule.devices[index]
                    if index in ends:
                        now = max((ends[index] - 1) * TICKS, 0)
                    self.ends[index] = now + _DROPPED
                    for read in (r for r, n in last.items() if n == index):
                        reader = next(n for n in nodes if read in graph.nodes[n].reads)
                        version = schedule.copies.get((reader, read))
                        if version is None or here is None:
                            self.ends[read] = now + _DROPPED
                        else:
                            self.copy_ends[read, here, version] = now + _DROPPED
                if isinstance(step, RunBlock):
                    self.ends.update(dict.fromkeys(step.segment.makes, now + _DROPPED))
                continue
            copy = (step.value, step.target, step.version)
            if not isinstance(step, (Wait, Settle, Return)):
                self.starts[copy] = now + _SENT
                self.ends[step.value] = now + _LET_GO
            self.copy_ends[copy] = now + _LET_GO
        self.end = now + _LET_GO
        for output in graph.outputs:
            self.ends[output] = self.end


class GraphStepMemory(StepMemory):
    """The recorded step of a graph under a schedule."""

    def __init__(
        self,
        captured: Capture,
        graph: ExportedGraph,
        schedule: Schedule,
        devices: Sequence[str],
        weights: Mapping[str, str],
        around: StepContext,
    ) -> None:
        super().__init__(captured, {}, weights, around)
        self._graph, self._schedule, self._names = graph, schedule, devices
        number = {node.key: node.index for node in graph.nodes if node.kind == "call"}
        self._op_of = {number[o.key]: i for i, o in enumerate(captured.ops) if o.key in number}
        self._device = [self._where(number.get(op.key)) for op in captured.ops]

    def _where(self, node: int | None) -> str | None:
        """Return the device of a node; the loss, which is none, is taken at home."""
        index = None if node is None else self._schedule.devices[node]
        return self._home if index is None else self._names[index]

    def _hold_forward(self, made: Mapping[int, tuple[str | None, int]]) -> None:
        ends = {node: self._captured.ops[op].end for node, op in self._op_of.items()}
        program = _VariableTimes(self._graph, self._schedule, ends)
        dropped: dict[tuple[int, str | None], int] = {}  # the storages that variables name
        for node, parts in self._captured.values.items():
            for tensor, _ in parts:
                if tensor is not None:
                    place = tensor, self._where(node)
                    dropped[place] = max(dropped.get(place, 0), program.ends[node])
        for tensor, (device, start) in made.items():
            size = self._captured.tensors[tensor].bytes
            end = self._end_of(tensor, device, start, dropped.get((tensor, device)))
            self._hold_bytes(device, size, start * TICKS, max(end, start * TICKS + 1))
        self._hold_sent(program, dropped)
        self._hold_returned(program)

    def _end_of(self, tensor: int, device: str | None, start: int, dropped: int | None) -> int:
        """Return the tick at which a storage is freed on the device that made it."""
        freed = self._freed.get(tensor, self._end) * TICKS
        if dropped is None:  # within a call, or of the loss
            return self._activation_end(tensor, device, start) * TICKS
        if self._captured.tensors[tensor].returned and device == self._home:
            return freed
        saved = self._released(tensor, self._savers_on(tensor, device)) or 0
        return min(max(dropped, saved * TICKS), freed)

    def _hold_sent(
        self, program: _VariableTimes, dropped: Mapping[tuple[int, str | None], int]
    ) -> None:
        """Hold the copies on other devices until the program and autograd let go of them."""
        readers: dict[_Copy, list[int]] = {}
        for (reader, value), version in self._schedule.copies.items():
            here = self._schedule.devices[reader]
            if here is not None and reader in self._op_of:
                readers.setdefault((value, here, version), []).append(reader)
        for copy, start in program.starts.items():
            device = self._names[copy[1]]
            if self._where(copy[0]) == device:
                continue  # it is where the model is called
            for tensor, size in self._captured.values.get(copy[0], ()):
                mine = readers.get(copy, [])
                end = max(program.copy_ends[copy], self._saved_by(tensor, mine) * TICKS, start + 1)
                if tensor is not None and any(self._is(reader, tensor) for reader in mine):
                    saved = self._released(tensor, self._savers_on(tensor, device)) or 0
                    end = max(end, dropped.get((tensor, device), 0), saved * TICKS)
                self._hold_bytes(device, size, start, end)

    def _is(self, node: int, tensor: int) -> bool:
        """Whether a call handed on what it read, as a dropout without effect does."""
        return any(part == tensor for part, _ in self._captured.values.get(node, ()))

    def _saved_by(self, tensor: int | None, readers: Sequence[int]) -> int:
        """Return when the backwards of calls let go of what they saved of a copy."""
        ops = [self._op_of[reader] for reader in readers]
        if tensor is None:  # what is kept of weights is not recorded
            return max((n.at for n in self._captured.nodes if n.op in ops), default=0)
        savers = [op for op in ops if tensor in self._captured.ops[op].saved]
        return self._released(tensor, savers) or 0

    def _hold_returned(self, program: _VariableTimes) -> None:
        """Hold at home what the model returns from other devices."""
        for node in dict.fromkeys(self._graph.outputs):
            if self._schedule.devices[node] is None or self._where(node) == self._home:
                continue
            for tensor, size in self._captured.values.get(node, ()):
                end = self._end if tensor is None else self._freed.get(tensor, self._end)
                self._hold_bytes(self._home, size, program.end, max(end * TICKS, program.end + 1))

    def _sent_behind(self) -> dict[tuple[int, int], int]:
        """Return nothing: a graph sends as soon as it can."""
        return {}

    def constants(self) -> dict[str, int]:
        """Return the bytes of constants, which a program holds as long as there is one."""
        held: dict[str, int] = {}
        for node in self._graph.nodes:
            if node.kind != "constant":
                continue
            where = {self._schedule.devices[node.index]}
            if is_everywhere(self._graph, node):
                users = self._graph.users.get(node.index, ())
                where = {self._schedule.devices[user] for user in users}
            for index in where - {None}:
                name = self._names[index]  # type: ignore[index]
                held[name] = held.get(name, 0) + rounded(node.target.untyped_storage().nbytes())
        return held


def graph_peaks(
    captured: Capture,
    graph: ExportedGraph,
    schedule: Schedule,
    devices: Sequence[str],
    weights: Mapping[str, str],
    around: StepContext,
) -> dict[str, Peak]:
    """Return the most bytes that each device holds during a step of a graph.

    Args:
        captured: The recorded step of the graph, in the order of the schedule.
        graph: The nodes.
        schedule: What runs.
        devices: The names of the devices that the schedule numbers.
        weights: The device of every parameter and buffer.
        around: What else decides.

    """
    return GraphStepMemory(captured, graph, schedule, devices, weights, around).peaks(devices)
