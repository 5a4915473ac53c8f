# SPDX-License-Identifier: Apache-2.0
"""A `device_map` for Hugging Face accelerate and transformers, planned by what a step takes.

Their hooks move the arguments of modules and nothing else, so whatever meets in a plain torch
operation is kept on one device here; within that rule the placement with the shortest step is used.
What no device has room for goes to the disk, from where accelerate brings it to the first device.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import Cluster, InputError, Plan
from baechi.brief_errors import briefly
from baechi.pipeline import DoesNotFit, described, place_graph
from baechi.torch.base.request import check_called_with, check_model
from baechi.torch.cost.graph_generator import ModelGraph, graph_of
from baechi.torch.cost.profiler import Costs, estimate
from baechi.torch.devices import detected_cluster
from baechi.torch.record.capture import capture
from baechi.torch.record.recorded_step import Capture, kept_ops
from baechi.torch.record.repeated_units import Repeated
from baechi.torch.weights.homes import homes_by_name

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip

_DISK = "disk"
_SLOWER = 1000  # times, than the CPU; what goes there is only what must
_ENDLESS = 1 << 50  # bytes of a disk whose size is not given
_ORDER = "program"  # hooks run the model's own code, which comes to its modules in that order
_NAMED = 5  # modules that a warning names


def bytes_of(size: int | str, device: int | str) -> int:
    """Return the bytes of `device`: a number, or a text as accelerate writes it, as "10GiB"."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]+)\s*", str(size))
    if match is None or match.group(2).upper() not in _UNITS:
        raise InputError(
            f"max_memory[{device!r}]: {size!r} is no amount of memory; write e.g. '10GiB'"
        )
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _cluster_of(max_memory: Mapping[int | str, int | str] | None) -> tuple[Cluster, list[Any]]:
    """Return the cluster, and what each of its devices is called in a device map."""
    if max_memory is None:
        cluster, devices = detected_cluster()
        return cluster, list(range(len(devices)))
    if not isinstance(max_memory, Mapping):
        raise InputError(
            f"max_memory: expected bytes by device, such as {{0: '10GiB', 'cpu': '30GiB'}}, found "
            f"{described(max_memory)}"
        )
    for key in max_memory:
        if not (isinstance(key, int) or key == _DISK or _is_device(key)):
            raise InputError(
                f"max_memory: {key!r} is no device: accelerate calls them 0, 1, ..., 'cpu' and "
                "'disk'"
            )
    keys = [key for key in max_memory if key != _DISK and bytes_of(max_memory[key], key) > 0]
    if not keys:
        raise InputError(
            "max_memory gives no device any memory: name some, e.g. {0: '10GiB', 'cpu': '30GiB'}"
        )
    parts = [f"1x{'cpu' if k == 'cpu' else 'gpu'}:{bytes_of(max_memory[k], k)}B" for k in keys]
    return Cluster("+".join(parts)), keys


def _is_device(name: str) -> bool:
    try:
        torch.device(name)
    except (RuntimeError, TypeError):
        return False
    return True


def _meeting_points(captured: Capture) -> list[list[str]]:
    """Return the operators that must share a device because hooks cannot move between them."""
    stands = kept_ops(captured)
    together = []
    for index, op in enumerate(captured.ops):
        stand = stands[index]
        if op.module is not None or stand is None:
            continue
        group = {stand}
        for writer in op.reads.values():
            known = None if writer is None else stands[writer]
            if known is not None:
                group.add(known)
        if len(group) > 1:
            together.append([captured.ops[i].key for i in sorted(group)])
    return together


def _example(model: nn.Module) -> Any:
    example = getattr(model, "dummy_inputs", None)
    if example is None:
        raise InputError(
            f"{type(model).__name__} is called once, with shapes only, and has no dummy_inputs: "
            "give example_inputs, what one call takes"
        )
    return dict(example)


