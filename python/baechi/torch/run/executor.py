# SPDX-License-Identifier: Apache-2.0
"""The executor of programs: in C++, or the interpreter where there is no compiler.

Paper 3.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi.torch import native
from baechi.torch.program import HERE, Free, Program, Run, Send, Slot
from baechi.torch.program.instructions import HOST, filled, mapped, slots_in
from baechi.torch.run.interpreter import Interpreter, check, check_count, constants_of, located
from baechi.torch.run.regions import Replay, exclusive, prepare
from baechi.torch.where.pinned import ready


def compile(  # noqa: A001
    program: Program, devices: Sequence[torch.device]
) -> Callable[[list[Any]], list[Any]]:
    """Return what runs a program over devices: a function that empties its list of inputs."""
    library = native.library()
    run = Executor(program, devices, library) if library else Interpreter(program, devices)
    replays = any(isinstance(one, Run) and isinstance(one.target, Replay) for one in program.code)
    return exclusive(run) if replays else run


class Executor:
    """A program in C++."""

    def __init__(self, program: Program, devices: Sequence[torch.device], library: Any) -> None:
        check(program, devices)
        self.program, self._library = program, library
        self.devices = {HOST: torch.device("cpu"), **dict(enumerate(devices))}
        self._slots = {slot.name: i for i, slot in enumerate(_slots_of(program))}
        self._host = len(devices)
        self._counted = [one for one in program.code if not isinstance(one, Free)]  # as C++ does
        self._put = list(_put(program, self.devices))
        self._native: Any = None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the program."""
        if self._native is None:
            self._native = self._built()  # not before: the backend that compiles fakes tensors
        check_count(self.program, inputs)
        if self._put:
            ready(self._put)
        try:
            return self._native.run(inputs)
        except Exception as error:
            place = self._library.failed_at()
            if place < 0:
                raise
            raise located(error, self._counted[place], self.devices) from error

    def _built(self) -> Any:
        prepare(self.program, self.devices)
        ends = [*(self.devices[i] for i in range(self._host)), self.devices[HOST]]
        made = self._library.Executor(ends, len(self._slots))
        lanes = self.program.lanes()
        for one in self.program.code:
            if isinstance(one, Free):
                made.free([self._slots[slot.name] for slot in one.slots])
            elif isinstance(one, Run):
                self._add_call(made, one)
            elif isinstance(one, Send):
                ends = [self._index(slot.device) for slot in (one.source, one.out)]
                copied = self._slots[one.source.name], self._slots[one.out.name]
                made.send(*copied, *ends, lanes[one.out.name], one.kind)
            else:
                at_home = one.device != one.slot.device
                made.wait(self._slots[one.slot.name], self._index(one.device), at_home)
        slots = self._slots
        constants = [
            (slots[name], tensor)
            for name, tensor in constants_of(self.program, self.devices).items()
        ]
        outputs = [
            (slots[out.name], None) if isinstance(out, Slot) else (-1, out)
            for out in self.program.outputs
        ]
        inputs = [
            (slots[slot.name], -1 if slot.device is None else self._index(slot.device))
            for slot in self.program.inputs
        ]
        made.finish(inputs, constants, outputs)
        return made

    def _index(self, device: int | None) -> int:
        return self._host if device == HOST or device is None else device

    def _add_call(self, made: Any, call: Run) -> None:
        device, target = self._index(call.device), call.target
        if isinstance(target, torch._ops.OpOverload):
            schema = target._schema
            many = len(schema.returns) > 1
            outs = list(self._outs(call.out, many))
            made.call(
                schema.name, schema.overload_name, self._arguments(call), outs, device, call.name
            )
        else:
            reads = list(dict.fromkeys(slots_in((call.args, call.kwargs))))
            numbers = [self._slots[slot.name] for slot in reads]
            outs = [(i, -1, self._slots[slot.name]) for i, slot in enumerate(call.outs)]
            made.python(self._function(call, reads), numbers, outs, device, call.name)

    def _arguments(self, call: Run) -> list[Any]:
        """Return what C++ is told of each argument of a schema."""
        result: list[Any] = []
        for i, argument in enumerate(call.target._schema.arguments):
            if i < len(call.args):
                value = call.args[i]
            elif argument.name in call.kwargs:
                value = call.kwargs[argument.name]
            else:
                result.append(None)
                continue
            if isinstance(value, Slot):
                result.append((self._slots[value.name], value.device is None))
            elif isinstance(value, list | tuple) and any(True for _ in slots_in(value)):
                result.append([self._part(part) for part in value])
            else:
                result.append((self._here(value, call),))
        return result

    def _part(self, value: Any) -> tuple[int, Any]:
        return (self._slots[value.name], None) if isinstance(value, Slot) else (-1, value)

    def _here(self, value: Any, call: Run) -> Any:
        return mapped(value, lambda part: self.devices[call.device] if part is HERE else part)

    def _outs(self, out: Any, many: bool) -> Iterator[tuple[int, int, int]]:
        """Yield (result, part of it or -1, slot)."""
        if isinstance(out, Slot):
            yield 0, -1, self._slots[out.name]
            return
        for i, slot in enumerate(out or ()):
            if isinstance(slot, tuple):
                parts = enumerate(slot)
                yield from ((i, j, self._slots[part.name]) for j, part in parts if part)
            elif slot is not None:
                yield (i, -1, self._slots[slot.name]) if many else (0, i, self._slots[slot.name])

    def _function(self, call: Run, reads: list[Slot]) -> Callable[[list[Any]], list[Any]]:
        """Return a call that C++ does not know, as a function from its slots to its results."""
        args, kwargs = self._here(call.args, call), self._here(call.kwargs, call)

        def function(values: list[Any]) -> list[Any]:
            known = dict(zip(reads, values, strict=True))

            def told(part: Any) -> Any:
                return known[part] if isinstance(part, Slot) else part

            result = call.target(*mapped(args, told), **mapped(kwargs, told))
            return [value for _, value in filled(call.out, result)]

        return function


def _put(program: Program, devices: Mapping[int, torch.device]) -> Iterator[int]:
    """Yield the bytes of each tensor on the host for what devices send there; some have several."""
    size_of: dict[str, int] = {}  # of each storage that was sent, and how many slots show it
    shown, free = Counter[str](), Counter[int]()
    for one in program.code:
        made = one.outs if isinstance(one, Run) else ()
        if isinstance(one, Send):
            made = (one.out,)
            ends = [devices[slot.device or 0].type == "cpu" for slot in (one.source, one.out)]
            if ends == [False, True] and (size := one.out.bytes):
                size_of[one.out.storage] = size
                if not free[size]:
                    yield size
                free[size] = max(free[size] - 1, 0)
        shown.update(slot.storage for slot in made if slot.storage in size_of)
        for slot in one.slots if isinstance(one, Free) else ():
            shown[slot.storage] -= 1
            if shown[slot.storage] == 0 and slot.storage in size_of:
                free[size_of[slot.storage]] += 1


def _slots_of(program: Program) -> Iterator[Slot]:
    yield from program.inputs
    yield from (slot for slot, _ in program.constants)
    for one in program.code:
        if isinstance(one, Run):
            yield from one.outs
        elif isinstance(one, Send):
            yield one.out
