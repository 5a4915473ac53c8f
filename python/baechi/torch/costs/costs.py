# SPDX-License-Identifier: Apache-2.0
"""Costs: nanoseconds and bytes of every distinct call, and of moving bytes, by kind of device."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from baechi._core import InputError, Profile
from baechi.torch.capture.keys import name_of
from baechi.torch.capture.loss import tensors_in

if TYPE_CHECKING:
    from typing_extensions import Self


def given(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, with a tensor that has only a shape for every tensor."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return tuple(args), dict(kwargs)


def traffic_of(node: fx.Node) -> int:
    """Return the bytes that a call reads and writes at least."""
    touched = [*tensors_in(given(node)), *tensors_in(node.meta.get("val"))]
    return sum(_bytes(tensor) for tensor in touched)


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; those that `expand` repeats count once."""
    count = 1
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        count *= int(size) if stride or not size else 1
    return count * tensor.element_size()


def _written(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape = "x".join(str(int(size)) for size in value.shape)
        text = f"{str(value.dtype)[6:]}[{shape}]"
        return text if value.is_contiguous() else f"{text}/{list(map(int, value.stride()))}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_written, value))})"
    if isinstance(value, torch.device):
        return "device"
    return str(value)


def signature_of(node: fx.Node) -> str:
    """Return the signature of a call: `aten::mm.default(float32[4x8], float32[8x2]/[1, 8])`.

    It is what calls have in common that cost the same: operator, shapes, strides, numbers.
    """
    args, kwargs = given(node)
    overload = getattr(node.target, "_overloadname", "")
    words = [_written(value) for value in args]
    words += [f"{name}={_written(value)}" for name, value in sorted(kwargs.items())]
    return f"{name_of(node)}.{overload}({', '.join(words)})"


FORMAT = {"format": "baechi-profile", "version": 1}
FEW, MANY = 1 << 10, 1 << 24  # bytes that were measured; others are on the line between them
MOVED = "moved {} bytes"  # read or written, as an addition does


def updated(optimizer: str, dtype: torch.dtype) -> str:
    """Return what is done with a weight's bytes in an update."""
    return f"updated {{}} bytes of {str(dtype)[6:]} by {optimizer}"


@dataclass
class Costs:
    """The costs of a step's calls, by signature."""

    source: str  # by what and how they were found
    times: dict[str, dict[str, int]] = field(default_factory=dict)  # by signature and kind
    temporary: dict[str, int] = field(default_factory=dict)  # what a call holds for itself
    runs: int = 0  # calls that were timed for it

    def time_of(self, signature: str, kind: str) -> int:
        """Return the nanoseconds of a call on a device of a kind."""
        found = self.times.get(signature, {})
        if kind in found:
            return found[kind]
        if "*" in found:
            return found["*"]
        raise InputError(
            f"costs: {self.source} has no time of {signature} on devices of kind {kind!r}: "
            "measure it there, or estimate the costs"
        )

    def temporary_of(self, signature: str) -> int:
        """Return the bytes that a call holds beside what it reads and returns."""
        return self.temporary.get(signature, 0)

    def of_bytes(self, count: int, kind: str, what: str = MOVED) -> int:
        """Return the nanoseconds of what is done with so many bytes, by default moving them."""
        few, many = (self.time_of(what.format(n), kind) for n in (FEW, MANY))
        return max(few, few + (many - few) * (count - FEW) // (MANY - FEW)) if count else 0

    def set_of_bytes(self, kind: str, few: int, many: int, what: str = MOVED) -> None:
        """Say what FEW and MANY bytes take."""
        for count, time in ((FEW, few), (MANY, many)):
            self.times.setdefault(what.format(count), {})[kind] = time

    def knows(self, kind: str, what: str = MOVED) -> bool:
        """Tell whether it has what that takes on a kind of device by name."""
        return kind in self.times.get(what.format(FEW), {})

    def updating(self, optimizer: str, weight: torch.Tensor, moved: int, kind: str) -> int:
        """Return the nanoseconds of an optimizer's update of a weight, which moves so many bytes.

        One that was not measured takes what moving them does.
        """
        what = updated(optimizer, weight.dtype)
        if not self.knows(kind, what):
            return self.of_bytes(moved, kind)
        return self.of_bytes(weight.nbytes, kind, what)

    def add(self, other: Costs) -> None:
        """Take over what another one knows and this one does not."""
        for signature, times in other.times.items():
            known = self.times.setdefault(signature, {})
            self.times[signature] = times | known
        self.temporary = other.temporary | self.temporary

    def profile(self) -> Profile:
        """Return them as the core's profile; its operators are signatures."""
        operators = [
            {
                "name": signature,
                "time": {kind: f"{time}ns" for kind, time in sorted(times.items())},
                "memory": {"temporary": self.temporary.get(signature, 0)},
            }
            for signature, times in sorted(self.times.items())
        ]
        document = {**FORMAT, "source": self.source, "operators": operators}
        return Profile.from_json(json.dumps(document))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write profile.json."""
        self.profile().save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        known = Profile.load(path)
        found = known.operators.values()
        held = {one.name: one.temporary for one in found if one.temporary}
        return cls(known.source, {one.name: dict(one.times) for one in found}, held)
