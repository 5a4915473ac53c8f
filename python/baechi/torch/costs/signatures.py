# SPDX-License-Identifier: Apache-2.0
"""Signatures: what calls have in common that cost the same: operator, shapes, strides, numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import name_of
from baechi.torch.capture.loss import tensors_in


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
    """Return the signature of a call: `aten::mm.default(float32[4x8], float32[8x2]/[1, 8])`."""
    args, kwargs = given(node)
    overload = getattr(node.target, "_overloadname", "")
    words = [_written(value) for value in args]
    words += [f"{name}={_written(value)}" for name, value in sorted(kwargs.items())]
    return f"{name_of(node)}.{overload}({', '.join(words)})"
