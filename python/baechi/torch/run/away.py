# SPDX-License-Identifier: Apache-2.0
"""What a plan keeps on its host: tensors by name, each with its fetches, found again in graphs.

Beyond the paper.

A tensor is a weight, by its name, or a result of a call, by its key and place. A fetch of the plan
is one of a program if all its readers are in it. One that serves forward and backward is the
forward's, which saves the copy.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from baechi._core import Plan
from baechi.torch.capture.keys import is_call, is_move, is_view
from baechi.torch.program.calls import Calls
from baechi.torch.program.instructions import reads_of
from baechi.torch.program.travels import Fetch, Fetching, PutEnd

Tensor = tuple[str, int]  # a weight's name and 0, or a call's key and the place of its result
KEY, TENSOR = "baechi_key", "baechi_tensor"  # in the meta of nodes, which partitions copy


@dataclass(frozen=True)
class PlannedFetch:
    """A fetch of the plan: by the keys of calls."""

    moment: int
    number: int
    behind: str | None  # the last call of its device that has ended when its transfer begins
    readers: frozenset[str]
    spans: bool  # it serves forward and backward


@dataclass(frozen=True)
class Away:
    """What is away in a plan; ``store`` is the device that has it, by its index.

    ``puts`` has when a put has ended, and the last call of its device that has begun until then;
    ``orders`` the calls of each device. Behind a call that is in no program is behind the last one
    before it that is. With several micro-batches in the plan, ``parts``, calls are ``key@m``.
    """

    store: int | None = None
    fetches: Mapping[Tensor, tuple[PlannedFetch, ...]] = field(default_factory=dict)
    puts: Mapping[str, tuple[int, str | None]] = field(default_factory=dict)  # by their makers
    orders: Collection[Sequence[str]] = ()
    parts: int = 1

    def named(self, key: str, part: int | str) -> str:
        """Return what the plan calls a call of a micro-batch, or the sum of its gradients."""
        if self.parts == 1:
            return key
        return f"{key}@{part % self.parts if isinstance(part, int) else part}"

    def tensor(self, tensor: Tensor, part: int | str) -> Tensor:
        """Return what the plan calls a weight, or what a call of a micro-batch makes."""
        return tensor if tensor in self.fetches else (self.named(tensor[0], part), tensor[1])

    def of(self, tensor: Tensor | None, reader: str | None) -> PlannedFetch | None:
        """Return the fetch that brings a tensor to a reader; both as the plan calls them."""
        found = self.fetches.get(tensor, ()) if tensor is not None else ()
        return next((fetch for fetch in found if reader in fetch.readers), None)

    def fetching(
        self, calls: Calls, tensors: Mapping[str, Tensor], names: Mapping[Any, str], *, back: bool
    ) -> Fetching:
        """Return the fetches of a program of a call: those of the first micro-batch.

        Args:
            calls: Of the program.
            tensors: What each storage is, by its slot.
            names: The keys of calls.
            back: Whether it is a backward, whose forward saves the copies that it keeps.

        """
        there = {slot: self.tensor(tensor, 0) for slot, tensor in tensors.items()}
        found = self._fetching(calls, there, {node: self.named(k, 0) for node, k in names.items()})
        spanning = {pair: fetch for pair, (fetch, spans) in found.items() if spans}
        plain = {pair: fetch for pair, (fetch, spans) in found.items() if not spans}
        puts = self._puts(there, names)
        if back:
            return Fetching(self.store, plain, frozenset(spanning), puts)
        saved = {(storage, None): fetch for (storage, _), fetch in spanning.items()}
        return Fetching(self.store, plain | spanning | saved, puts=puts)

    def fetching_in_parts(
        self,
        calls: Calls,
        tensors: Mapping[str, Tensor],
        names: Mapping[Any, str],
        parts: int,
        sums: Mapping[str, Tensor],
    ) -> Fetching:
        """Return the fetches of a step of micro-batches; ``sums`` are gradients, by storage."""
        there = {name: self.tensor(tensor, 0) for name, tensor in tensors.items()}
        keys: dict[Any, str] = {}
        for part in range(parts):
            there |= {f"{name}.{part}": self.tensor(one, part) for name, one in tensors.items()}
            keys |= {(node, part): self.named(key, part) for node, key in names.items()}
        there |= {storage: (self.named(key, "sum"), i) for storage, (key, i) in sums.items()}
        found = self._fetching(calls, there, keys)
        by_reader = {pair: fetch for pair, (fetch, _) in found.items()}
        return Fetching(self.store, by_reader, puts=self._puts(there, keys))

    def _fetching(
        self, calls: Calls, tensors: Mapping[str, Tensor], names: Mapping[Any, str]
    ) -> dict[tuple[str, Any], tuple[Fetch, bool]]:
        """Return how what is read is fetched, by storage and reader, and which fetches span."""
        nodes = self.last_calls(names)
        found: dict[tuple[str, Any], tuple[Fetch, bool]] = {}
        for call in calls.calls if self.fetches else ():
            for slot in reads_of(call.run):
                fetch = self.of(tensors.get(slot.storage), names.get(call.node))
                if fetch is not None:
                    made = Fetch(fetch.moment, nodes.get(fetch.behind or ""), number=fetch.number)
                    found[slot.storage, call.node] = made, fetch.spans
        return found

    def _puts(self, tensors: Mapping[str, Tensor], names: Mapping[Any, str]) -> dict[str, PutEnd]:
        nodes = self.last_calls(names)
        ends = {slot: self.puts[of] for slot, (of, _) in tensors.items() if of in self.puts}
        return {slot: PutEnd(end, nodes.get(behind or "")) for slot, (end, behind) in ends.items()}

    def last_calls(self, names: Mapping[Any, str]) -> dict[str, Any]:
        """Return of every call the last one of a program that its device has run with it."""
        nodes = {key: node for node, key in reversed([*names.items()])}  # the first of several
        found = dict(nodes)
        for order in self.orders:
            last = None
            for key in order:
                last = found[key] = nodes.get(key, last)
        return found

    def is_put(self, tensor: Tensor | None, readers: Collection[str | None]) -> bool:
        """Tell whether a tensor is on the store when its forward has ended: all fetch it there."""
        if tensor is None:
            return False
        whose = self.tensor(tensor, 0)
        fetches = [self.of(whose, reader and self.named(reader, 0)) for reader in readers]
        return bool(readers) and all(one is not None and not one.spans for one in fetches)


def readers_of(node: fx.Node) -> Iterator[str | None]:
    """Yield the keys of the calls that read what a node shows; None for who has none."""
    for user in node.users:
        if user.op == "call_function" and (is_view(user) or is_move(user)) and not is_call(user):
            yield from readers_of(user)
        else:
            yield user.meta.get(KEY)


def tensors_of(
    calls: Calls, names: Mapping[Any, str], known: Iterable[fx.Node]
) -> dict[str, Tensor]:
    """Return what each storage of a program is: inputs are what the graph's nodes say."""
    said = {node.name: node.meta[TENSOR] for node in known if TENSOR in node.meta}
    found = {slot.name: said[slot.name] for slot in calls.inputs if slot.name in said}
    for call in calls.calls:
        outs = call.run.out if isinstance(call.run.out, tuple) else (call.run.out,)
        for part, slot in enumerate(outs):
            if call.node in names and slot is not None and not isinstance(slot, tuple):
                found[slot.name] = (names[call.node], part)
    return found


