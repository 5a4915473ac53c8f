# SPDX-License-Identifier: Apache-2.0
"""Regions: what runs on one device between two transfers, compiled by Inductor as one call.

Beyond the paper.

A region ends where its device sends, waits, or runs what is not compiled: random calls, calls that
change a tensor in place, and those of sizes that vary. It ends with a numbered module, such as a
layer, too, so that equal layers are compiled once. Views that are read outside are made there.

A replay is a region that an accelerator captures once, and then runs by one call of the host. The
first run warms up, the second is captured by `torch.accelerator.Graph` (a CUDA graph). A replay
reads and writes the memory that was captured: what lies elsewhere by then is copied there before,
and what leaves the device or the program is a copy.
"""

from __future__ import annotations

import contextlib
import operator
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from baechi.brief_errors import first_line
from baechi.progress import remark
from baechi.torch.capture.keys import is_random
from baechi.torch.private import FakeTensorMode, standalone_compile
from baechi.torch.program import HERE, Free, Program, Run, Send, Slot, Wait
from baechi.torch.program.instructions import Instruction, mapped, reads_of, slots_in
from baechi.torch.program.peaks import whole
from baechi.torch.program.programs import with_frees
from baechi.torch.run.placement import Placement

_LEAST = 2  # calls of a region; of fewer nothing can be fused
_SMALL = 8  # calls: the end of a module is no end of so few
_NUMBERED = re.compile(r"[^:]*?(?:^|\.)\d+(?=[.:])")  # a path up to its first number
_KINDS = ("cpu", "cuda", "xpu")  # of devices that Inductor compiles for
_COMPILED: dict[str, Callable[..., Any]] = {}  # by text, sizes and device


