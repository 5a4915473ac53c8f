# SPDX-License-Identifier: Apache-2.0
"""The memory of activations that are computed again in the backward (beyond the paper).

They are made where their operators ran in the forward, and sent again to the devices that read
them. There is no hook on what is kept of them: what an operator's backward reads, it kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baechi.torch.memory.gradients import TICKS, Hold
from baechi.torch.record.recorded_step import Again, Capture, KernelRun, TensorObject


class Recomputed:
    """Holds what runs of operators in the backward make, and the copies of what they read."""

    def __init__(self, captured: Capture, devices: Sequence[str | None], hold: Hold) -> None:
        self._captured = captured
        self._devices = devices  # of the operators
        self._hold = hold
        self._end = len(captured.trace)
        self._freed = {e: at for at, e in enumerate(captured.trace) if isinstance(e, int)}
        self._reads: dict[tuple[int, int], int] = {}  # last one, by tensor and operator
        self._first_reads: dict[tuple[int, int], int] = {}
        self._made: dict[int, tuple[int, int]] = {}  # event and operator, by tensor
        for at, event in enumerate(captured.trace):
            if isinstance(event, KernelRun) and event.again:
                for tensor in event.made:
                    self._made[tensor] = at, event.op
            elif isinstance(event, KernelRun) and event.backward:
                for tensor, _ in event.reads:
                    self._reads[tensor, event.op] = at
                    self._first_reads.setdefault((tensor, event.op), at)
        self._node_ends: dict[int, list[int]] = {}
        for node in captured.nodes:
            if node.op is not None:
                self._node_ends.setdefault(node.op, []).append(node.at)

    def hold(self, forward: Mapping[int, tuple[str | None, int]]) -> None:
        """Hold all of it.

        Args:
            forward: The device of what the forward made, by tensor.

        """
        seen: dict[int, list[TensorObject]] = {}
        users: dict[int, set[int]] = {}
        for run in self._captured.again:
            for one in (*run.takes, *run.makes):
                seen.setdefault(one.tensor, []).append(one)
                users.setdefault(one.tensor, set()).add(run.op)
        planned = any(run.planned for run in self._captured.again)
        for tensor, op in self._reads:
            if planned and tensor in self._made:
                users.setdefault(tensor, set()).add(op)
        spans = self._sent(self._handed_on()) if planned else {}
        leaves: dict[int, int] = {}  # when what is made again goes to the last device, by tensor
        for (tensor, _), (start, _) in spans.items():
            leaves[tensor] = max(leaves.get(tensor, 0), start)
        for tensor, (at, op) in self._made.items():
            size = self._captured.tensors[tensor].bytes
            end = self._freed.get(tensor, self._end)
            away = {self._devices[user] for user in users.get(tensor, ())} - {self._devices[op]}
            if away:
                mine = [u for u in users[tensor] if self._devices[u] == self._devices[op]]
                held = max((_until(one, self._end) for one in seen.get(tensor, ())), default=at)
                end = min(end, max(held, self._kept(tensor, mine), leaves.get(tensor, 0)))
            start = at * TICKS + TICKS - 1
            self._hold(self._devices[op], size, start, max(end * TICKS, start + 1))
        self._hold_copies(forward)
        for (tensor, device), (start, end) in spans.items():
            size = self._captured.tensors[tensor].bytes
            self._hold(device, size, start * TICKS, max(end * TICKS, start * TICKS + 1))

    def _handed_on(self) -> dict[int, Again]:
        """Return the planned runs that return what they were given, by tensor.

        A conversion to the type that a tensor has already is one.
        """
        found: dict[int, Again] = {}
        for run in self._captured.again:
            taken = {one.tensor for one in run.takes if run.planned}
            for one in run.makes:
                if one.tensor in taken and one.tensor not in self._made:
                    found.setdefault(one.tensor, run)
        return found

    def _sent(self, handed: Mapping[int, Again]) -> dict[tuple[int, str | None], tuple[int, int]]:
        """Return from when to when a device has what second runs made and it reads: one copy.

        What a run only handed on is held where it is, too, behind the end of what held it for that.
        """
        spans: dict[tuple[int, str | None], tuple[int, int]] = {}

        def needed(tensor: int, op: int, start: int, end: int) -> None:
            device, made, given = self._devices[op], self._made.get(tensor), handed.get(tensor)
            if made is not None:
                if device == self._devices[made[1]]:
                    return
            elif given is None or op == given.op or tensor in self._captured.ops[op].saved:
                return  # it was not let go of
            elif device == self._devices[given.op]:
                start = max(start, self._released(tensor, device))
            begin, until = spans.get((tensor, device), (start, end))
            spans[tensor, device] = min(begin, start), max(until, end)

        for run in self._captured.again:
            for one in run.takes:
                needed(one.tensor, run.op, run.begin, _until(one, self._end))
        for (tensor, op), at in self._first_reads.items():
            needed(tensor, op, at, self._kept(tensor, [op]))
        return spans

    def _released(self, tensor: int, device: str | None) -> int:
        """Return when what saved a tensor on a device has let go of it."""
        ops = zip(self._captured.ops, self._devices, strict=True)
        savers = [op for op, where in ops if where == device and tensor in op.saved]
        return max((op.released.get(tensor, self._end) for op in savers), default=0)

    def _hold_copies(self, forward: Mapping[int, tuple[str | None, int]]) -> None:
        sent: dict[tuple[int, str | None], list[tuple[Again, TensorObject]]] = {}
        makers: dict[int, list[Again]] = {}
        for run in (run for run in self._captured.again if not run.planned):
            for one in run.takes:
                sent.setdefault((id(one), self._devices[run.op]), []).append((run, one))
            for one in run.makes:
                makers.setdefault(id(one), []).append(run)
        for (_, device), takers in sent.items():
            first, one = takers[0]
            source = [run.end for run in makers.get(id(one), ()) if run.end <= first.begin]
            known = self._made.get(one.tensor)
            if known is not None:
                owner = self._devices[known[1]]
            elif one.tensor in forward:
                owner = forward[one.tensor][0]
            else:
                continue
            if owner == device:
                continue
            start = first.begin * TICKS
            if source:  # it is sent behind who returned it last
                start = min(start, max(source) * TICKS - 1)
            kept = self._kept(one.tensor, [run.op for run, _ in takers])
            end = max(min(_until(one, self._end), first.until), kept)
            self._hold(device, one.bytes, start, max(end * TICKS, start + 1))

    def _kept(self, tensor: int, ops: Sequence[int]) -> int:
        """Return when the backwards of operators let go of what they kept of a tensor."""
        ends = []
        for op in ops:
            read = self._reads.get((tensor, op))
            if read is not None:
                later = [end for end in self._node_ends.get(op, ()) if end > read]
                ends.append(min(later, default=self._end))
        return max(ends, default=0)


def _until(seen: TensorObject, end: int) -> int:
    return end if seen.until is None else seen.until