def away_in(
    plan: Plan,
    store: int,
    calls: Mapping[str, str],
    back: Collection[str],
    place_of: Mapping[tuple[str, int], int],
) -> Away:
    """Return what is away in a plan.

    Memory is taken when a transfer begins and free when it has ended: programs ask for what stands
    in the plan at that moment.

    Args:
        plan: Whose cluster has a host.
        store: Which device that is.
        calls: Of the keys of all runs, which are operators of the plan, those of their calls.
        back: The keys of those of the backward.
        place_of: Which result of its call a port is.

    """
    away = Away(store, parts=plan.micro_batches)
    said = json.loads(plan.to_json()).get("residency")
    if said is None:
        return away
    every = {away.named(k, m): call for k, call in calls.items() for m in range(away.parts)}
    first, behind_it = [{away.named(key, 0) for key in keys} for keys in (calls, back)]
    clock, names = _Clock(plan, every), plan.graph.names
    host = plan.cluster.devices[store].name
    begin = {t[0]: t[5] for t in plan.transfers if t[1] == host}
    fetches = [(one, fetch) for one in said["away"] for fetch in one["fetches"]]
    operators = names[len(names) - len(fetches) :]  # they come last, in the order of the list
    order = sorted(range(len(fetches)), key=lambda i: begin[operators[i]])
    found: dict[Tensor, list[PlannedFetch]] = {}
    for number in order:
        one, fetch = fetches[number]
        name, port = one["tensor"] if isinstance(one["tensor"], list) else (one["tensor"], 0)
        readers = frozenset(fetch["readers"])
        moment = begin[operators[number]]
        behind = clock.ended(plan.device_of[fetch["readers"][0]], moment)
        spans = bool(readers & behind_it) and not readers & first <= behind_it
        made = PlannedFetch(moment, number, behind, readers, spans)
        found.setdefault((name, place_of.get((every.get(name) or name, port), 0)), []).append(made)
    puts = {t[0]: (t[6], clock.begun(t[1], t[6])) for t in plan.transfers if t[2] == host}
    by_tensor = {tensor: tuple(those) for tensor, those in found.items()}
    orders = [[key for _, _, key in rows] for rows in clock.rows.values()]
    return replace(away, fetches=by_tensor, puts=puts, orders=orders)


class _Clock:
    """Which call of a device ends before a moment, and which begins behind it."""

    def __init__(self, plan: Plan, calls: Collection[str]) -> None:
        rows = zip(plan.graph.names, plan.starts, plan.ends, strict=True)
        self.rows: dict[str, list[tuple[int, int, str]]] = {}
        for key, start, end in rows:
            if key in calls:
                self.rows.setdefault(plan.device_of[key], []).append((start, end, key))
        for rows_of_device in self.rows.values():
            rows_of_device.sort()

    def ended(self, device: str, moment: int) -> str | None:
        rows = self.rows.get(device, [])
        at = bisect.bisect_right(rows, moment, key=lambda row: row[1])
        return rows[at - 1][2] if at else None

    def begun(self, device: str, moment: int) -> str | None:
        return next((k for s, _, k in reversed(self.rows.get(device, [])) if s < moment), None)
