# SPDX-License-Identifier: Apache-2.0
"""A `device_map` for Hugging Face accelerate and transformers, planned by what a step takes.

Their hooks move the arguments of modules and nothing else, so whatever meets in a plain torch
operation is kept on one device here; within that rule the placement with the shortest step is used.
What no device has room for goes to the disk, from where accelerate brings it to the first device.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from baechi._core import Cluster, InputError
from baechi.brief_errors import briefly
from baechi.pipeline import DoesNotFit, described, place_graph
from baechi.torch.capture.cache import captured
from baechi.torch.capture.step import Step, bytes_of
from baechi.torch.costs.costs import Costs, signature_of
from baechi.torch.costs.roofline import estimated
from baechi.torch.devices import ENDLESS, detected_line
from baechi.torch.graph.graph import graph_of, source_of
from baechi.torch.planned_step import homes_of
from baechi.torch.request import check_called_with, check_model
from baechi.torch.where.homes import named_tensors, own_tensors

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip

_DISK = "disk"
_SLOWER = 1000  # times, than the CPU; what goes there is only what must
_ORDER = "program"  # hooks run the model's own code, which comes to its modules in that order
_NAMED = 5  # modules that a warning names


def amount_of(size: int | str, device: int | str) -> int:
    """Return the bytes of `device`: a number, or a text as accelerate writes it, as "10GiB"."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]+)\s*", str(size))
    if match is None or match.group(2).upper() not in _UNITS:
        raise InputError(
            f"max_memory[{device!r}]: {size!r} is no amount of memory; write e.g. '10GiB'"
        )
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _cluster_of(
    model: nn.Module, max_memory: Mapping[int | str, int | str] | None
) -> tuple[Cluster, list[Any]]:
    """Return the cluster, and what each of its devices is called in a device map."""
    if max_memory is None:
        cluster = Cluster(detected_line(model))
        return cluster, list(range(len(cluster)))
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
    keys = [key for key in max_memory if key != _DISK and amount_of(max_memory[key], key) > 0]
    if not keys:
        raise InputError(
            "max_memory gives no device any memory: name some, e.g. {0: '10GiB', 'cpu': '30GiB'}"
        )
    parts = [f"1x{'cpu' if k == 'cpu' else 'gpu'}:{amount_of(max_memory[k], k)}B" for k in keys]
    return Cluster("+".join(parts)), keys


def _is_device(name: str) -> bool:
    try:
        torch.device(name)
    except (RuntimeError, TypeError):
        return False
    return True


