# SPDX-License-Identifier: Apache-2.0
"""What a plan means for the pieces of a model: which modules run as one, what is sent where.

Read off a recorded step, before anything runs (Paper 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from baechi.torch.communication import LogicalDevice
from baechi.torch.profiler import kept_ops
from baechi.torch.recorded_step import LOSS, Capture


def called_units(captured: Capture) -> dict[str, LogicalDevice | None]:
    """Return the modules that were called as operators; each call may run elsewhere."""
    return dict.fromkeys(sorted(captured.units))


def units_of(
    captured: Capture, device_of: Mapping[str, LogicalDevice]
) -> dict[str, LogicalDevice | None]:
    """Return the modules that run as one piece, and where; None where each call may differ."""
    units = called_units(captured)
    inside = _inside(captured)
    for path, members in inside.items():
        if path not in captured.entries and path not in units:
            continue
        found = {device_of.get(captured.ops[i].key) for i in members}
        if len(found) == 1 and None not in found and _closed(captured, path, members):
            units[path] = found.pop()
    return units


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


def keeping_units(captured: Capture) -> set[str]:
    """Return the modules that change nothing in place but what they made."""
    keeping = set()
    for path, members in _inside(captured).items():
        own = set(members)
        changed = {t for index in members for t in captured.ops[index].changed}
        if all(captured.tensors[tensor].producer in own for tensor in changed):
            keeping.add(path)
    return keeping


def _prefixes(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _closed(captured: Capture, path: str, members: list[int]) -> bool:
    """Whether all that the operators read comes in through the arguments of the module."""
    arguments = captured.entries.get(path)
    if arguments is None:
        return True  # a unit already
    own = set(members)
    for index in members:
        for tensor in captured.ops[index].reads:
            if captured.tensors[tensor].producer not in own and tensor not in arguments:
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


def homes_of_weights(
    model: nn.Module, captured: Capture, device_of: Mapping[str, LogicalDevice]
) -> list[tuple[torch.Tensor, LogicalDevice]]:
    """Return where every parameter and buffer goes: to its user, or beside its neighbour."""
    user: dict[str, LogicalDevice] = {}
    for op in captured.ops:
        for name in op.weights:
            if op.key in device_of:
                user.setdefault(name, device_of[op.key])
    result: list[tuple[torch.Tensor, LogicalDevice]] = []
    last = next(iter(user.values()), None) or next(iter(device_of.values()))
    for name, tensor in named_weights(model):
        last = user.get(captured.aliases.get(name, name), last)
        result.append((tensor, last))
    return result


def named_weights(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return parameters and buffers, tied ones once."""
    return [*model.named_parameters(), *model.named_buffers()]