@briefly
def device_map(
    model: nn.Module,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: str | Sequence[str] | None = None,
    *,
    example_inputs: Any = None,
    budget: str | float = "1s",
) -> dict[str, int | str]:
    """Return the device of every module, in the form that accelerate and transformers take.

    A drop-in for accelerate's `infer_auto_device_map`: the model may be on the meta device.

    Args:
        model: Any module.
        max_memory: Bytes, or a text such as "10GiB", by device; by default the free memory of the
            accelerators.
        no_split_module_classes: Classes of modules that stay whole, besides those that the model
            itself names.
        example_inputs: What one call takes; by default the model's own `dummy_inputs`.
        budget: How long to search.

    Returns:
        The device by module. Where the memory does not suffice, as little as can be is on "disk",
        and a warning names it.

    Raises:
        DoesNotFit: A module has no room to run.

    """
    check_model(model)
    inputs = _example(model) if example_inputs is None else example_inputs
    check_called_with(model, inputs)
    cluster, keys = _cluster_of(max_memory)
    whole = list(getattr(model, "_no_split_modules", None) or [])
    if isinstance(no_split_module_classes, str):
        whole.append(no_split_module_classes)
    else:
        whole += no_split_module_classes or []
    try:
        with torch.no_grad():
            captured = capture(model, inputs, training=False, units=Repeated(whole), abstract=True)
    except InputError as error:
        if example_inputs is not None:
            raise
        raise InputError(
            f"{error}; it was called with its own dummy_inputs ({', '.join(inputs)}): give "
            "example_inputs"
        ) from error
    costs = estimate(captured, {"gpu": "rtx3090", "cpu": "cpu", _DISK: "cpu"})
    for cost in costs.ops.values():
        cost.forward[_DISK] *= _SLOWER
    graph = graph_of(captured, costs, together=_meeting_points(captured))
    try:
        plan = place_graph(graph.graph, cluster, budget=budget, bounds=False, order=_ORDER)
    except DoesNotFit as reason:
        room = bytes_of((max_memory or {}).get(_DISK, _ENDLESS), _DISK)
        plan = _with_disk(graph, costs, cluster, room, budget, reason)
        keys = [*keys, _DISK]
    names = [device.name for device in plan.cluster.devices]
    key_of = dict(zip(names, keys, strict=True))
    keys_of = {op: key_of[device] for op, device in plan.device_of.items()}
    found = _by_module(model, captured, keys_of)
    _warn_of_disk(model, found)
    return found


def _with_disk(
    graph: ModelGraph,
    costs: Costs,
    cluster: Cluster,
    room: int,
    budget: str | float,
    reason: DoesNotFit,
) -> Plan:
    """Return a plan with a disk; the first device keeps room to run what comes from there."""
    document = json.loads(cluster.to_json())
    own = cluster.devices[0].capacity
    needs = (c.parameters + c.buffers + c.forward_temporary for c in costs.ops.values())
    left = own - max(needs)
    if left <= 0 or room <= 0:
        raise reason
    document["devices"][0]["capacity"] = f"{left}B"
    document["devices"].append({"name": _DISK, "kind": _DISK, "capacity": f"{room}B"})
    return place_graph(
        graph.graph,
        Cluster.from_json(json.dumps(document)),
        budget=budget,
        bounds=False,
        order=_ORDER,
    )


def _warn_of_disk(model: nn.Module, found: Mapping[str, int | str]) -> None:
    """Say what is on the disk, by name and size."""
    weights = [*model.named_parameters(), *model.named_buffers()]
    sizes = {
        path: sum(t.nbytes for n, t in weights if f"{n}.".startswith(f"{path}." if path else ""))
        for path, device in found.items()
        if device == _DISK
    }
    if not sizes:
        return
    named = [f"{path or 'all of it'} ({size:,} bytes)" for path, size in sizes.items()][:_NAMED]
    more = f" and {len(sizes) - _NAMED} more modules" if len(sizes) > _NAMED else ""
    warnings.warn(
        f"{type(model).__name__} does not fit: on the disk are {', '.join(named)}{more}, "
        f"{sum(sizes.values()):,} bytes in all; accelerate wants an offload_folder for them, and "
        "brings them to the first device in every step",
        stacklevel=3,
    )


def _by_module(
    model: nn.Module, captured: Capture, key_of: Mapping[str, int | str]
) -> dict[str, int | str]:
    """Return the map with modules that are on one device as one entry."""
    names = [n for n, _ in model.named_parameters(remove_duplicate=False)]
    names += [n for n, _ in model.named_buffers(remove_duplicate=False)]
    device_of = homes_by_name(captured, key_of, names)
    result: dict[str, int | str] = {}

    def enter(path: str, module: nn.Module) -> None:
        prefix = f"{path}." if path else ""
        inside = {d for n, d in device_of.items() if n.startswith(prefix)}
        if not inside:
            return
        if len(inside) == 1:
            result[path] = inside.pop()
            return
        for name, _ in [*module.named_parameters(recurse=False),
                        *module.named_buffers(recurse=False)]:  # fmt: skip
            result[prefix + name] = device_of[prefix + name]
        for name, child in module.named_children():
            enter(prefix + name, child)

    enter("", model)
    return result
