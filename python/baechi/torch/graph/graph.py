# SPDX-License-Identifier: Apache-2.0
"""Graphs of steps: a call is an operator, a weight a variable, an update runs once per step.

Paper 4.1.

Views belong to the call that made their memory. The weights of a module are one group with the
forward calls that read them, so these run where they are; whoever else reads them, as the backward
does, may be on another device, and is sent them. A tied weight is in the group of its first module
alone: if an embedding and a head had to share a device, all between them would have to be there in
a pipeline (GPT-2 of eight layers, four micro-batches, four devices: 3.1 times one device, not 0.8).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from baechi._core import Cluster, Graph, GraphBuilder
from baechi.presets import STORE
from baechi.torch.capture.checkpoints import AGAIN
from baechi.torch.capture.keys import (
    SUM,
    WRITE,
    adds_gradients,
    is_backward,
    is_random,
    is_tangent,
    is_view,
    maker_of,
    name_of,
)
from baechi.torch.capture.step import LOSS, Input, Step
from baechi.torch.costs.costs import Costs, signature_of
from baechi.torch.graph.optimizers import (
    Updates,
    host_share,
    update_times,
    updates_of,
    with_host,
)

BATCH, UPDATE, PIECE = "batch:", "update:", "piece:"
TANGENT, ALL_GRADIENTS = "tangent", "all gradients"


@dataclass(frozen=True)
class StepGraph:
    """The graph of a step, and what its operators are."""

    graph: Graph
    keys: list[str]  # of every call, which are the names of its operators
    place_of: dict[tuple[str, int], int]  # of a port, in the result
    host_share: float = 0.0  # of the updates of what it keeps, where devices do the rest


def graph_of(
    step: Step,
    costs: Costs,
    kinds: Collection[str] | Cluster,
    optimizer: Any = "adam",
    granularity: str = "call",
    *,
    held: bool = False,
    micro_batches: int = 1,
    calls: bool = False,
    together: Mapping[str, str] | None = None,
    last_apart: bool = True,
    by_pieces: bool = False,
) -> StepGraph:
    """Return the graph of a step of one micro-batch.

    Args:
        step: As it was captured.
        costs: Of its calls, on devices of all kinds.
        kinds: Of the devices, or the cluster.
        optimizer: One of OPTIMIZERS, a class, or the optimizer itself.
        granularity: "call", or "module": all calls of a module share a device.
        held: The gradients of the step before are there from the beginning.
        micro_batches: Of a step, each of which adds its gradients to those that are there.
        calls: Forward and backward are two calls: nothing of the backward begins before its own,
            and the loss is computed on the first device of the cluster, where outputs come back.
        together: The group that a call is in beside its weights', by its key.
        last_apart: What follows the calls of the last micro-batch is in operators of its own.
        by_pieces: Weights that a host keeps are updated piece by piece on a device.

    """
    if granularity == "module":
        together = {key: f"module:{step.path_of(node)}" for node, key in step.keys.items()}
    return _Assembly(
        step,
        costs,
        kinds,
        updates_of(optimizer if step.is_training else None),
        together or {},
        held=held,
        micro_batches=micro_batches,
        calls=calls,
        last_apart=last_apart,
        by_pieces=by_pieces,
    ).build()


class _Assembly:
    """The graph while it is put together; arguments are those of `graph_of`."""

    def __init__(
        self,
        step: Step,
        costs: Costs,
        kinds: Collection[str] | Cluster,
        updates: Updates,
        together: Mapping[str, str],
        *,
        held: bool,
        micro_batches: int,
        calls: bool,
        last_apart: bool,
        by_pieces: bool,
    ) -> None:
        self._first, alone = None, False
        self._host_share = 0.0
        self._by_pieces_on = kinds if by_pieces and isinstance(kinds, Cluster) else None
        if isinstance(kinds, Cluster):
            computing = [d.name for d in kinds.devices if d.kind != STORE]
            self._first, alone = computing[0], len(computing) == 1
            kinds = sorted({device.kind for device in kinds.devices})
        self._kinds = [kind for kind in kinds if kind != STORE]  # which run calls
        self._has_store = STORE in kinds
        self._step, self._costs = step, with_host(costs) if self._has_store else costs
        self._updates, self._together = updates, together
        self._held, self._parts, self._calls = held, micro_batches, calls
        self._last_apart = last_apart and micro_batches > 1 and not self._has_store
        self._builder = GraphBuilder("step")
        self._keys = set(step.keys.values())
        self._inputs = dict(zip(step.placeholders(), step.inputs, strict=True))
        self._name: dict[fx.Node, str] = {}  # of the operators that were added
        self._port: dict[tuple[fx.Node, int], int] = {}
        self._tied = set(step.tied.values())
        self._gradients: dict[str, fx.Node] = {}
        self._makers: dict[fx.Node, list[int]] = {}  # of gradients, with the bytes of each
        self._written: dict[fx.Node, list[str]] = {}  # the buffers that a call writes
        self._buffers: dict[fx.Node, list[int]] = {}  # likewise, their bytes
        for result, node in zip(step.outputs, step.results(), strict=True):
            maker = source_of(node)[0]
            if result.kind == "gradient":
                self._gradients[result.name] = node
                self._makers.setdefault(maker, []).append(_bytes(node.meta["val"]))
            elif result.kind == "buffer" and maker in step.keys:
                self._written.setdefault(maker, []).append(result.name)
                self._buffers.setdefault(maker, []).append(_bytes(node.meta["val"]))
        self._behind = _behind(step, self._written)
        self._reached_by = _reached_by(step) if alone else {}
        self._forward: dict[Any, str] = {}  # the first call of each number of autograd's

    def build(self) -> StepGraph:
        for node, one in self._inputs.items():
            if one.kind in ("weight", "buffer"):
                self._add_variable(node, one)
            elif one.kind == "batch" and node.users:
                self._add_batch(node, BATCH + one.operator)
        tangents = [node for node, one in self._inputs.items() if one.kind == "tangent"]
        for node in self._step.keys:
            if is_backward(node) and tangents:
                self._add_tangents(tangents)
                tangents = []
            self._add_call(node)
        if self._last_apart:
            self._add_last()
        self._add_updates()
        graph = self._builder.build()
        places = {(self._name[n], port): place for (n, place), port in self._port.items()}
        return StepGraph(graph, list(self._step.keys.values()), places, self._host_share)

    def _add_variable(self, node: fx.Node, one: Input) -> None:
        name, groups = one.operator, [_group_of(one.name)]
        size = _bytes(node.meta["val"]) + one.beside
        self._builder.add(name, {}, variable=True, outputs=[size], colocate=groups, per_step=True)
        self._name[node], self._port[node, 0] = name, 0

    def _add_batch(self, node: fx.Node, name: str) -> None:
        """Add a tensor of the batch, which the caller holds: it is never away."""
        if self._first is None or not self._has_store:
            self._add_input(node, name)
            return
        size, first = _bytes(node.meta["val"]) * self._parts, self._first
        self._builder.add(name, {}, outputs=[size], device=first, variable=True, per_step=True)
        self._name[node], self._port[node, 0] = name, 0

    def _add_input(self, node: fx.Node, name: str, after: Collection[str] = ()) -> None:
        size = _bytes(node.meta["val"])
        times = dict.fromkeys(self._kinds, 0)
        self._builder.add(name, times, kind="input", outputs=[size], after=list(after))
        self._name[node], self._port[node, 0] = name, 0

    def _add_tangents(self, tangents: list[fx.Node]) -> None:
        """Add what a backward begins with; it begins when the loss is there."""
        results = zip(self._step.outputs, self._step.results(), strict=True)
        losses = [source_of(node)[0] for one, node in results if one.kind == "loss"]
        after = [self._name[node] for node in losses if node in self._name]
        for number, node in enumerate(tangents):
            self._add_input(node, TANGENT + (f":{number}" if number else ""), after)

    def _sources(self, node: fx.Node) -> list[tuple[str, int]]:
        found: dict[tuple[str, int], None] = {}
        for read in node.all_input_nodes:
            source, part = source_of(read)
            stale = (node, source) in self._behind  # the value that a buffer had before
            if source in self._name and not stale:
                found[self._name[source], self._port[source, part]] = None
        return list(found)

    def _add_call(self, node: fx.Node) -> None:
        key, back = self._step.keys[node], is_backward(node)
        read, lost = _parts(node)
        sizes: list[int] = []
        for part, size in read:
            self._port[node, part] = len(sizes)
            sizes.append(size)
        signature = signature_of(node)
        times = {kind: self._costs.time_of(signature, kind) for kind in self._kinds}
        written = self._written.get(node, [])
        number = node.meta.get("seq_nr")
        sources = self._sources(node)
        self._builder.add(
            key,
            self._with_additions(node, times),
            kind=name_of(node).rpartition("::")[2],
            temporary=self._costs.temporary_of(signature) + lost + self._added(node),
            outputs=sizes,
            inputs=sources,
            after=self._begins_behind(node, sources) if back else [],
            colocate=self._groups(node, back),
            device=self._first if self._calls and self._step.path_of(node) == LOSS else None,
            forward=self._forward.get(number) if back and not adds_gradients(node) else None,
            backward=back,
            recompute=not (
                written or back or f"{key}@{AGAIN}" in self._keys
            ),  # of a random call its generator's state is kept
            random=is_random(node),
            writes=written,
        )
        self._name[node] = key
        if not back and number is not None:
            self._forward.setdefault(number, key)

    def _begins_behind(self, node: fx.Node, sources: list[tuple[str, int]]) -> list[str]:
        """Return what a call of the backward waits for that reads nothing of the backward.

        On one device a second run of a checkpoint's waits until the backward reaches it: sooner it
        would save no time, and hold memory.
        """
        if node in self._reached_by:
            return [self._name[n] for n in self._reached_by[node] if n in self._name]
        if not self._calls:
            return []
        read = {name for name, _ in sources}
        behind = [n for n in node.all_input_nodes if is_backward(source_of(n)[0])]
        begins = TANGENT in self._name.values() and TANGENT not in read and not behind
        return [TANGENT] if begins else []

    def _with_additions(self, node: fx.Node, times: dict[str, int]) -> dict[str, int]:
        """Return times with what follows the call: its gradients added, its buffers written."""
        additions = self._parts - (0 if self._held else 1) - self._last_apart
        parts = self._parts  # whose copies share it
        times = {k: t + self._adding(node, k) * additions // parts for k, t in times.items()}
        if not self._last_apart:
            times = {k: t + self._writing(node, k) // parts for k, t in times.items()}
        return times

    def _adding(self, node: fx.Node, kind: str) -> int:
        """Return what adding a call's gradients to others takes, once."""
        return sum(self._costs.of_bytes(3 * size, kind) for size in self._makers.get(node, ()))

    def _writing(self, node: fx.Node, kind: str) -> int:
        """Return what writing a call's buffers takes."""
        return sum(self._costs.of_bytes(2 * size, kind) for size in self._buffers.get(node, ()))

    def _add_last(self) -> None:
        """Add what is done once, for the last micro-batch, and delays nothing else there.

        Its gradients are added to the others', and its buffers written when no one reads the old.
        """
        readers: dict[str, list[str]] = {}
        for node in self._step.keys:
            for one in (self._inputs.get(source_of(read)[0]) for read in node.all_input_nodes):
                if one is not None and one.kind == "buffer":
                    readers.setdefault(one.name, []).append(self._name[node])
        for node, key in self._step.keys.items():
            written = self._written.get(node, [])
            behind = {key, *(name for buffer in written for name in readers.get(buffer, ()))}
            if node in self._makers:
                self._add_once(f"{key}:{SUM}", node, self._adding, [key], [f"{SUM}:{key}"])
            if written:
                groups = [*map(_group_of, written)]
                self._add_once(f"{key}:{WRITE}", node, self._writing, sorted(behind), groups)

    def _add_once(
        self,
        name: str,
        node: fx.Node,
        taking: Callable[[fx.Node, str], int],
        after: list[str],
        colocate: list[str],
    ) -> None:
        times = {kind: taking(node, kind) for kind in self._kinds}
        end = name.rpartition(":")[2]
        self._builder.add(
            name, times, kind=end, after=after, colocate=colocate, backward=True, per_step=True
        )

    def _added(self, node: fx.Node) -> int:
        """Return the bytes of gradients that are added to those of other micro-batches.

        Where gradients of the step before are held, the sum beside them stands for these, unless
        weights are away: theirs are added up on the device, and only the sum joins them.
        """
        if self._parts == 1 or (self._held and not self._has_store):
            return 0
        return sum(self._makers.get(node, ()))

    def _groups(self, node: fx.Node, back: bool) -> list[str]:
        key = self._step.keys[node]
        groups = [self._together[key]] if key in self._together else []
        for read in node.all_input_nodes:
            one = self._inputs.get(source_of(read)[0])
            if one is None or one.kind not in ("weight", "buffer") or back:
                continue
            group = _group_of(one.name)
            if one.name not in self._tied or group == f"module:{self._step.path_of(node)}":
                groups.append(group)
        groups += map(_group_of, self._written.get(node, []))
        first = key.removesuffix(f"@{AGAIN}")
        groups += [f"{AGAIN}:{first}"] if f"{first}@{AGAIN}" in self._keys else []
        groups += [f"{SUM}:{key}"] if self._last_apart and node in self._makers else []
        return list(dict.fromkeys(groups))

    def _add_updates(self) -> None:
        """Add what an optimizer does once all gradients are there: not one is let go before."""
        trained = {n: one.name for n, one in self._inputs.items() if one.name in self._gradients}
        if trained:
            end = f":{SUM}" if self._last_apart else ""
            after = sorted({self._name[n] + end for n in self._makers if n in self._name})
            self._builder.add(ALL_GRADIENTS, {"*": 0}, after=after, backward=True, per_step=True)
        weights = [node.meta["val"] for node in trained]
        if self._by_pieces_on is not None:
            self._host_share = host_share(self._costs, self._updates, weights, self._by_pieces_on)
        for node, name in trained.items():
            self._add_update(node, name)

    def _add_update(self, node: fx.Node, weight: str) -> None:
        value, (source, part) = node.meta["val"], source_of(self._gradients[weight])
        gradient = [(self._name[source], self._port[source, part])] if source in self._name else []
        held = _bytes(value) if self._held else 0
        written = any(weight in names for names in self._written.values())
        read = [] if written else [(weight, 0)]  # readers of a weight come before who writes it
        taken = self._updates.temporary(value) + _bytes(value) - held  # of all weights at once
        permanent = self._updates.state(value) + held
        common: dict[str, Any] = {"kind": "update", "after": [ALL_GRADIENTS], "backward": True}
        common |= {"colocate": [_group_of(weight)], "per_step": True}
        times = {"*": 0}  # the step ends with its last gradient
        if self._has_store:
            times = update_times(self._costs, self._updates, value, self._kinds)
            permanent = max(permanent, 1)  # so no plan streams it: optimizers run behind a step
        if self._by_pieces_on is not None:
            room = 2 * self._updates.beside(value)  # one comes while the other is updated
            here = {kind: round(times[kind] * (1 - self._host_share)) for kind in self._kinds}
            self._builder.add(PIECE + weight, here, temporary=room, **common)
            times = {kind: time - here.get(kind, 0) for kind, time in times.items()}
            times[STORE] = round(times[STORE] * self._host_share)
        self._builder.add(
            UPDATE + weight,
            times,
            permanent=permanent,
            outputs=[taken],  # held to the end
            inputs=[*read, *gradient],
            **common,
        )