class Region:
    """Calls that run as one, compiled as soon as their device is known."""

    __name__ = "region"  # what graphs call it

    def __init__(self, runs: Sequence[Run], inputs: Sequence[Slot], outs: Sequence[Slot]) -> None:
        self.runs, self.inputs, self.outs = tuple(runs), tuple(inputs), tuple(outs)
        self._function: Callable[..., Any] | None = None

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run it; the last result stands for the room inside."""
        assert self._function is not None
        return (*self._function(*values), None)

    def prepare(self, device: torch.device) -> None:
        """Compile it for a device; where that is impossible its calls run one by one."""
        graph = self._graph(device)
        sizes = [_layout(slot.like) for slot in self.inputs]
        text = f"{device} {sizes}\n{graph.code}"
        if text not in _COMPILED:
            _COMPILED[text] = self._compiled(graph, device)
        self._function = _COMPILED[text]

    def _compiled(self, graph: fx.GraphModule, device: torch.device) -> Callable[..., Any]:
        if device.type not in _KINDS:
            remark(f"compile: Inductor has no code for {device.type}: calls run one by one")
            return graph
        with FakeTensorMode():
            given = [
                torch.empty_strided(size, strides, dtype=dtype, device=device)
                for size, strides, dtype in (_layout(slot.like) for slot in self.inputs)
            ]
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                for kind in {"cpu", device.type}:  # calls have their types already
                    stack.enter_context(torch.autocast(kind, enabled=False))
                made = standalone_compile(graph, given, dynamic_shapes="from_example_inputs")
        except Exception as error:
            said = first_line(error)
            remark(f"compile: {self.runs[0].name} and what follows it run one by one: {said}")
            return graph
        layouts = [_layout(slot.like) for slot in self.outs]
        is_right: bool | None = None  # whether results are what the program counts on

        def run(*values: torch.Tensor) -> Any:
            nonlocal is_right
            if is_right is False:
                return graph(*values)
            found = made(*values)
            if is_right is None:
                memories = [tensor.untyped_storage()._cdata for tensor in (*found, *values)]
                own = {*memories[: len(found)]} - {*memories[len(found) :]}
                is_right = len(own) == len(found) and [*map(_layout, found)] == layouts
            if is_right:
                return found
            remark("compile: a region's results are laid out otherwise: it runs call by call")
            return graph(*values)

        return run

    def _graph(self, device: torch.device) -> fx.GraphModule:
        graph, made = fx.Graph(), dict[str, fx.Node]()
        for i, slot in enumerate(self.inputs):
            made[slot.name] = graph.placeholder(f"given_{i}")

        def told(part: Any) -> Any:
            if isinstance(part, Slot):
                return made[part.name]
            return device if part is HERE else part

        def fill(out: Any, node: fx.Node) -> None:
            if isinstance(out, Slot):
                made[out.name] = node
                return
            for i, part in enumerate(out or ()):
                if part is not None:
                    fill(part, graph.call_function(operator.getitem, (node, i)))

        for run in self.runs:
            args, kwargs = mapped(run.args, told), mapped(run.kwargs, told)
            fill(run.out, graph.call_function(run.target, args, kwargs))
        graph.output(tuple(made[slot.name] for slot in self.outs))
        return fx.GraphModule({}, graph)


def _layout(like: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(like.shape), like.stride(), like.dtype


def prepare(program: Program, devices: dict[int, torch.device]) -> None:
    """Compile the regions of a program."""
    for one in program.code:
        if isinstance(one, Run) and isinstance(one.target, Region):
            one.target.prepare(devices[one.device])


Make = Callable[[Sequence[Run], Sequence[Slot], Sequence[Slot]], Region]


def in_regions(program: Program, make: Make = Region, *, by_module: bool = True) -> Program:
    """Return a program whose calls are gathered into regions where they can be.

    ``by_module``: they end with numbered modules.
    """
    gathering = _Gathering(program, make, by_module)
    for one in program.code:
        gathering.add(one)
    for device in list(gathering.open):
        gathering.close(device)
    if any(slot.device is None for slot in program.inputs):
        remark("calls whose sizes vary run one by one: give batches of one size")
    code = with_frees(program.inputs, program.constants, gathering.code, program.outputs)
    return replace(program, code=tuple(code), table=(*program.table, *gathering.regions))


class _Gathering:
    """The code so far, and the region of each device that is not at its end."""

    def __init__(self, program: Program, make: Make, by_module: bool) -> None:
        self.make, self.by_module = make, by_module
        self.code: list[Instruction] = []
        self.regions: list[Region] = []
        self.open: dict[int, list[Run]] = {}
        self.readers = Counter(slot.name for one in program.code for slot in reads_of(one))
        self.readers.update({slot.name for slot in slots_in(program.outputs)})

    def add(self, one: Instruction) -> None:
        if isinstance(one, Free):
            return
        if isinstance(one, Run) and _can_be_compiled(one):
            open_ = self.open.setdefault(one.device, [])
            if self.by_module and _ends(open_, one):
                self.close(one.device)
                open_ = self.open.setdefault(one.device, [])
            open_.append(one)
            return
        if isinstance(one, Run):
            for device in {one.device, *(slot.device for slot in reads_of(one))}:
                self.close(device)
        elif isinstance(one, Send):
            runs = self.open.get(one.source.device or 0, ())
            if one.source.name in {slot.name for run in runs for slot in run.outs}:
                self.close(one.source.device)
            if one.kind == "fetch":  # behind what its device has done
                self.close(one.out.device)
        else:
            assert isinstance(one, Wait)
            self.close(one.device)
        self.code.append(one)

    def close(self, device: int | None) -> None:
        """End the region of a device."""
        runs = self.open.pop(device, []) if device is not None else []
        maker = {slot.name: run for run in runs for slot in run.outs}
        inside = Counter(slot.name for run in runs for slot in reads_of(run))
        wanted = [name for name in maker if self.readers[name] > inside[name]]
        results, views = dict[str, Slot](), set[int]()
        while wanted:
            name = wanted.pop()
            run = maker[name]
            (slot,) = [slot for slot in run.outs if slot.name == name]
            if slot.of is None:
                results[name] = slot
            elif id(run) not in views:
                views.add(id(run))
                wanted += [read.name for read in reads_of(run) if read.name in maker]
        calls = [run for run in runs if not _is_view(run)]
        count = sum(_calls_of(run) for run in calls)
        if count < _LEAST or not results:
            self.code += runs
            return
        given = dict.fromkeys(
            slot for run in runs for slot in reads_of(run) if slot.name not in maker
        )
        outs = [slot for run in runs for slot in run.outs if slot.name in results]
        region = self.make(runs, list(given), outs)
        room = Slot(f"{outs[0].name}.room", device, _room(runs, results))
        name = f"{calls[0].name.partition(' and ')[0]} and {count - 1} more"
        assert device is not None  # there are calls
        self.regions.append(region)
        self.code.append(Run(region, tuple(given), {}, (*outs, room), device, name))
        self.code += [run for run in runs if id(run) in views]


def _calls_of(run: Run) -> int:
    inside = run.target.runs if isinstance(run.target, Region) else ()
    return sum(not _is_view(one) for one in inside) or 1


def _is_view(run: Run) -> bool:
    return all(slot.of is not None for slot in run.outs)


def _ends(runs: Sequence[Run], following: Run) -> bool:
    """Tell whether a region ends before a call: one of another layer, or the same call again."""
    calls = [run for run in runs if not _is_view(run)]
    if any(run.name == following.name for run in calls):
        return True  # of another micro-batch
    there = next((_NUMBERED.match(run.name) for run in reversed(calls)), None)
    found = _NUMBERED.match(following.name)
    return len(calls) >= _SMALL and found is not None and there is not None and found[0] != there[0]


def _can_be_compiled(run: Run) -> bool:
    target = run.target
    if isinstance(target, Region):
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if target._schema.is_mutable or is_random(run) or run.device < 0 or not run.outs:
        return False
    return all(_is_static(slot, run.device) for slot in (*reads_of(run), *run.outs))


def _is_static(slot: Slot, device: int) -> bool:
    like = slot.like
    if slot.device != device or like is None or like.is_neg() or like.is_conj():
        return False  # compiled code reads memory as it is
    return all(type(n) is int for n in (*like.shape, *like.stride(), like.storage_offset()))


def _room(runs: Sequence[Run], results: dict[str, Slot]) -> int:
    """Return the most bytes that calls hold, run one by one, of what nobody else reads."""
    last = {slot.storage: i for i, run in enumerate(runs) for slot in (*reads_of(run), *run.outs)}
    now = most = 0
    ends = Counter[int]()  # bytes whose last reader is a call
    for i, run in enumerate(runs):
        for slot in run.outs:
            if slot.of is None and slot.name not in results:
                now += whole(slot.bytes)
                ends[last[slot.name]] += whole(slot.bytes)
        most = max(most, now)
        now -= ends[i]
    return most


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
