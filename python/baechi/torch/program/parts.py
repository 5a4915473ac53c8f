# SPDX-License-Identifier: Apache-2.0
"""Parts of a batch: a step of several micro-batches, from the calls of one.

Weights are shared, and what only shows them. Gradients are added up as they are made, in the order
of the parts, where they are made, and go to their weight's device once; into a gradient that is
there already, on its device, each is added at once.

Replicas of a step add up gradients a bucket at a time, beyond the paper. A bucket is handed over as
soon as the last of its gradients is there, and other calls go on. Its sums come back behind all of
them. Every replica runs the same list, so the earliest entry that some rank has not finished waits
only for entries before it: sends and reductions never wait in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from baechi.torch.capture.keys import SUM, WRITE
from baechi.torch.program.calls import Call, Calls, Order
from baechi.torch.program.instructions import HOST, Run, Slot, mapped, slots_in

GRADIENT = "gradient"  # begins the names of gradients that are there
REDUCE = "reduce"  # ends the name of a bucket's call, by which an order may place it


class Input(NamedTuple):
    """What a step reads: an input of a part, or of all (part None), or a gradient that is there.

    ``place`` counts the inputs of one part's calls, for a gradient its outputs.
    """

    place: int
    part: int | None = None
    gradient: bool = False


class Output(NamedTuple):
    """What a step gives: an output of a part, or of all together."""

    place: int
    part: int | None = None


@dataclass
class Parts:
    """The calls of a step, and what its inputs and outputs are.

    ``sums`` has of the storage of each sum of gradients that of the gradient in one part's calls.
    ``last`` are the calls that add up or write something in the last part: names by their nodes.
    """

    calls: Calls
    inputs: list[Input]
    outputs: list[Output]
    sums: dict[str, str]
    last: dict[Hashable, str]


@dataclass(frozen=True)
class Roles:
    """What inputs and outputs of one part are, by their index.

    ``shared`` inputs are weights and other buffers. ``gradients`` are outputs that are added up.
    A ``carried`` input is given to each part as the output of the part before; the last one is
    written into those that the step ``writes``, and is no output then.
    """

    shared: Collection[int]
    gradients: Collection[int] = ()
    carried: Mapping[int, int] = field(default_factory=dict)
    writes: bool = False


def in_parts(calls: Calls, parts: int, roles: Roles, *, existing: Collection[int] = ()) -> Parts:
    """Return a step of so many parts.

    A call's node is ``(node, part)``. ``existing`` are the gradients, by their index among the
    outputs, that are there already: they become inputs, on the devices promised for them.
    """
    return _Builder(calls, parts, roles, existing).step()


class _Builder:
    def __init__(self, calls: Calls, parts: int, roles: Roles, existing: Collection[int]) -> None:
        self.calls, self.parts, self.roles, self.existing = calls, parts, roles, existing
        self.shared = {calls.inputs[i].name: calls.inputs[i] for i in roles.shared}
        self.shared.update((slot.name, slot) for slot, _ in calls.constants)
        self.now: dict[str, Slot] = {}  # slots of the part that is being made
        self.order = Order()
        self.result = Calls(constants=calls.constants, table=calls.table)
        self.inputs: list[Input] = []
        self.part = 0
        self.made = {slot.name: slot for call in calls.calls for slot in call.run.outs}
        self.shown = Counter(slot.storage for out in calls.outputs for slot in slots_in(out))
        self.makers: dict[str, Call] = {}  # by slot and by storage
        self.totals: dict[int, Slot] = {}
        self.late: dict[int, Slot] = {}  # gradients that are there, on another device
        self.sums: dict[str, str] = {}
        self.last: dict[Hashable, str] = {}

    def step(self) -> Parts:
        self.take_inputs()
        outputs: list[Output] = []
        results: dict[Output, Any] = {}
        for part in range(self.parts):
            self.begin(part)
            for call in self.calls.calls:
                self.add(call, part)
            for i, out in enumerate(self.calls.outputs):
                if i in self.roles.gradients:
                    self.add_gradient(i, out, part)
                else:
                    whole = i in self.roles.carried.values()
                    results[Output(i, None if whole else part)] = mapped(out, self.known)
        for i, out in self.roles.carried.items() if self.roles.writes else ():
            slot, new = self.calls.inputs[i], self.known(self.calls.outputs[out])
            if isinstance(new, Slot) and slot.device == new.device not in (None, HOST):
                self.add_to(slot, new, _COPY, (WRITE, i), self.parts - 1)
                del results[Output(out)]
        for i, out in enumerate(self.calls.outputs):
            if i in self.roles.gradients:
                outputs.append(Output(i))
                results[Output(i)] = self.total(i, out)
            else:
                outputs += [key for key in results if key.place == i]
        self.result.outputs = [results[key] for key in outputs]
        self.result.promised = [self.calls.promised[key.place] for key in outputs]
        return Parts(self.result, self.inputs, outputs, self.sums, self.last)

    def take_inputs(self) -> None:
        for i, slot in enumerate(self.calls.inputs):
            whole = i in self.roles.shared or i in self.roles.carried
            for part in [None] if whole else range(self.parts):
                self.inputs.append(Input(i, part))
                made = slot if part is None else _of_part(slot, part, self.shared)
                self.result.inputs.append(made)
        for i in sorted(self.existing):
            out, device = self.calls.outputs[i], self.calls.promised[i]
            if not isinstance(out, Slot):
                continue
            size = out.dense
            slot = Slot(
                f"{GRADIENT}{i}", out.device if device is None else device, size, None, size
            )
            self.inputs.append(Input(i, None, gradient=True))
            self.result.inputs.append(slot)
            self.totals[i] = slot

    def begin(self, part: int) -> None:
        """Give a part what the part before left of the carried inputs."""
        before, self.now = self.now, {}
        for i, out in self.roles.carried.items():
            slot, new = self.calls.inputs[i], self.calls.outputs[out]
            self.now[slot.name] = slot if part == 0 else before.get(new.name, new)
        for slot in self.calls.inputs:
            if slot.name not in self.now and slot.name not in self.shared:
                self.now[slot.name] = _of_part(slot, part, self.shared)
        self.part = part

    def known(self, value: Any) -> Any:
        if not isinstance(value, Slot):
            return value
        return self.now.get(value.name) or self.shared.get(value.name, value)

    def add(self, call: Call, part: int) -> None:
        run = call.run
        reads = slots_in((run.args, run.kwargs))
        whole = call.lazy and all(slot.name in self.shared for slot in reads)
        if whole and part > 0:
            return

        def made(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            if whole:
                self.shared[value.name] = value
                return value
            of = self.known(replace(value, name=value.of)).storage if value.of else None
            self.now[value.name] = replace(value, name=f"{value.name}.{part}", of=of)
            return self.now[value.name]

        args, kwargs = mapped(run.args, self.known), mapped(run.kwargs, self.known)
        changes = tuple(self.storage_now(storage) for storage in call.changes)
        run = replace(run, args=args, kwargs=kwargs, out=mapped(run.out, made))
        self.show(replace(call, node=(call.node, part), run=run, changes=changes))
        if changes and isinstance(run.out, Slot):  # later parts read it as it is then
            for name, slot in list(self.shared.items()):
                if slot.storage in changes:
                    self.shared[name] = run.out

    def storage_now(self, name: str) -> str:
        slot = self.now.get(name) or self.shared.get(name)
        return name if slot is None else slot.storage

    def show(self, call: Call) -> None:
        """Append a call, behind what it has to come behind."""
        after = (
            ()
            if call.view
            else tuple(self.order.after(call.node, call.run, call.changes, self.part))
        )
        call = replace(call, after=after)
        self.result.calls.append(call)
        if not call.lazy:
            self.makers.update((slot.name, call) for slot in call.run.outs)

    def add_gradient(self, index: int, out: Any, part: int) -> None:
        """Add a part's gradient to those of the parts before."""
        if not isinstance(out, Slot) or out.device is None:
            return
        gradient = self.known(out)
        total = self.totals.get(index)
        if total is not None and total.device != gradient.device:
            self.late[index], total = total, None
        if total is None:
            if self.parts > 1 and not self.is_own(out):
                gradient = self.add_to(gradient, None, _CLONE, (SUM, index), part)
            self.totals[index] = gradient
        else:
            self.totals[index] = self.add_to(total, gradient, _ADD, (SUM, index), part)

    def total(self, index: int, out: Any) -> Any:
        """Return the sum of a gradient, in the one that was there already if there was one."""
        if index in self.totals:
            self.sums[self.totals[index].storage] = out.storage
        if index not in self.late:
            return self.totals.get(index, out)
        total = self.totals[index]
        return self.add_to(self.late[index], total, _ADD, (SUM, index), self.parts)

    def is_own(self, out: Slot) -> bool:
        """Tell whether a gradient may be added to in place: no other output shows its storage."""
        root = self.made.get(out.storage)
        return self.shown[out.storage] == 1 and root is not None and root.dense == out.dense

    def add_to(
        self, first: Slot, new: Slot | None, target: Any, node: tuple[str, int], part: int
    ) -> Slot:
        """Append a call that adds to a tensor, behind what makes the new, or writes over it."""
        rest, last = (() if new is None else (new,)), new or first
        changed = () if target is _CLONE else (first.storage,)
        made = {"bytes": 0, "of": first.storage} if changed else {"bytes": last.dense, "of": None}
        out = replace(first, name=f"{node[0]}{node[1]}.{part}", **made)
        maker = self.makers.get(last.name) or self.makers.get(last.storage)
        name = f"{maker.run.name if maker else out.name}:{node[0]}"
        assert first.device is not None  # a gradient is a tensor
        run = Run(target, (first, *rest), {}, out, first.device, name)
        behind = None if maker is None or target is _COPY else maker.node
        if part == self.parts - 1:
            self.last[node] = name
        self.show(Call((node, part), run, changes=changed, behind=behind))
        return out