def _group_of(weight: str) -> str:
    return f"module:{weight.rpartition('.')[0]}"


def source_of(node: fx.Node) -> tuple[fx.Node, int]:
    """Return the node that made the memory which a node shows, and which of its tensors it is."""
    maker, part = maker_of(node)
    return maker, part if isinstance(maker.meta.get("val"), (list, tuple)) else 0


def _reached_by(step: Step) -> dict[fx.Node, list[fx.Node]]:
    """Return the calls whose gradients are first read beside each second run of a checkpoint."""
    found: dict[fx.Node, list[fx.Node]] = {}
    waiting: list[fx.Node] = []
    for node, key in step.keys.items():
        if key.endswith(f"@{AGAIN}"):
            waiting.append(node)
            continue
        read = [source_of(n)[0] for n in node.all_input_nodes]
        gradients = [n for n in read if n not in found and n not in waiting and _is_gradient(n)]
        if waiting and gradients:
            found.update(dict.fromkeys(waiting, gradients))
            waiting.clear()
    return found


def _is_gradient(node: fx.Node) -> bool:
    return is_backward(node) or (node.op == "placeholder" and is_tangent(node))


def _bytes(value: torch.Tensor) -> int:
    return int(value.numel()) * value.element_size()


def _parts(node: fx.Node) -> tuple[list[tuple[int, int]], int]:
    """Return the tensors of a call that are read, with their bytes, and the bytes of the others."""
    value = node.meta.get("val")
    if not isinstance(value, (list, tuple)):
        return ([(0, _bytes(value))] if isinstance(value, torch.Tensor) else []), 0
    used = {user.args[1] for user in node.users if is_view(user) and user.users}
    sizes = [_bytes(one) if isinstance(one, torch.Tensor) else 0 for one in value]
    read = [(part, size) for part, size in enumerate(sizes) if part in used]
    return read, sum(sizes) - sum(size for _, size in read)


def _behind(step: Step, written: Mapping[fx.Node, list[str]]) -> set[tuple[fx.Node, fx.Node]]:
    """Return which calls read a buffer's old value although its new one was there before them.

    A backward of batch norm names the averages and does not use them.
    """
    inputs = {one.name: node for node, one in zip(step.placeholders(), step.inputs, strict=True)}
    found = set()
    for writer, buffers in written.items():
        later: set[fx.Node] = {writer}
        for node in step.graph.graph.nodes:
            if not later.isdisjoint(node.all_input_nodes):
                later.add(node)
        for buffer in buffers:
            found |= {(node, inputs[buffer]) for node in later - {writer}}
    return found
