# SPDX-License-Identifier: Apache-2.0
"""The interpreter of programs, in Python: the executor's reference, and the way without a compiler.

Every ordered pair of devices has streams of its own for what is sent: two for inputs, two for
results. Allocators are told who reads what (``record_stream``), so memory is freed when the program
says, and given to another when its readers are past it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi.torch.private import BelowAutograd
from baechi.torch.program import HERE, Program, Run, Send, Slot, Wait
from baechi.torch.program.instructions import HOST, Instruction, filled, mapped
from baechi.torch.run.regions import prepare
from baechi.torch.where.moving import sent


class Interpreter:
    """A program over devices; calling it with a list of inputs empties that, as boxed calls do."""

    def __init__(self, program: Program, devices: Sequence[torch.device]) -> None:
        check(program, devices)
        self.program = program
        self.devices = {HOST: torch.device("cpu"), **dict(enumerate(devices))}
        self._constants: dict[str, torch.Tensor] | None = None
        self._lanes = program.lanes()
        self._routes: dict[tuple[torch.device, torch.device, int], _Route] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the program."""
        check_inputs(self.program, inputs, self.devices)
        run = _Running(self.devices, self._routes, self._lanes, dict(self.constants()))
        run.values.update(zip((s.name for s in self.program.inputs), inputs, strict=True))
        inputs.clear()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(BelowAutograd())
            for kind in sorted({device.type for device in self.devices.values()}):
                stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(_device_kept(self.devices[0]))
            for instruction in self.program.code:
                try:
                    run.do(instruction)
                except Exception as error:
                    for _, receiving in self._routes.values():  # what is fetched has memory
                        receiving.synchronize()
                    raise located(error, instruction, self.devices) from error
        return [mapped(out, run.of) for out in self.program.outputs]

    def constants(self) -> dict[str, torch.Tensor]:
        """Return the constants, on their devices; copied in the first call."""
        if self._constants is None:
            prepare(self.program, self.devices)
            self._constants = constants_of(self.program, self.devices)
        return self._constants


_Route = tuple[torch.Stream, torch.Stream]


class _Running:
    """The values and events of one call."""

    def __init__(
        self,
        devices: dict[int, torch.device],
        routes: dict[tuple[torch.device, torch.device, int], _Route],
        lanes: dict[str, int],
        values: dict[str, Any],
    ) -> None:
        self.devices, self.routes, self.lanes, self.values = devices, routes, lanes, values
        self.events: dict[str, torch.Event] = {}

    def of(self, part: Any) -> Any:
        return self.values[part.name] if isinstance(part, Slot) else part

    def where(self, slot: Slot) -> torch.device:
        assert slot.device is not None  # a number is everywhere
        return self.devices[slot.device]

    def do(self, instruction: Instruction) -> None:
        if isinstance(instruction, Run):
            self.run(instruction)
        elif isinstance(instruction, Send):
            self.send(instruction)
        elif isinstance(instruction, Wait):
            self.wait(instruction)
        else:
            for slot in instruction.slots:
                del self.values[slot.name]

    def run(self, call: Run) -> None:
        device = self.devices[call.device]

        def told(part: Any) -> Any:
            return device if part is HERE else self.of(part)

        if device.type != "cpu":
            torch.accelerator.set_device_index(device)
        result = call.target(*mapped(call.args, told), **mapped(call.kwargs, told))
        self.values.update((slot.name, part) for slot, part in filled(call.out, result))

    def send(self, send: Send) -> None:
        source, target = self.where(send.source), self.where(send.out)
        value = self.values[send.source.name]
        if source == target or value is None:
            self.values[send.out.name] = value
            return
        sending, receiving = self.route(source, target, self.lanes[send.out.name])
        if source.type != "cpu":
            sending.wait_event(_current(source).record_event())
            # What is put is there until the end of that is waited for.
            # Of what is conjugated lazily, `record_stream` would keep a copy instead.
            if send.kind != "put":
                (value.conj() if value.is_conj() else value).record_stream(sending)
        reading = _current(target) if target.type != "cpu" else None
        copy = None
        if send.kind == "fetch":
            copy = self.room(value, target, receiving)
            if (put := self.events.get(send.source.name)) is not None:
                receiving.wait_event(put)
        with sending, receiving:
            if copy is not None:
                copy.copy_(value, non_blocking=True)
            elif target.type != "cpu":
                copy = torch.ops.aten._to_copy.default(value, device=target, non_blocking=True)
                copy.record_stream(reading)
            else:
                copy = _room_on_host(value)
                copy.copy_(value, non_blocking=True)
        self.values[send.out.name] = copy
        self.events[send.out.name] = receiving.record_event()

    def room(self, value: torch.Tensor, target: torch.device, stream: torch.Stream) -> torch.Tensor:
        """Return memory of the target's own, and have a stream wait for who had it before."""
        torch.accelerator.set_device_index(target)
        copy = torch.empty_like(value, device=target)
        stream.wait_event(_current(target).record_event())
        return copy

    def wait(self, wait: Wait) -> None:
        event = self.events.get(wait.slot.name)
        device = self.devices[wait.device]
        if event is not None and device.type == "cpu":
            event.synchronize()
        elif event is not None:
            _current(device).wait_event(event)

    def route(self, source: torch.device, target: torch.device, lane: int) -> _Route:
        """Return the streams of a pair of devices; the host has none, and takes the other's."""
        if (source, target, lane) not in self.routes:
            ends = [device for device in (source, target) if device.type != "cpu"]
            streams = [torch.Stream(device) for device in ends]
            self.routes[source, target, lane] = streams[0], streams[-1]
        return self.routes[source, target, lane]


