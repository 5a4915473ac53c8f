# SPDX-License-Identifier: Apache-2.0
"""Calls: a functional graph of PyTorch's as a list, every value with its device and its storage."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from baechi.torch.capture.keys import is_move, is_random, keeps_strides
from baechi.torch.capture.loss import tensors_in
from baechi.torch.program.instructions import (
    HERE,
    HOST,
    Run,
    Slot,
    function_name,
    is_plain,
    mapped,
    slots_in,
)

_UNSAID = ("pin_memory", "non_blocking")  # arguments without meaning for where a value is


@dataclass(frozen=True)
class Call:
    """One call, with its arguments where they were made.

    ``node`` names it in an order. A view makes no memory and runs wherever it is read, and so does
    what ``packs`` a tensor, which does nothing where that has come without gaps. What reads
    ``anywhere`` takes tensors from the devices that they are on. ``after`` are nodes that come
    before it although it reads nothing of theirs; ``changes`` are storages that it changes. If an
    order leaves it out, it comes right ``behind`` a node.
    """

    node: Hashable
    run: Run
    view: bool = False
    packs: bool = False
    anywhere: bool = False
    after: tuple[Hashable, ...] = ()
    changes: tuple[str, ...] = ()
    behind: Hashable = None

    @property
    def lazy(self) -> bool:
        """Tell whether it costs nothing, and runs when its result is asked for."""
        outs = self.run.outs
        numbers = bool(outs) and all(slot.device is None for slot in outs)
        return self.view or self.packs or (numbers and not is_random(self.run))


@dataclass
class Calls:
    """What a graph asks for. ``promised`` has the device of each output, None: where it is."""

    inputs: list[Slot] = field(default_factory=list)
    constants: list[tuple[Slot, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    promised: list[int | None] = field(default_factory=list)
    table: list[Any] = field(default_factory=list)


def calls_of(
    graph: fx.GraphModule | fx.Graph,
    device_of: Mapping[fx.Node, int],
    *,
    promised: Sequence[int | None] | None = None,
    names: Mapping[fx.Node, str] | None = None,
) -> Calls:
    """Read a graph of AOTAutograd's: forward, backward or both.

    ``device_of`` has placeholders and calls; views are where their storage is, and what changes a
    tensor in place is where that is. ``names`` are the calls' names in errors.
    """
    return _Reader(graph, device_of, names or {}).read(promised)


class _Reader:
    def __init__(
        self,
        graph: fx.GraphModule | fx.Graph,
        device_of: Mapping[fx.Node, int],
        names: Mapping[fx.Node, str],
    ) -> None:
        self.graph = graph.graph if isinstance(graph, fx.GraphModule) else graph
        self.owner = graph if isinstance(graph, fx.GraphModule) else graph.owning_module
        self.device_of, self.names = device_of, names
        self.values: dict[fx.Node, Any] = {}
        self.storages: dict[int, Slot] = {}  # by address: who brought it
        self.order = Order()
        schemas = [getattr(node.target, "_schema", None) for node in self.graph.nodes]
        self.changes = any(schema is not None and schema.is_mutable for schema in schemas)
        self.result = Calls()

    def read(self, promised: Sequence[int | None] | None) -> Calls:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = slot = self.input(node)
                self.result.inputs.append(slot)
            elif node.op == "get_attr":
                self.values[node] = self.attribute(node)
            elif node.op == "call_function":
                self.values[node] = self.call(node)
            elif node.op == "output":
                outputs = node.args[0]
                flat = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
                self.result.outputs = [mapped(out, self.value) for out in flat]
            else:
                raise ValueError(f"{node.name}: a functional graph has no {node.op}")
        count = len(self.result.outputs)
        self.result.promised = [None] * count if promised is None else list(promised)
        if len(self.result.promised) != count:
            raise ValueError(f"promised: {len(self.result.promised)} devices, {count} outputs")
        return self.result

    def value(self, part: Any) -> Any:
        return self.values[part] if isinstance(part, fx.Node) else part

    def device(self, node: fx.Node) -> int:
        if node not in self.device_of:
            raise ValueError(f"device_of: nothing for {self.names.get(node, node.name)}")
        return self.device_of[node]

    def input(self, node: fx.Node) -> Slot:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return Slot(node.name)
        return self.tensor(node.name, value, self.device(node))

    def attribute(self, node: fx.Node) -> Any:
        found: Any = self.owner
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if not isinstance(found, torch.Tensor):
            return found
        home = HOST if found.device.type == "cpu" else self.device_of.get(node, 0)
        slot = self.tensor(node.name, found, home)
        self.result.constants.append((slot, len(self.result.table)))
        self.result.table.append(found)
        return slot

    def call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            whole = self.value(node.args[0])
            if isinstance(whole, list | tuple):
                return whole[node.args[1]]
        if is_move(node):
            source = self.value(node.args[0])
            if (source.device == HOST) == (self.move_target(node) == HOST):
                if keeps_strides(node):
                    self.shown_by_views(node, source)
                    return source
                if not self.changes:
                    return self.packed(node, source)
        args, kwargs = self.arguments(node)
        reads = list(dict.fromkeys(slots_in((args, kwargs))))
        changed = [slot for slot in self.changed(node, args, kwargs) if slot is not None]
        value = node.meta.get("val")
        view = not changed and self.is_view(value, reads)
        if changed:
            device = _one_device(node, changed)
        elif view:
            device = next(slot.device for slot in reads if slot.device is not None)
        elif any(True for _ in tensors_in(value)) or (value is None and node in self.device_of):
            device = self.device(node)
        elif value is None:  # an assertion
            device = next((slot.device for slot in reads if slot.device is not None), HOST)
        else:
            device = HOST  # a number
        out = self.out(node.name, value, device, reads, changed)
        run = Run(node.target, args, kwargs, out, device, self.names.get(node, node.name))
        numbers = device == HOST and all(slot.device is None for slot in run.outs)
        changes = tuple(slot.storage for slot in changed)
        call = Call(
            node,
            run,
            view,
            anywhere=is_move(node) or (numbers and value is not None),
            after=() if view else tuple(self.order.after(node, run, changes)),
            changes=changes,
        )
        self.result.calls.append(call)
        return out

    def packed(self, move: fx.Node, source: Slot) -> Slot:
        """Return what a move makes of a tensor with gaps: what was sent has none, others copy."""
        slot = self.tensor(move.name, move.meta["val"], source.device or 0, ())
        copy = torch.ops.aten._to_copy.default
        run = Run(copy, (source,), {}, slot, slot.device or 0, self.names.get(move, move.name))
        self.result.calls.append(Call(move, run, packs=True))
        return slot

    def shown_by_views(self, move: fx.Node, source: Slot) -> None:
        """Have views of a copy that no program makes be views of what was to be copied."""
        base = self.storages.get(_address(move.args[0].meta["val"]))
        if base is not None and base.name == source.storage:
            self.storages.setdefault(_address(move.meta["val"]), base)

    def move_target(self, node: fx.Node) -> int:
        """Return where a move goes; one that was given no device goes to the host, or is none."""
        if node in self.device_of:
            return self.device_of[node]
        source = self.value(node.args[0])
        leaves = node.meta["val"].device.type == "cpu" != node.args[0].meta["val"].device.type
        if source.device == HOST and not leaves:
            return self.device(node)  # which says what is missing
        return HOST if leaves else source.device

    def arguments(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def told(part: Any) -> Any:
            value = HERE if isinstance(part, torch.device) else self.value(part)
            return value if isinstance(value, Slot) or is_plain(value) else self.tabled(value)

        if not (isinstance(node.target, torch._ops.OpOverload) or function_name(node.target)):
            self.tabled(node.target)

        args = tuple(mapped(arg, told) for arg in node.args)
        kwargs = {k: mapped(v, told) for k, v in node.kwargs.items() if k not in _UNSAID}
        if not any(slot.device is not None for slot in slots_in(args)):
            schema = getattr(node.target, "_schema", None)
            if schema is not None and any(part.name == "device" for part in schema.arguments):
                kwargs["device"] = HERE
        return args, kwargs

    def tabled(self, value: Any) -> Any:
        """Return what text cannot say, and have it in the table."""
        if not any(known is value for known in self.result.table):
            self.result.table.append(value)
        return value

    def changed(self, node: fx.Node, args: Any, kwargs: Any) -> Iterator[Slot | None]:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from slots_in(args[i] if i < len(args) else kwargs.get(argument.name))

    def is_view(self, value: Any, reads: list[Slot]) -> bool:
        shown = [self.storages.get(address) for address in map(_address, tensors_in(value))]
        tensors = [slot for slot in reads if slot.device is not None]
        if not shown or len(tensors) != 1:
            return False
        return all(slot is not None and slot.name == tensors[0].storage for slot in shown)

    def out(
        self, name: str, value: Any, device: int, reads: list[Slot], changed: list[Slot]
    ) -> Any:
        if value is None:
            return None
        if isinstance(value, list | tuple):
            parts = enumerate(value)
            return tuple(self.out(f"{name}.{i}", v, device, reads, changed) for i, v in parts)
        if not isinstance(value, torch.Tensor):
            return Slot(name)
        if changed:
            known = changed[0]
            return Slot(name, device, 0, known.storage, known.dense, known.scalar, value)
        return self.tensor(name, value, device, reads)

    def tensor(
        self, name: str, value: torch.Tensor, device: int, reads: Sequence[Slot] | None = None
    ) -> Slot:
        """Return the slot of a tensor; ``reads`` are what it may be a view of (None: anything)."""
        address = _address(value)
        base = self.storages.get(address)
        if base is not None and base.device != device:
            base = None
        if base is not None and reads is not None and base.name not in {s.storage for s in reads}:
            base = None
        size, of = (_size(value), None) if base is None else (0, base.name)
        like = value if value.layout is torch.strided else None
        slot = Slot(name, device, size, of, _dense(value), value.dim() == 0, like)
        if address and base is None:
            self.storages[address] = slot
        return slot


class Order:
    """What comes before what, although nothing is read: changes in place and random numbers.

    Random calls of a device keep their order within a part of the batch, and so do the copies of
    one call from part to part.
    """

    def __init__(self) -> None:
        self.readers: dict[str, list[Hashable]] = {}
        self.changer: dict[str, Hashable] = {}
        self.random: dict[tuple[int, Hashable], Hashable] = {}

    def after(
        self, node: Hashable, run: Run, changes: Sequence[str], part: int = 0
    ) -> Iterator[Hashable]:
        """Yield the nodes that a call comes behind, in the order in which calls are shown."""
        storages = dict.fromkeys(slot.storage for slot in slots_in((run.args, run.kwargs)))
        for storage in storages:
            if storage in self.changer:
                yield self.changer[storage]
        for storage in dict.fromkeys(changes):
            yield from self.readers.pop(storage, ())
            self.changer[storage] = node
        for storage in storages:
            self.readers.setdefault(storage, []).append(node)
        if is_random(run):
            for line in ((run.device, part), (run.device, run.name)):
                if line in self.random:
                    yield self.random[line]
                self.random[line] = node


def _one_device(node: fx.Node, changed: list[Slot]) -> int:
    devices = {slot.device for slot in changed}
    if len(devices) > 1 or None in devices:
        raise ValueError(f"{node.name}: changes tensors of several devices in place")
    return next(device for device in devices if device is not None)


def _address(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata if value.layout is torch.strided else 0


def _number(value: Any) -> int:
    """Return a number, for a symbolic one that with which it was traced."""
    if isinstance(value, int):
        return value
    hint = value.node.hint if value.node.has_hint() else 0
    return int(hint)


def _size(value: torch.Tensor) -> int:
    return _number(value.untyped_storage().nbytes()) if value.layout is torch.strided else 0


def _dense(value: torch.Tensor) -> int:
    return _number(value.numel()) * value.element_size()
