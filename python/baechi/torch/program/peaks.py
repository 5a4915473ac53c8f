# SPDX-License-Identifier: Apache-2.0
"""Peaks: the most memory that a program takes on each device, found by walking it.

Beyond the paper.

An executor frees what its program frees, so these are the allocator's own figures, to the byte
where every storage is as large as it was traced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from baechi.torch.program.instructions import Run, Send, Slot, Wait
from baechi.torch.program.programs import Program

GRANULE = 512  # of which allocators give whole ones


def whole(size: int) -> int:
    """Return what an allocator takes for so many bytes."""
    return -(-size // GRANULE) * GRANULE


def walk(
    program: Program,
    *,
    own: Mapping[str, int] | None = None,
    held: Collection[str] = (),
    resident: Collection[str] = (),
) -> tuple[list[int], list[int]]:
    """Return the most bytes on each device, and what is left behind the last instruction.

    ``own`` has what calls hold for themselves while they run, by name. ``held`` are the inputs that
    the caller keeps: freeing them gives nothing back. Those that are ``resident`` do not count.
    """
    ledger = _Ledger(program.devices)
    for slot in program.inputs:
        if slot.storage not in resident:
            ledger.add([slot])
    ledger.add(slot for slot, _ in program.constants)
    for slot in program.inputs:
        if slot.name in held:
            ledger.readers[slot.storage] = ledger.readers.get(slot.storage, 0) + 1
    for one in program.code:
        if isinstance(one, Run):
            ledger.add(one.outs, one.device, (own or {}).get(one.name, 0))
        elif isinstance(one, Send):
            ledger.add([one.out])
        elif not isinstance(one, Wait):
            ledger.remove(one.slots)
    return ledger.peaks, ledger.now


def exceeds(one: Program, other: Program, spare: Sequence[int]) -> bool:
    """Tell whether a program's peak on a device is above another's by more than is spare there."""
    peaks = zip(walk(one)[0], walk(other)[0], spare, strict=True)
    return any(a > b + more for a, b, more in peaks)


class _Ledger:
    """The storages that are alive on each device, with how many slots show them."""

    def __init__(self, devices: int) -> None:
        self.now = [0] * devices
        self.peaks = [0] * devices
        self.readers: dict[str, int] = {}
        self.sizes: dict[str, int] = {}

    def add(self, slots: Iterable[Slot], device: int = -1, own: int = 0) -> None:
        touched = {device} if own else set[int]()
        for slot in slots:
            if slot.device is None or slot.device < 0:
                continue
            self.readers[slot.storage] = self.readers.get(slot.storage, 0) + 1
            if slot.of is None:
                self.sizes[slot.name] = whole(slot.bytes)
                self.now[slot.device] += self.sizes[slot.name]
                touched.add(slot.device)
        for place in touched:
            most = self.now[place] + (own if place == device else 0)
            if place >= 0:
                self.peaks[place] = max(self.peaks[place], most)

    def remove(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            if slot.device is None or slot.device < 0 or slot.storage not in self.readers:
                continue
            self.readers[slot.storage] -= 1
            if self.readers[slot.storage] == 0:
                self.now[slot.device] -= self.sizes.pop(slot.storage, 0)
