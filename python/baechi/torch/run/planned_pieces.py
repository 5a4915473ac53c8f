# SPDX-License-Identifier: Apache-2.0
"""What a plan means for the pieces of a model: which modules run as one, what is sent where.

Read off a recorded step, before anything runs (Paper 4.3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.record.recorded_step import LOSS, Capture, kept_ops

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
    too_much = _sent_too_much(captured, inside, device_of)
    for path, members in inside.items():
        if not set(members).isdisjoint(apart) and path not in units:
            continue
        if path not in units and (path not in captured.entries or path in too_much):
            continue
        found = {device_of.get(captured.ops[i].key) for i in members}
        if len(found) == 1 and None not in found and _closed(captured, path, members, made):
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


def _sent_too_much(
    captured: Capture, inside: Mapping[str, list[int]], device_of: Mapping[str, Any]
) -> set[str]:
    """Return the modules that would be sent more than they read if they ran as one.

    They are given much that none of their operators read, or read a part by a view inside them.
    """
    stands, ops, found = kept_ops(captured), captured.ops, set()
    for path, members in inside.items():
        where = device_of.get(ops[members[0]].key)
        own = set(members)
        read = {tensor for index in members for tensor in ops[index].reads}
        unread = 0
        for tensor in captured.entries.get(path, set()) - read:
            maker = captured.tensors[tensor].producer
            if maker is None or (maker not in own and device_of.get(ops[maker].key) != where):
                unread += captured.tensors[tensor].bytes
        if unread * _MUCH > sum(captured.tensors[tensor].bytes for tensor in read):
            found.add(path)
    for index, op in enumerate(ops):
        writer = stands[index]
        if op.module is not None or writer == index:
            continue
        at = None if writer is None else device_of.get(ops[writer].key)
        for path in _prefixes(op.scope):
            parts = [ops[i] for i in inside.get(path, ())]
            if not parts or device_of.get(parts[0].key) == at:
                continue
            for tensor, size in op.arrives.items():
                part = sum(member.arrives.get(tensor, 0) for member in parts)
                if captured.tensors[tensor].producer not in inside[path] and 0 < part < size:
                    found.add(path)
    return found


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
