# SPDX-License-Identifier: Apache-2.0
"""Instructions: Run, Send, Wait and Free, over slots that hold tensors and numbers.

A device is its index in the cluster; `HOST` is the host where that is no device of the cluster.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

HOST = -1
SENDS = ("send", "put", "fetch")
MODULES = {"operator": operator, "math": math, "torch": torch}  # whose functions text can name


class _Here:
    """Stands in arguments for the device of the instruction that has them."""

    def __repr__(self) -> str:
        return "here"


HERE = _Here()


@dataclass(frozen=True)
class Slot:
    """A value of a program.

    A tensor has a device. It brings a storage of so many bytes, or shows the one that the slot
    named ``of`` brought. A number has neither device nor bytes.
    """

    name: str
    device: int | None = None
    bytes: int = 0
    of: str | None = None
    dense: int = field(default=0, compare=False)  # bytes of a copy of it
    scalar: bool = field(default=False, compare=False)  # a tensor without dimensions
    like: Any = field(default=None, compare=False)  # a fake tensor: its shape, strides and type

    @property
    def storage(self) -> str:
        """The slot that brought its storage."""
        return self.of or self.name

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Run:
    """One call on one device, or on the host.

    ``args`` and ``kwargs`` hold slots, constants and `HERE`. ``out`` takes the result; if it is a
    tuple, it takes the parts of the result in their order, and None leaves one out.
    """

    target: Any  # what is called
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any  # a slot, None, or a tuple of such
    device: int
    name: str

    @property
    def outs(self) -> tuple[Slot, ...]:
        """The slots that it fills."""
        return tuple(slots_in(self.out))


@dataclass(frozen=True)
class Send:
    """A copy of a tensor is on its way to the device of ``out``, behind what was asked so far.

    A ``fetch`` comes from a store: it starts when the device has done what it was asked for so far,
    and its memory is that device's own from then on. What goes to a store is a ``put``.
    """

    source: Slot
    out: Slot
    kind: str = "send"


@dataclass(frozen=True)
class Wait:
    """A device waits until a slot that was sent has arrived.

    It is the slot's, which reads it, or the one that it was sent from, where it may be changed.
    """

    slot: Slot
    device: int


@dataclass(frozen=True)
class Free:
    """Nobody reads these slots any more."""

    slots: tuple[Slot, ...]


Instruction = Run | Send | Wait | Free


def slots_in(value: Any) -> Iterator[Slot]:
    """Yield the slots in arguments, in their order."""
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from slots_in(part)
    elif isinstance(value, dict):
        yield from slots_in(list(value.values()))
    elif isinstance(value, slice):
        yield from slots_in((value.start, value.stop, value.step))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments with each leaf changed."""
    return fx.node.map_aggregate(value, change)


def filled(out: Any, result: Any) -> Iterator[tuple[Slot, Any]]:
    """Yield the slots that a call's result fills, each with its part."""
    if isinstance(out, Slot):
        yield out, result
    elif isinstance(out, tuple):
        for slot, part in zip(out, result, strict=True):
            yield from filled(slot, part)


def reads_of(instruction: Instruction) -> Sequence[Slot]:
    """Return what an instruction reads, each slot once."""
    if isinstance(instruction, Run):
        return tuple(dict.fromkeys(slots_in((instruction.args, instruction.kwargs))))
    if isinstance(instruction, Send):
        return (instruction.source,)
    if isinstance(instruction, Wait) and instruction.device == instruction.slot.device:
        return (instruction.slot,)
    return ()


def is_plain(value: Any) -> bool:
    """Tell whether text can say a constant."""
    plain = (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)
    return value is None or value is Ellipsis or value is HERE or type(value) in plain


def function_name(target: Any) -> str | None:
    """Return the name of a function of one of the `MODULES`, such as ``operator.add``."""
    short = getattr(target, "__name__", "")
    for name, module in MODULES.items():
        if short and getattr(module, short, None) is target:
            return f"{name}.{short}"
    return None
