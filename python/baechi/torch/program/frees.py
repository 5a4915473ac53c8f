# SPDX-License-Identifier: Apache-2.0
"""Frees: what nobody reads any more is freed right behind its last reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from baechi.torch.program.instructions import (
    Free,
    Instruction,
    Run,
    Send,
    Slot,
    Wait,
    reads_of,
    slots_in,
)


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
