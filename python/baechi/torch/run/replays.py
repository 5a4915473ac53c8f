# SPDX-License-Identifier: Apache-2.0
"""Replays: regions that an accelerator captures once, and then runs by one call of the host.

Beyond the paper.

The first run of a region warms up, the second is captured by `torch.accelerator.Graph` (a CUDA
graph). A replay reads and writes the memory that was captured: what lies elsewhere by then is
copied there before, and what leaves the device or the program is a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from baechi.brief_errors import first_line
from baechi.progress import remark
from baechi.torch.program import Program, Run, Send, Slot
from baechi.torch.program.instructions import slots_in
from baechi.torch.run.placement import Placement
from baechi.torch.run.regions import Region, in_regions


class Replay(Region):
    """Calls that run as one captured graph."""

    _device: torch.device
    _plain: Callable[..., Any]

    def __init__(
        self,
        runs: Sequence[Run],
        inputs: Sequence[Slot],
        outs: Sequence[Slot],
        leaving: Collection[str],
    ) -> None:
        super().__init__(runs, inputs, outs)
        self._copied = [slot.storage in leaving for slot in outs]
        self._graph_run: Any = None
        self._at: list[int] = []  # where the values of the run before lie
        self._static: list[torch.Tensor] = []  # what the graph reads
        self._is_own: list[bool] = []  # whether others have that memory, too
        self._results: Sequence[torch.Tensor] = ()
        self._last: Any = None  # the stream of the run before
        self._can_be = True

    def prepare(self, device: torch.device) -> None:
        """Take it for a device; a CPU runs the calls one by one."""
        for run in self.runs:
            if isinstance(run.target, Region):
                run.target.prepare(device)
        self._device, self._plain = device, self._graph(device)
        self._can_be = device.type != "cpu"

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run it; the last result stands for the room inside."""
        if not self._can_be:
            return (*self._plain(*values), None)
        stream = torch.accelerator.current_stream(self._device)
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)  # which reads what this one writes
        self._last = stream
        at = [value.data_ptr() for value in values]
        if self._graph_run is None:
            before, self._at = self._at, at
            if not before or not self._captured(values, before):
                return (*self._plain(*values), None)
        elif not self._fill(values, at):
            self._graph_run, self._results = None, ()
            stay = zip(self._static, self._is_own, at, strict=True)
            stays = [not own and static.data_ptr() == where for static, own, where in stay]
            if not self._captured(values, [at[i] if stays[i] else 0 for i in range(len(at))]):
                return (*self._plain(*values), None)
        self._graph_run.replay()
        found = list(self._results)
        if taken := [i for i, copied in enumerate(self._copied) if copied]:
            copies = [_like(found[i]) for i in taken]
            torch._foreach_copy_(copies, [found[i] for i in taken])
            for i, copy in zip(taken, copies, strict=True):
                found[i] = copy
        return (*found, None)

    def forget(self) -> None:
        """Let go of what was captured; the next runs are as the first ones."""
        self._graph_run, self._at, self._static, self._results = None, [], [], ()

    def _fill(self, values: Sequence[torch.Tensor], at: Sequence[int]) -> bool:
        """Copy values to where the graph reads them; False: that would be to memory of others."""
        moved = [i for i, static in enumerate(self._static) if static.data_ptr() != at[i]]
        if not all(self._is_own[i] for i in moved):
            return False
        for i in moved:
            self._static[i].copy_(values[i])
        return True

    def _captured(self, values: Sequence[torch.Tensor], before: Sequence[int]) -> bool:
        """Capture the calls; False where that is impossible.

        What lies where it lay before stays there: weights, and what other replays write.
        """
        try:
            self._is_own = [
                value.data_ptr() != where for value, where in zip(values, before, strict=True)
            ]
            self._static = [
                _like(v).copy_(v)
                if own
                else v.detach()  # of a weight that gets other memory this is the one before
                for v, own in zip(values, self._is_own, strict=True)
            ]
            current = torch.accelerator.current_stream(self._device)
            stream = torch.Stream(self._device)
            stream.wait_stream(current)
            graph = torch.accelerator.Graph(capture_error_mode="thread_local")
            with stream, graph:
                self._results = self._plain(*self._static)
            current.wait_stream(stream)
        except (RuntimeError, NotImplementedError) as error:
            remark(f"replay: {self.runs[0].name} and what follows: {first_line(error)}")
            self._static, self._results, self._can_be = [], (), False
            return False
        self._graph_run = graph
        return True


def _like(value: torch.Tensor) -> torch.Tensor:
    shape, strides = value.shape, value.stride()
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def leaving(program: Program) -> frozenset[str]:
    """Return the storages of what a program returns, or sends to another device."""
    sent = [one.source for one in program.code if isinstance(one, Send)]
    return frozenset(slot.storage for slot in (*slots_in(program.outputs), *sent))


def exclusive(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Return what runs a program in one thread at a time: replays have one memory."""
    lock = threading.RLock()

    def alone(inputs: list[Any]) -> list[Any]:
        with lock:
            return run(inputs)

    return alone


def gathered(program: Program, placement: Placement) -> Program:
    """Return a program in regions, as a placement says: compiled, captured, or both."""
    if placement.compile:
        program = in_regions(program)
    if placement.replay:
        ends = leaving(program)

        def replay(runs: Sequence[Run], inputs: Sequence[Slot], outs: Sequence[Slot]) -> Replay:
            placement.replays.add(made := Replay(runs, inputs, outs, ends))
            return made

        program = in_regions(program, replay, by_module=False)
    return program
