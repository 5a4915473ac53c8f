# SPDX-License-Identifier: Apache-2.0
"""Text of programs: one line for each instruction.

devices 2
input %w @0 2048
%x@1 @1 512 = send %x @0
wait %x@1 @1
@1 %mm 1024 = aten.mm.default(%x@1, %w@1)  # net.0:mm:0
free %x@1
output %mm, None
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from baechi.torch.program.instructions import (
    HOST,
    Instruction,
    Run,
    Send,
    Slot,
    Wait,
    function_name,
    is_plain,
)


def text_of(program: Any) -> str:
    """Print a `Program`."""
    lines = [f"devices {program.devices}"]
    lines += [f"input {_defined(slot)}" for slot in program.inputs]
    lines += [f"constant {_defined(slot)} ${i}" for slot, i in program.constants]
    lines += [_line(instruction, program.table) for instruction in program.code]
    outputs = ", ".join(_value(out, program.table) for out in program.outputs)
    return "\n".join([*lines, f"output {outputs}".rstrip()])


def _line(instruction: Instruction, table: Sequence[Any]) -> str:
    if isinstance(instruction, Run):
        target = _target(instruction.target, table)
        words = [_value(arg, table) for arg in instruction.args]
        words += [f"{key}={_value(arg, table)}" for key, arg in instruction.kwargs.items()]
        call = f"{target}({', '.join(words)})  # {instruction.name}"
        return f"{_at(instruction.device)} {_out(instruction.out)} = {call}"
    if isinstance(instruction, Send):
        source = instruction.source
        return f"{_defined(instruction.out)} = {instruction.kind} {source!r} {_at(source.device)}"
    if isinstance(instruction, Wait):
        return f"wait {instruction.slot!r} {_at(instruction.device)}"
    return f"free {' '.join(map(repr, instruction.slots))}"


def _at(device: int | None) -> str:
    return "@host" if device == HOST else "number" if device is None else f"@{device}"


def _defined(slot: Slot) -> str:
    room = "" if slot.device is None else f" of %{slot.of}" if slot.of else f" {slot.bytes}"
    return f"{slot!r} {_at(slot.device)}{room}"


def _out(out: Any) -> str:
    if isinstance(out, tuple):
        return f"({', '.join(map(_out, out))})"
    return "_" if out is None else _defined(out)


def _target(target: Any, table: Sequence[Any]) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return function_name(target) or f"${_index(target, table)}"


def _index(value: Any, table: Sequence[Any]) -> int:
    for i, known in enumerate(table):
        if known is value:
            return i
    raise ValueError(f"{value!r} is not in the program's table")


def _value(value: Any, table: Sequence[Any]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(part, table) for part in value)}]"
    if isinstance(value, tuple):
        inside = ", ".join(_value(part, table) for part in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return f"slice({', '.join(_value(part, table) for part in parts)})"
    if isinstance(value, Slot) or is_plain(value):
        return repr(value)
    return f"${_index(value, table)}"
