# SPDX-License-Identifier: Apache-2.0
"""Programs, printed as text and read back: one line for each instruction.

devices 2
input %w @0 2048
%x@1 @1 512 = send %x @0
wait %x@1 @1
@1 %mm 1024 = aten.mm.default(%x@1, %w@1)  # net.0:mm:0
free %x@1
output %mm, None
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from baechi.torch.program.instructions import (
    HERE,
    HOST,
    MODULES,
    SENDS,
    Free,
    Instruction,
    Run,
    Send,
    Slot,
    Wait,
    function_name,
    is_plain,
    reads_of,
    slots_in,
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


_NAME = r"%[\w.@]+"


@dataclass(frozen=True)
class Program:
    """What the host asks of ``devices`` devices for one call, step or part of one.

    ``constants`` are tensors that come with the program, by their place in ``table``, which also
    holds what instructions name and text cannot say. ``outputs`` are slots and constants.
    """

    devices: int
    inputs: tuple[Slot, ...]
    constants: tuple[tuple[Slot, int], ...]
    code: tuple[Instruction, ...]
    outputs: tuple[Any, ...]
    table: tuple[Any, ...] = ()

    def lanes(self) -> dict[str, int]:
        """Return the lane of each copy that is sent, by its name: one of inputs, one of results.

        Inputs are there at once. On one lane they would hold up results that are waited for sooner.
        """
        given = {slot.storage for slot in self.inputs}
        sends = [one for one in self.code if isinstance(one, Send)]
        return {one.out.name: int(one.source.storage not in given) for one in sends}

    def __str__(self) -> str:
        return text_of(self)


def parse(text: str, table: Sequence[Any] = ()) -> Program:
    """Read what `str` of a program printed; ``table`` is that program's."""
    return _Parser(table).program(text)


class _Parser:
    def __init__(self, table: Sequence[Any]) -> None:
        self.table = tuple(table)
        self.slots: dict[str, Slot] = {}

    def program(self, text: str) -> Program:
        devices, inputs, constants, code, outputs = 1, list[Slot](), [], list[Instruction](), ()
        for number, line in enumerate(text.strip().splitlines(), start=1):
            word, _, rest = line.strip().partition(" ")
            try:
                if word == "devices":
                    devices = int(rest)
                elif word == "input":
                    inputs.append(self.defined(rest))
                elif word == "constant":
                    said, _, index = rest.rpartition(" $")
                    constants.append((self.defined(said), int(index)))
                elif word == "output":
                    outputs = self.values(f"({rest},)" if rest else "()")
                else:
                    code.append(self.instruction(word, rest, line.strip()))
            except (ValueError, KeyError, IndexError, AttributeError, SyntaxError) as error:
                raise ValueError(f"line {number}: {line.strip()!r}: {error}") from None
        return Program(
            devices, tuple(inputs), tuple(constants), tuple(code), tuple(outputs), self.table
        )

    def instruction(self, word: str, rest: str, line: str) -> Instruction:
        if word == "wait":
            slot, device = rest.split()
            return Wait(self.slots[slot[1:]], _device(device))
        if word == "free":
            return Free(tuple(self.slots[slot[1:]] for slot in rest.split()))
        if word.startswith("%"):
            out, source = line.split(" = ")
            kind, slot, _ = source.split()
            return Send(self.slots[slot[1:]], self.defined(out), SENDS[SENDS.index(kind)])
        return self.run(_device(word), *rest.split(" = ", 1))

    def run(self, device: int, out: str, call: str) -> Run:
        call, _, name = call.rpartition("  # ")
        target, _, arguments = call.partition("(")
        args, kwargs = self.arguments(f"f({arguments}")
        return Run(self.target(target), args, kwargs, self.out(out), device, name)

    def target(self, text: str) -> Any:
        if text.startswith("$"):
            return self.table[int(text[1:])]
        first, *rest = text.split(".")
        found: Any = MODULES.get(first) or getattr(torch.ops, first)
        for part in rest:
            found = getattr(found, part)
        return found

    def defined(self, text: str) -> Slot:
        name, device, *room = text.split()
        of = room[1][1:] if room[:1] == ["of"] else None
        size = int(room[0]) if room and of is None else 0
        where = None if device == "number" else _device(device)
        slot = self.slots[name[1:]] = Slot(name[1:], where, size, of)
        return slot

    def out(self, text: str) -> Any:
        if not text.startswith("("):
            return None if text == "_" else self.defined(text)
        parts, depth, begin = [], 0, 1
        for i, letter in enumerate(text):
            depth += (letter == "(") - (letter == ")")
            if (letter == "," and depth == 1) or (i == len(text) - 1 and i > 1):
                parts.append(self.out(text[begin:i].strip()))
                begin = i + 1
        return tuple(parts)

    def values(self, text: str) -> Any:
        return self.arguments(f"f({text})")[0][0]

    def arguments(self, call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read the arguments of ``f(...)`` as Python reads them."""
        pieces = re.split(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""", call)
        for i in range(0, len(pieces), 2):
            pieces[i] = re.sub(_NAME, lambda match: f"_slot('{match[0][1:]}')", pieces[i])
            pieces[i] = re.sub(r"\$(\d+)", r"_table(\1)", pieces[i])
        parsed = ast.parse("".join(pieces), mode="eval").body
        assert isinstance(parsed, ast.Call)
        args = tuple(self.literal(arg) for arg in parsed.args)
        return args, {str(word.arg): self.literal(word.value) for word in parsed.keywords}

    def literal(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.List):
            return [self.literal(part) for part in tree.elts]
        if isinstance(tree, ast.Tuple):
            return tuple(self.literal(part) for part in tree.elts)
        if isinstance(tree, ast.Attribute):
            return getattr(torch, tree.attr)
        if isinstance(tree, ast.Name):
            return {"here": HERE, "inf": math.inf, "nan": math.nan}[tree.id]
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -self.literal(tree.operand)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            words = [self.literal(part) for part in tree.args]
            known: dict[str, Callable[..., Any]] = {
                "_slot": self.slots.__getitem__,
                "_table": self.table.__getitem__,
                "slice": slice,
            }
            return known[tree.func.id](*words)
        return ast.literal_eval(tree)


def _device(text: str) -> int:
    return HOST if text == "@host" else int(text.removeprefix("@"))


def with_frees(
    inputs: Sequence[Slot],
    constants: Sequence[tuple[Slot, int]],
    code: Sequence[Instruction],
    outputs: tuple[Any, ...],
) -> Iterator[Instruction]:
    """Yield code with what nobody reads any more freed right behind its last reader."""
    last: dict[Slot, int] = dict.fromkeys(inputs, -1)
    puts: dict[Slot, Slot] = {}  # whose source is there until it is waited for
    for i, instruction in enumerate(code):
        if isinstance(instruction, Run):
            last.update(dict.fromkeys(instruction.outs, i))
        elif isinstance(instruction, Send):
            last[instruction.out] = i
            if instruction.kind == "put":
                puts[instruction.out] = instruction.source
        elif isinstance(instruction, Wait) and instruction.device != instruction.slot.device:
            last.update({puts[slot]: i for slot in (instruction.slot,) if slot in puts})
        last.update(dict.fromkeys(reads_of(instruction), i))
    kept = {*slots_in(outputs), *(slot for slot, _ in constants)}
    free: dict[int, list[Slot]] = defaultdict(list)
    for slot, i in last.items():
        if slot not in kept:
            free[i].append(slot)
    if free[-1]:
        yield Free(tuple(free[-1]))
    for i, instruction in enumerate(code):
        yield instruction
        if free[i]:
            yield Free(tuple(free[i]))