def check(program: Program, devices: Sequence[torch.device]) -> None:
    """Raise ValueError if a program cannot run on these devices."""
    if len(devices) != program.devices:
        raise ValueError(f"devices: {len(devices)}, but the program is for {program.devices}")
    kinds = {device.type for device in devices} - {"cpu"}
    if len(kinds) > 1:
        raise ValueError(f"devices: {' and '.join(sorted(kinds))}, but only one kind can be run on")


def check_count(program: Program, inputs: Sequence[Any]) -> None:
    """Raise ValueError if these are not as many as the program's inputs."""
    if len(inputs) != len(program.inputs):
        raise ValueError(f"inputs: {len(inputs)}, but the program has {len(program.inputs)}")


def check_inputs(
    program: Program, inputs: Sequence[Any], devices: Mapping[int, torch.device]
) -> None:
    """Raise ValueError if these are not the program's inputs, each where it has it."""
    check_count(program, inputs)
    for i, (slot, value) in enumerate(zip(program.inputs, inputs, strict=True)):
        if isinstance(value, torch.Tensor) and slot.device is not None:
            there, wanted = value.device, devices[slot.device]
            if there != wanted:
                raise ValueError(f"input {i}: it is on {there}, but the program has it on {wanted}")


def located(
    error: Exception, instruction: Instruction, devices: dict[int, torch.device]
) -> Exception:
    """Return an error of the same type that says in front where it happened."""
    if isinstance(instruction, Run):
        place = f"in {instruction.name} on {devices[instruction.device]}"
    elif isinstance(instruction, Send):
        ends = [devices[slot.device or 0] for slot in (instruction.source, instruction.out)]
        place = f"sending {instruction.source} from {ends[0]} to {ends[1]}"
    else:
        place = f"in {type(instruction).__name__.lower()}"
    try:
        return type(error)(f"baechi: {place}: {error}")
    except Exception:  # its type wants other arguments
        return RuntimeError(f"baechi: {place}: {type(error).__name__}: {error}")


def constants_of(program: Program, devices: Mapping[int, torch.device]) -> dict[str, torch.Tensor]:
    """Return a program's constants where they are read, by name.

    A mode around an eager call judges `to`, and would leave them where they were traced.
    """

    def there(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        return tensor if tensor.device == device else sent(tensor, device)

    found = [(slot, program.table[i]) for slot, i in program.constants]
    return {slot.name: there(tensor, devices[slot.device or 0]) for slot, tensor in found}


def _room_on_host(value: torch.Tensor) -> torch.Tensor:
    try:
        return torch.empty_like(value, device="cpu", pin_memory=True)
    except RuntimeError:  # the system pins no more
        return torch.empty_like(value, device="cpu")


def _current(device: torch.device) -> torch.Stream:
    return torch.accelerator.current_stream(device)


@contextlib.contextmanager
def _device_kept(device: torch.device) -> Iterator[None]:
    """Make the current device the same again."""
    if device.type == "cpu":
        yield
        return
    before = torch.accelerator.current_device_index()
    try:
        yield
    finally:
        torch.accelerator.set_device_index(before)