class _Units:
    """What runs on one device: modules whose arguments hooks move, with what meets between them.

    They are the modules that stay whole and those with weights and no modules in them. Any other
    call shares the device of all that it reads.
    """

    def __init__(self, model: nn.Module, whole: Sequence[str]) -> None:
        self._modules = dict(model.named_modules())
        self._whole = set(whole)
        self._joined: dict[str, str] = {}

    def _of(self, path: str) -> str | None:
        parts = path.split(".")
        for end in range(len(parts) + 1):
            name = ".".join(parts[:end])
            if type(self._modules.get(name)).__name__ in self._whole:
                return name
        module = self._modules.get(path)
        is_leaf = module is not None and not any(module.children()) and any(own_tensors(module))
        return path if is_leaf else None

    def _first(self, name: str) -> str:
        while name in self._joined:
            name = self._joined[name]
        return name

    def _join(self, name: str, other: str) -> None:
        first, second = self._first(name), self._first(other)
        if first != second:
            self._joined[second] = first

    def of(self, step: Step) -> dict[str, str]:
        """Return the unit of every call, by its key."""
        found: dict[fx.Node, str] = {}
        for node, key in step.keys.items():
            unit = self._of(step.path_of(node))
            found[node] = key if unit is None else f"module:{unit}"
            if unit is None:
                for read in node.all_input_nodes:
                    source = source_of(read)[0]
                    if source in found:
                        self._join(found[source], key)
        paths = [name.rpartition(".")[0] for pair in step.tied.items() for name in pair]
        for path, other in zip(paths[::2], paths[1::2], strict=True):
            units = self._of(path), self._of(other)
            self._join(f"module:{units[0] or path}", f"module:{units[1] or other}")
        return {step.keys[node]: self._first(unit) for node, unit in found.items()}


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

    A drop-in for accelerate's `infer_auto_device_map`: the model may be on the meta device. If its
    weights came apart there that are to be tied, its own `tie_weights` ties them.

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
    cluster, keys = _cluster_of(model, max_memory)
    if callable(tie := getattr(model, "tie_weights", None)):
        tie()
    whole = list(getattr(model, "_no_split_modules", None) or [])
    if isinstance(no_split_module_classes, str):
        whole.append(no_split_module_classes)
    else:
        whole += no_split_module_classes or []
    try:
        with torch.no_grad():
            step = captured(model, inputs)
    except InputError as error:
        if example_inputs is not None:
            raise
        raise InputError(
            f"{error}; it was called with its own dummy_inputs ({', '.join(inputs)}): give "
            "example_inputs"
        ) from error
    costs = estimated(step.keys, {"gpu": "rtx3090", "cpu": "cpu", _DISK: "cpu"})
    for times in costs.times.values():
        times[_DISK] *= _SLOWER
    units = _Units(model, whole).of(step)
    graph = graph_of(step, costs, ["gpu", "cpu", _DISK], together=units)
    search = functools.partial(place_graph, graph.graph, budget=budget, bounds=False, order=_ORDER)
    try:
        plan = search(cluster)
    except DoesNotFit:
        room = amount_of((max_memory or {}).get(_DISK, ENDLESS), _DISK)
        left = cluster.devices[0].capacity - _largest_need(step, costs, units)
        if left <= 0 or room <= 0:
            raise
        plan = search(_with_disk(cluster, left, room))
        keys = [*keys, _DISK]
    names = [device.name for device in plan.cluster.devices]
    key_of = dict(zip(names, keys, strict=True))
    homes = {name: key_of[device] for name, device in homes_of(plan, step).items()}
    found = _by_module(model, homes)
    _warn_of_disk(model, found)
    return found


def _largest_need(step: Step, costs: Costs, units: Mapping[str, str]) -> int:
    """Return the most bytes that a unit needs to run: its weights, and what calls hold."""
    weights: dict[str, dict[fx.Node, int]] = {}
    held: dict[str, int] = {}
    given = dict(zip(step.placeholders(), step.inputs, strict=True))
    for node, key in step.keys.items():
        sources = [source_of(read)[0] for read in node.all_input_nodes]
        own = [s for s in sources if s in given and given[s].kind in ("weight", "buffer")]
        weights.setdefault(units[key], {}).update((s, bytes_of(s)) for s in own)
        own_bytes = costs.temporary_of(signature_of(node))
        held[units[key]] = max(held.get(units[key], 0), own_bytes)
    return max((sum(read.values()) + held[unit] for unit, read in weights.items()), default=0)


def _with_disk(cluster: Cluster, left: int, room: int) -> Cluster:
    """Return a cluster with a disk; the first device keeps room to run what comes from there."""
    document = json.loads(cluster.to_json())
    document["devices"][0]["capacity"] = f"{left}B"
    document["devices"].append({"name": _DISK, "kind": _DISK, "capacity": f"{room}B"})
    return Cluster.from_json(json.dumps(document))


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


def _by_module(model: nn.Module, homes: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return the map with modules that are on one device as one entry.

    A weight that the step does not use is beside the one before it.
    """
    device_of: dict[str, int | str] = {}
    last = next(iter(homes.values()))
    for name, _ in named_tensors(model):
        last = device_of[name] = homes.get(name, last)
    result: dict[str, int | str] = {}

    def enter(path: str, module: nn.Module) -> None:
        prefix = f"{path}." if path else ""
        inside = {d for n, d in device_of.items() if n.startswith(prefix)}
        if len(inside) == 1:
            result[path] = inside.pop()
        elif inside:
            for name, _ in own_tensors(module):
                result[prefix + name] = device_of[prefix + name]
            for name, child in module.named_children():
                enter(prefix + name, child)

    enter("", model)
    return result
