# SPDX-License-Identifier: Apache-2.0
"""What a plan means for the pieces of a model: which modules run as one, what is sent where.

Read off a recorded step, before anything runs (Paper 4.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.record.recorded_step import LOSS, Capture, Op, kept_ops

Device = TypeVar("Device")  # or its name

_MUCH = 8  # times what a module is sent in vain is as much as what it reads


def called_units(captured: Capture) -> dict[str, Any]:
    """Return the modules that were called as operators; each call may run elsewhere."""
    return dict.fromkeys(sorted(captured.units))


def units_of(
    captured: Capture, device_of: Mapping[str, Device], apart: Collection[int] = ()
) -> dict[str, Device | None]:
    """Return the modules that run as one piece, and where; None where each call may differ.

    Those that have an operator of `apart` inside do not, unless it is one itself.
    """
    units = called_units(captured)
    inside = _inside(captured)
    made = _made_of_values(captured)
    views = _views_inside(captured)
    for path, members in inside.items():
        called = path in units
        if not called and not (path in captured.entries and set(members).isdisjoint(apart)):
            continue
        found = {device_of.get(captured.ops[i].key) for i in members}
        if len(found) > 1 or None in found or not _closed(captured, path, members, made):
            continue
        if called or not _sent_too_much(captured, path, members, views.get(path, ()), device_of):
            units[path] = found.pop()
    return units


def intercepted_calls(captured: Capture, device_of: Mapping[str, Any]) -> int:
    """Return how many calls of a forward are intercepted: one of each module in one piece."""
    units = units_of(captured, device_of)
    found: set[str] = set()
    for op in captured.ops:
        path = op.scope if op.module is None else op.module
        whole = (p for p in _prefixes(path) if p in units and p not in captured.units)
        if not op.key.startswith(LOSS):
            found.add(next(whole, f">{op.key}"))
    return len(found)


def _inside(captured: Capture) -> dict[str, list[int]]:
    """Return the operators inside every module."""
    stands = kept_ops(captured)
    inside: dict[str, list[int]] = {}
    for index, op in enumerate(captured.ops):
        if stands[index] != index:
            continue
        path = op.module if op.module is not None else op.scope
        for around in _prefixes(path):
            inside.setdefault(around, []).append(index)
    return inside


def _views_inside(captured: Capture) -> dict[str, list[tuple[Op, int | None]]]:
    """Return the functions inside every module that only make views, and who stands for them."""
    inside: dict[str, list[tuple[Op, int | None]]] = {}
    for index, writer in kept_ops(captured).items():
        op = captured.ops[index]
        if op.module is None and writer != index:
            for around in _prefixes(op.scope):
                inside.setdefault(around, []).append((op, writer))
    return inside


def _sent_too_much(
    captured: Capture,
    path: str,
    members: list[int],
    views: Iterable[tuple[Op, int | None]],
    device_of: Mapping[str, Any],
) -> bool:
    """Whether a module would be sent more than it reads if it ran as one, on one device.

    It is given much that none of its operators read, or reads a part by a view inside it.
    """
    ops, tensors, own = captured.ops, captured.tensors, set(members)

    def is_here(maker: int | None) -> bool:
        return maker is not None and device_of.get(ops[maker].key) == here

    here = device_of.get(ops[members[0]].key)
    read = {tensor for index in members for tensor in ops[index].reads}
    unread = captured.entries.get(path, set()) - read
    in_vain = sum(tensors[t].bytes for t in unread if not is_here(tensors[t].producer))
    if in_vain * _MUCH > sum(tensors[tensor].bytes for tensor in read):
        return True
    arrived: Counter[int] = Counter()
    for index in members:
        arrived.update(ops[index].arrives)
    return any(
        0 < arrived[tensor] < size and tensors[tensor].producer not in own
        for view, writer in views
        if not is_here(writer)
        for tensor, size in view.arrives.items()
    )


def keeping_units(captured: Capture) -> set[str]:
    """Return the modules that change nothing in place but what they made."""
    keeping = set()
    for path, members in _inside(captured).items():
        own = set(members)
        changed = {t for index in members for t in captured.ops[index].changed}
        if all(captured.tensors[tensor].producer in own for tensor in changed):
            keeping.add(path)
    return keeping


def reaching_calls(captured: Capture) -> set[str]:
    """Return the calls that read what is none of their arguments, attributes or weights.

    It may be on another device, which nothing around the call shows.
    """
    return {op.key for op in captured.ops if not op.reads.keys() <= op.arrives.keys()}


def _prefixes(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _made_of_values(captured: Capture) -> dict[int, str]:
    """Return the scope of each `torch.tensor(..., device=...)`, by the tensor that it made.

    The dispatcher sees none being made, so the tensor has no producer.
    """
    made = [(seen.tensor, captured.ops[seen.given[0]]) for seen in captured.seen if seen.given]
    return {t: op.scope for t, op in made if op.kind == "tensor" and op.told and not op.takes}


def _closed(captured: Capture, path: str, members: list[int], made: Mapping[int, str]) -> bool:
    """Whether all that the operators read is made where they are, or an argument of the module.

    What functions make without arguments or a device is on the host, unless somebody moves it.
    """
    arguments = captured.entries.get(path)
    if arguments is None:
        return True  # a unit already
    own = set(members)
    for index in members:
        op = captured.ops[index]
        if op.module is None and op.made and not (op.takes or op.told):
            return False
        for tensor in op.reads:
            if captured.tensors[tensor].producer in own or tensor in arguments:
                continue
            if tensor not in made or path not in _prefixes(made[tensor]):
                return False
    return True


def pushed_outputs(
    captured: Capture, device_of: Mapping[str, LogicalDevice]
) -> dict[str, dict[int, list[LogicalDevice]]]:
    """Return the devices that read each output of each operator as it is, not through a view.

    The loss is not among the readers: it runs where the model is called, whatever the plan says.
    """
    pushed: dict[str, dict[int, list[LogicalDevice]]] = {}
    for op in captured.ops:
        for position, readers in op.feeds.items():
            keys = (captured.ops[r].key for r in readers)
            devices = {device_of.get(key) for key in keys if not key.startswith(LOSS)}
            wanted = sorted((d for d in devices if d is not None), key=lambda d: d.index)
            if wanted:
                pushed.setdefault(op.key, {})[position] = wanted
    for key, outputs in captured.exits.items():  # a module may run as one unit
        for position, origin in enumerate(outputs):
            wanted = [] if origin is None else _wanted(pushed, captured, origin)
            if wanted:
                pushed.setdefault(key, {})[position] = wanted
    return pushed


def writers_of_views(captured: Capture, pushed: Mapping[str, Any]) -> set[str]:
    """Return the operators that wrote last what is sent as a view."""
    writers = {
        writer
        for op in captured.ops
        if op.only_views and op.key in pushed
        for writer in op.reads.values()
        if writer is not None
    }
    modules = {  # that may run as one unit
        key
        for key, outputs in captured.exits.items()
        if any(origin is not None and origin[0] in writers for origin in outputs)
    }
    return modules | {captured.ops[writer].key for writer in writers}


def _wanted(
    pushed: Mapping[str, Mapping[int, list[LogicalDevice]]],
    captured: Capture,
    origin: tuple[int, int],
) -> list[LogicalDevice]:
    op, position = origin
    return pushed.get(captured.ops[op].key, {}).get(position, [])