_CLONE, _ADD = torch.ops.aten.clone.default, torch.ops.aten.add_.Tensor
_COPY = torch.ops.aten.copy_.default


def _of_part(slot: Slot, part: int, shared: Mapping[str, Slot]) -> Slot:
    of = slot.of if slot.of is None or slot.of in shared else f"{slot.of}.{part}"
    return replace(slot, name=f"{slot.name}.{part}", of=of)


def begin_bucket(bucket: int, *gradients: torch.Tensor) -> None:
    """Hand over the gradients of a bucket; a rank's part has a call of its transport instead."""
    raise RuntimeError(f"bucket {bucket} of {len(gradients)} gradients is reduced by ranks alone")


def end_bucket(bucket: int) -> tuple[torch.Tensor, ...]:
    """Return the sums over all replicas of a bucket's gradients, likewise."""
    raise RuntimeError(f"bucket {bucket} is reduced by ranks alone")


def with_reductions(parts: Parts, count: int, buckets: Mapping[str, Collection[int]]) -> None:
    """Have the gradients that a step of ``count`` parts gives be sums over replicas.

    ``buckets`` are their places among the outputs of one part, by the buckets' names. What several
    devices make is in a bucket for each.
    """
    calls = parts.calls
    found: dict[tuple[str, int | None], dict[int, Slot]] = {}
    for name, places in buckets.items():
        for i in (parts.outputs.index(Output(place)) for place in places):
            if isinstance(slot := calls.outputs[i], Slot):
                found.setdefault((name, slot.device), {})[i] = slot
    calls.table += [begin_bucket, end_bucket]
    ends = []
    for number, ((name, device), there) in enumerate(found.items()):
        assert device is not None  # a gradient is a tensor
        sums = {
            i: replace(slot, name=f"{name}.{i}", bytes=slot.dense, of=None)
            for i, slot in there.items()
        }
        for i, slot in sums.items():
            calls.outputs[i] = slot
        node, title = ((REDUCE, number), count - 1), f"{name}:{REDUCE}"
        parts.last[node[0]] = title
        calls.calls.append(
            Call(node, Run(begin_bucket, (number, *there.values()), {}, None, device, title))
        )
        out: Any = tuple(sums.values())
        run = Run(end_bucket, (number,), {}, out, device, f"{name}:sums")
        ends.append(Call((("sums", number), count - 1), run, after=(node,)))
    calls.calls += ends
