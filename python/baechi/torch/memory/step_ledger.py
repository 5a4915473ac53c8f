# SPDX-License-Identifier: Apache-2.0
"""What the devices hold while a step of micro-batches is gone through with sizes alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from baechi.torch.record.recorded_step import Tensor
from baechi.torch.run.step_order import Part

Where = int | None  # a device; None: where the arguments are


@dataclass(eq=False)
class Block:
    """Memory on a device."""

    device: Where
    bytes: int
    holders: int = 1


Parts = list[
    tuple[int | None, Block | None]
]  # of a value: storages (None: a weight's), where it is


class Ledger:
    """What each device holds, and held at most."""

    def __init__(self, home: Where) -> None:
        self._home = home
        self._now: dict[Where, int] = {}
        self.most: dict[Where, tuple[int, Part | None]] = {}  # and in which part
        self.part: Part | None = None  # that runs

    def take(self, device: Where, size: int) -> Block:
        """Return new memory, with one holder."""
        block = Block(self._home if device is None else device, size)
        now = self._now[block.device] = self._now.get(block.device, 0) + size
        if now > self.most.get(block.device, (0, None))[0]:
            self.most[block.device] = now, self.part
        return block

    def drop(self, block: Block | None) -> None:
        """Give up a hold of memory."""
        if block is None:
            return
        block.holders -= 1
        if block.holders == 0:
            self._now[block.device] -= block.bytes

    def drop_all(self, parts: Parts) -> None:
        """Give up a hold of each part of a value."""
        for _, block in parts:
            self.drop(block)


def held(block: Block | None) -> Block | None:
    """Return memory, with one more holder."""
    if block is not None:
        block.holders += 1
    return block


@dataclass(eq=False)
class Hold:
    """What keeps a tensor for a backward or a second run; empty until that made it again."""

    block: Block | None = None
    over: bool = False


@dataclass(eq=False)
class Sum:
    """A gradient, or several that were added up; it has a hold of its memory."""

    block: Block
    bytes: int
    addable: bool  # more may be added in place, if nobody else has the memory


class Made:
    """What kernels make on a device, by storage, as long as nobody has it yet."""

    def __init__(
        self, ledger: Ledger, device: Where, tensors: list[Tensor], without: Collection[int] = ()
    ) -> None:
        self.blocks: dict[int, Block] = {}
        self._ledger, self._device, self._tensors = ledger, device, tensors
        self._without = without  # that are not made this time

    def made(self, tensor: int) -> None:
        """Take memory for a storage."""
        if tensor not in self._without:
            self.blocks[tensor] = self._ledger.take(self._device, self._tensors[tensor].bytes)

    def freed(self, tensor: int) -> None:
        """Give it back."""
        self._ledger.drop(self.blocks.pop(tensor, None))

    def end(self) -> None:
        """Let go of all that nobody has."""
        for block in self.blocks.values():
            self._ledger.drop(block)
