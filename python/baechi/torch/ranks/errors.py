# SPDX-License-Identifier: Apache-2.0
"""What ranks compare, what they say where it differs, and how they tell each other of errors."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from baechi._core import InputError
from baechi.pipeline import DoesNotFit
from baechi.torch.capture.loss import tensors_in
from baechi.torch.where.homes import plain_parts


class RankError(RuntimeError):
    """Another rank failed, or was lost."""

    __module__ = "baechi.torch"  # where a user finds it


def digest(text: str) -> str:
    """Return what tells texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()


def sum_of(tensor: torch.Tensor) -> int:
    """Return a check sum of all bits of a tensor, which come to the host for it."""
    found = 0
    for part in plain_parts(tensor.detach()):
        if part.numel() and not part.is_meta and part.layout is torch.strided:
            plain = part.cpu().resolve_conj().resolve_neg().contiguous()
            found = zlib.crc32(plain.view(-1).view(torch.uint8).numpy(), found)
    return found


def facts_of(value: Any, *, with_values: bool = True) -> str:
    """Return shapes and types of nested tensors, and the sum of each."""
    return ", ".join(
        f"{tuple(t.shape)} of {t.dtype}".replace("torch.", "")
        + (f" with sum {sum_of(t):x}" if with_values else "")
        for t in tensors_in(value)
    )


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    said = " ".join(str(error).split())
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"


class Told(NamedTuple):
    """An error as other ranks are told of it."""

    words: str
    is_input: bool
    as_it_is: DoesNotFit | None

    @staticmethod
    def of(error: BaseException) -> Told:
        """Return what others are told."""
        as_it_is = error if isinstance(error, DoesNotFit) else None
        return Told(one_line(error), isinstance(error, ValueError), as_it_is)

    def raise_on_another(self, where: str) -> None:
        """Raise it on another rank."""
        if self.as_it_is is not None:
            raise self.as_it_is
        raise (InputError if self.is_input else RankError)(f"{where}: {self.words}")


def difference(what: str, facts: Sequence[Mapping[str, str]]) -> str:
    """Say what ranks do not agree on."""
    known = {key: [each.get(key, "none") for each in facts] for one in facts for key in one}
    name, values = next((name, values) for name, values in known.items() if len({*values}) > 1)
    rank = next(i for i, value in enumerate(values) if value != values[0])
    return (
        f"ranks cannot {what}: rank 0 and rank {rank} do not have the same {name}: "
        f"{_short(values[0])} and {_short(values[rank])}"
    )


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:80]}... (of digest {digest(text)[:8]})"
