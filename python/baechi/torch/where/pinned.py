# SPDX-License-Identifier: Apache-2.0
"""Pinned memory of what is away: few blocks, in which each storage has a part of its own.

Beyond the paper. PyTorch rounds each allocation of pinned memory up to a power of two, and pinning
takes milliseconds. So blocks are powers of two, and filled.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from baechi.brief_errors import first_line
from baechi.torch import native

_APART = 64  # bytes: each part begins at a multiple
_SMALLEST, _LARGEST = 1 << 12, 1 << 30  # bytes of a block, unless one storage is larger
_SPARE = (0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)  # of what a block holds, how much more it may be
_LONG = 64  # programs that have run
_GIVEN_UP: set[int] = set()  # sizes of what is put for which the system pins no more

Blocks = list[tuple[int, list[int]]]  # of each its bytes, and which sizes are in it
Part = tuple[int, Any, int]  # its number, where it begins, and its bytes
Sharing = list[tuple[torch.Tensor, torch.Tensor]]  # tensors, and how each shows one storage


def pin(tensors: Iterable[torch.Tensor]) -> str | None:
    """Bring tensors on the host to pinned memory, as far as the system pins any; say why not all.

    Those that share a storage share one again.
    """
    found = _by_storage(tensors)
    refused: list[str] = []
    for block, parts in _blocks([_storage(sharing).nbytes() for sharing in found], refused):
        for i, offset, size in parts:
            _move(found[i], block if offset is None else block.part(offset, size))
            found[i] = []  # what it was in is free before the next block is there
    return refused[0] if refused else None


def ready(sizes: Sequence[int]) -> None:
    """Have pinned memory ready for what is put, for each of so many bytes; it is used again.

    What was for sizes that have not been put for long is given up when more is needed.
    """
    library = native.library()
    missing = [size for size in library.missing_pieces(sizes) if size not in _GIVEN_UP]
    if missing:
        library.clear_pieces(_LONG)
        for block, parts in _blocks(missing, []):
            library.add_pieces(block, [(offset, size) for _, offset, size in parts])
        _GIVEN_UP.update(library.missing_pieces(sizes))


def unpin(tensors: Iterable[torch.Tensor]) -> None:
    """Bring tensors to ordinary memory, and give the system the pinned memory that nobody uses."""
    for sharing in _by_storage(tensors, pinned=True):
        _move(sharing, _bytes(_storage(sharing).nbytes()))
    if (library := native.library()) is not None:
        library.clear_pieces(0)
    _GIVEN_UP.clear()
    torch.accelerator.empty_host_cache()


def _blocks(bytes_of: Sequence[int], refused: list[str]) -> Iterator[tuple[Any, list[Part]]]:
    """Yield blocks, each with its parts, as far as the system pins any; note why not all.

    Without a compiler each is pinned alone.
    """
    sizes = [-(-size // _APART) * _APART for size in bytes_of]
    library = native.library()
    alone = [(size, [i]) for i, size in enumerate(bytes_of)]
    waiting = packed(sizes, range(len(sizes))) if library else alone
    while waiting:
        size, inside = waiting.pop(0)
        try:
            block = library.Block(size) if library else _bytes(size, pinned=True)
        except RuntimeError as error:
            refused.append(first_line(error))
            left = [i for _, others in [(size, inside), *waiting] for i in others]
            waiting = packed(sizes, left, size // 2) if library else []
            continue
        offsets = itertools.accumulate((sizes[i] for i in inside), initial=0)
        parts = zip(inside, offsets, strict=False)
        yield block, [(i, at if library else None, bytes_of[i]) for i, at in parts]


def packed(sizes: Sequence[int], which: Collection[int], largest: int | None = None) -> Blocks:
    """Return blocks for sizes: of several ways to fill them the one that takes least.

    Args:
        sizes: In bytes.
        which: Their numbers; those that are larger than the largest block are left out.
        largest: The bytes of the largest block.

    """
    if largest is None:
        largest = max([_LARGEST, *(_power(sizes[i]) for i in which)])
    order = sorted((i for i in which if _power(sizes[i]) <= largest), key=lambda i: -sizes[i])
    ways = [_filled(sizes, order, largest, spare) for spare in _SPARE]
    return min(ways, key=lambda blocks: sum(size for size, _ in blocks))


def _filled(sizes: Sequence[int], order: Sequence[int], largest: int, spare: float) -> Blocks:
    """Return blocks into which the first goes that has room, from the largest to the smallest."""
    blocks: Blocks = []
    room: list[int] = []
    left = sum(sizes[i] for i in order)
    for i in order:
        at = next((at for at, free in enumerate(room) if free >= sizes[i]), len(blocks))
        if at == len(blocks):
            all_of_it = _power(left)
            wanted = all_of_it if all_of_it <= (1 + spare) * left else all_of_it // 2
            size = max(min(wanted, largest), _power(sizes[i]))
            blocks.append((size, []))
            room.append(size)
        blocks[at][1].append(i)
        room[at] -= sizes[i]
        left -= sizes[i]
    return blocks


def _power(size: int) -> int:
    """Return the smallest power of two, and block, that has room."""
    return max(1 << (size - 1).bit_length(), _SMALLEST)


def _by_storage(tensors: Iterable[torch.Tensor], *, pinned: bool = False) -> list[Sharing]:
    """Return the tensors on the host by what they share.

    One that shows only a part of its storage has a copy of that part instead.
    """
    found: dict[int, dict[int, torch.Tensor]] = {}
    for one in tensors:
        is_here = one.device.type == "cpu" and one.layout == torch.strided and one.nbytes > 0
        if is_here and one.is_pinned() == pinned:
            found.setdefault(one.untyped_storage().data_ptr(), {})[id(one)] = one
    sharing: list[Sharing] = []
    for those in found.values():
        them = [(one, one.detach().resolve_conj().resolve_neg()) for one in those.values()]
        if _storage(them).nbytes() <= sum(one.nbytes for one, _ in them):
            sharing.append(them)
        else:
            sharing += [[(one, shown.clone())] for one, shown in them]
    return sharing


def _storage(sharing: Sharing) -> torch.UntypedStorage:
    return sharing[0][1].untyped_storage()


def _move(sharing: Sharing, room: torch.Tensor) -> None:
    with torch.inference_mode(mode=False), torch.no_grad():
        new = room.untyped_storage()
        new.copy_(_storage(sharing))
        for one, like in sharing:
            made = torch.empty(0, dtype=like.dtype, device="cpu")
            one.data = made.set_(new, like.storage_offset(), like.shape, like.stride())


def _bytes(size: int, *, pinned: bool = False) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
