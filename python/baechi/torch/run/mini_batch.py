# SPDX-License-Identifier: Apache-2.0
"""A mini-batch cut into micro-batches: every tensor along its first dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch

from baechi._core import InputError
from baechi.torch.capture.loss import tensors_in
from baechi.torch.where.moving import MAPPINGS, map_tensors

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
SEQUENCES = (tuple, list)


def samples_in(batch: Any, what: str, targets: Any = None) -> int:
    """Return how many samples a mini-batch has: the first size of every tensor in it.

    Args:
        batch: Nested tensors; those without dimensions go to every micro-batch as they are.
        what: The argument, for errors.
        targets: More of it, which errors call `targets`.

    """
    first: tuple[str, int] | None = None
    for name, tensor in (*_named(batch, what), *_named(targets, "targets")):
        if tensor.requires_grad:
            raise InputError(
                f"{name} requires a gradient, which a step of micro-batches does not compute: "
                "detach() it"
            )
        if tensor.dim() == 0:
            continue
        if first is None:
            first = name, tensor.shape[0]
        elif tensor.shape[0] != first[1]:
            raise InputError(
                f"{name} is a tensor of shape {tuple(tensor.shape)} and {first[0]} has a first "
                f"size of {first[1]}: micro-batches are cut from every tensor along its first "
                "dimension, which must be that of the samples; what all samples share belongs into "
                "the model, e.g. as a buffer"
            )
    if first is None:
        raise InputError(f"{what}: no tensor in it has a first dimension to cut into micro-batches")
    for name, item in (*_parts(batch, what), *_parts(targets, "targets")):
        _check_can_be_cut(item, first[1], name)
    return first[1]


def _check_can_be_cut(item: Any, samples: int, name: str) -> None:
    """Raise InputError where every micro-batch would be given all of what is not in tensors."""
    known = isinstance(item, (torch.Tensor, *MAPPINGS, *SEQUENCES, *PLAIN, bytes, Enum))
    if not (known or _is_object_of_fields(item)):
        raise InputError(
            f"{name} is a {type(item).__name__}, which cannot be cut into micro-batches: give "
            "tensors, alone or in lists, tuples, dictionaries or dataclasses"
        )
    if samples > 1 and _counts(item) == samples and _are_values(item):
        raise InputError(
            f"{name} is a {type(item).__name__} of {samples} numbers or texts, as many as there "
            "are samples, and would go to every micro-batch as a whole: make it a tensor, or, if "
            "it is none of the samples, an attribute of the model or a torch.Size"
        )


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a value and all that is in it, each before what is in it, and its name in errors."""
    yield name, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(item, f"{name}[{key!r}]")
    elif isinstance(value, SEQUENCES):
        for position, item in enumerate(value):
            yield from _parts(item, f"{name}[{position}]")
    elif _is_object_of_fields(value):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name, None), f"{name}.{field.name}")


def _is_object_of_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _counts(value: Any) -> int:
    """Return how many items a container has that are told apart by position or by number.

    What has names for them, as options have, tells no samples apart.
    """
    if isinstance(value, Mapping):
        named = any(isinstance(key, str) and key.isidentifier() for key in value)
    elif isinstance(value, (*SEQUENCES, bytes)):
        named = isinstance(value, torch.Size) or hasattr(value, "_fields")
    else:
        return 0
    return 0 if named else len(value)


def _are_values(container: Any) -> bool:
    """Whether no item of a container would be cut, and one could be a sample's."""
    items = list(container.values() if isinstance(container, Mapping) else container)
    return all(map(_is_value, items)) and any(item is not None for item in items)


def _is_value(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    if isinstance(value, Mapping):
        return all(map(_is_value, value.values()))
    if isinstance(value, SEQUENCES):
        return all(map(_is_value, value))
    if _is_object_of_fields(value):
        fields = dataclasses.fields(value)
        return all(_is_value(getattr(value, field.name, None)) for field in fields)
    return isinstance(value, (type(None), bool, int, float, complex, str, bytes, Enum))


def parts_of(batch: Any, samples: int, size: int) -> list[tuple[Any, int]]:
    """Return micro-batches of so many samples, the last one maybe of fewer, and how many each has.

    Tensors in them are views; those without dimensions go to every micro-batch as they are.
    """
    found = []
    for first in range(0, samples, size):
        count = min(size, samples - first)

        def part(tensor: torch.Tensor, first: int = first, count: int = count) -> torch.Tensor:
            return tensor if tensor.dim() == 0 else tensor.narrow(0, first, count)

        found.append((map_tensors(_once(part), batch), count))
    return found


def check_division(samples: int, micro_batches: Any) -> None:
    """Raise InputError unless so many samples can be cut into so many micro-batches."""
    if type(micro_batches) is not int or micro_batches < 1:
        raise InputError(
            f"micro_batches is 'auto' or a whole number from 1 on, not {micro_batches!r}"
        )
    if samples % micro_batches:
        divisors = [m for m in range(1, samples + 1) if samples % m == 0]
        near = min(divisors, key=lambda m: (abs(m - micro_batches), m))
        raise InputError(
            f"micro_batches: {micro_batches} does not divide the {samples} samples of the example "
            f"inputs; {near} does"
        )


def check_loss_is_of_parts(loss: Any, samples: int) -> None:
    """Raise InputError where a loss function names a tensor of the whole mini-batch."""
    code = getattr(loss, "__code__", None)
    named: list[tuple[str, Any]] = []
    if code is not None:
        cells = zip(code.co_freevars, loss.__closure__ or (), strict=True)
        named += [(name, _content(cell)) for name, cell in cells]
        known = loss.__globals__
        named += [(name, known[name]) for name in code.co_names if name in known]
        named += [("a default", value) for value in loss.__defaults__ or ()]
    inside = getattr(loss, "func", None)
    if inside is not None:  # functools.partial
        named += [("an argument", v) for v in (*loss.args, *loss.keywords.values())]
    for name, value in named:
        for tensor in tensors_in(value):
            if tensor.dim() and tensor.shape[0] == samples and not tensor.requires_grad:
                raise InputError(
                    f"loss reads {name}, a tensor of {samples} samples, and is called with the "
                    "output of one micro-batch: write loss=lambda output, targets: ... and give "
                    "targets= here and to step()"
                )


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _named(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors inside a value, and how the caller would name them."""
    for where, item in _parts(value, name):
        if not (isinstance(item, (Mapping, *SEQUENCES)) or _is_object_of_fields(item)):
            yield from ((where, tensor) for tensor in tensors_in(item))


def _once(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `change` by which a tensor that is in several places stays one: code may ask."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        known = made.get(id(tensor))
        if known is None:
            known = made[id(tensor)] = tensor, change(tensor)
        return known[1]

    return changed
