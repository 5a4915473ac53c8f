# SPDX-License-Identifier: Apache-2.0
"""Joint graphs: forward and backward of a graph of dynamo's as one functional graph, marked."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi.torch.capture.begun import SEED, begin_gradients
from baechi.torch.capture.checkpoints import AGAIN, backward_of, calls_again, twins_of
from baechi.torch.capture.joint import exported
from baechi.torch.capture.keys import is_call, is_move, is_random, is_view, keeps_strides
from baechi.torch.program.instructions import HOST
from baechi.torch.run.away import KEY
from baechi.torch.run.marks import mark, promised_by_joint
from baechi.torch.run.placement import Placement
from baechi.torch.where.drawn import set_state, state_of
from baechi.torch.where.homes import plain_parts


class NotOurs(Exception):
    """A graph that has no program, with the reason."""


class _Flat(nn.Module):
    """A graph of dynamo's as a module whose weights are its arguments."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *args: Any) -> Any:
        with preserve_node_meta():  # which has the modules that calls are of
            return fx.Interpreter(self.graph).run(*args)


class Joint:
    """Forward and backward of a graph of dynamo's as one functional graph."""

    def __init__(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], placement: Placement
    ) -> None:
        # Which are all 0 in graphs of AOTAutograd.
        versions = any("_tensor_version" in str(node.target) for node in graph.graph.nodes)
        if begin_gradients(graph, example_inputs, SEED, eagerly=versions):
            raise NotOurs("a tensor that others see, or change, begins to require a gradient")
        if versions:
            raise NotOurs("it reads the versions of tensors")
        self.source = graph
        self.placement = placement
        self.module = exported(
            _Flat(graph), tuple(example_inputs), keep_inference_input_mutations=False
        )
        given = plain(example_inputs)
        self.wraps = len(given) > len(example_inputs)  # it reads tensors that wrap others
        self.homes, self.weights = placement.homes_of(given), placement.weights_in(given)
        mark(self.module.graph, placement, self.homes, self.weights)
        graph = self.module.graph
        placeholders = graph.find_nodes(op="placeholder")
        self.tangents = [n for n in placeholders if _kind(n.meta["desc"]) == "TangentAOTInput"]
        self.primals = [n for n in placeholders if n not in self.tangents]
        self.returned = _with_a_gradient_each(graph, example_inputs if self.tangents else ())
        self.descs = list(graph.output_node().meta["desc"])
        self.kinds = [_kind(desc) for desc in self.descs]
        again = calls_again(graph, lambda node: node.meta.get(KEY) in placement.again)
        run_again(graph, again, backward_of(graph, self.returned))
        self.results = list(graph.output_node().args[0])
        self.promised = promised_by_joint(self.module, placement, self.returned)
        self.shown: dict[int, list[fx.Node]] = {}  # outputs that show inputs or others: the views
        self._check(given)

    def _check(self, given: Sequence[Any]) -> None:
        """Raise NotOurs where it wants more than is here; note outputs that show others."""
        known = {"PlainAOTOutput", "InputMutationAOTOutput", "NoneType"}
        kinds = self.kinds[: self.returned]
        if unknown := next((kind for kind in kinds if kind not in known), None):
            raise NotOurs(f"it has an output of kind {unknown}")
        if len(self.primals) != len(given):
            raise NotOurs("its inputs share memory")
        # The first output of each memory, and of its copies that no program makes.
        seen: dict[tuple[fx.Node, torch.device], fx.Node] = {}
        outputs = [
            (i, node)
            for i, node in enumerate(self.results[: self.returned])
            if isinstance(node, fx.Node)
            and isinstance(node.meta.get("val"), torch.Tensor)
            and kinds[i] != "InputMutationAOTOutput"  # which is copied into that input
        ]
        same = self._changed_inputs()
        self.shown.update((i, [primal]) for i, primal in same.items())
        outputs = [(i, node) for i, node in outputs if i not in same]
        for i, node in sorted(outputs, key=lambda output: self._is_part(output[1])):
            base, device = self._memory(node), node.meta["val"].device
            if base.op == "placeholder" and base.meta["val"].device == device:
                self.shown[i] = _views(node, base)
            elif (base, device) in seen:
                first = seen[base, device]
                of = first if self._is_part(first) else base
                self.shown[i] = [*_views(node, of)[:-1], first]
            else:
                seen[base, device] = node

    def _changed_inputs(self) -> dict[int, fx.Node]:
        """Return which outputs are inputs that were changed in place, as `x += 1` leaves one."""
        graph = self.source.graph
        given = {_whole(node): i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
        results = graph.output_node().args[0]
        plain = [i for i in range(self.returned) if self.kinds[i] == "PlainAOTOutput"]
        pairs = [(i, given.get(_whole(results[self.descs[i].idx]))) for i in plain]
        return {i: self.primals[at] for i, at in pairs if at in self.mutated and not self.wraps}

    def _memory(self, node: fx.Node) -> fx.Node:
        """Return the node that made a value's memory: of a call's several results, the one."""
        while node.op == "call_function" and (is_view(node) or self._is_dropped(node)):
            source = node.all_input_nodes[0]
            if node.target is operator.getitem and is_call(source):
                break
            node = source
        return node

    def _is_part(self, node: fx.Node) -> bool:
        """Tell whether a value is a view of its memory, which others cannot be shown by."""
        while self._is_dropped(node):
            node = node.all_input_nodes[0]
        return node is not self._memory(node)

    def _is_dropped(self, node: fx.Node) -> bool:
        """Tell whether a node is a move between devices of the plan, which programs leave out."""
        if not is_move(node) or not keeps_strides(node):
            return False
        values = (node.meta["val"], node.all_input_nodes[0].meta["val"])
        return all(self.placement.index_of(value.device) != HOST for value in values)

    def shown_among(self, saved: Sequence[fx.Node], outputs: Sequence[int]) -> dict[int, int]:
        """Return which saved values show an argument or an output: its place among them all."""
        named = {node.name: node for node in self.module.graph.nodes}
        results = [self.results[i] for i in outputs]  # a size that never varies is a number
        nodes = [self._memory(one) if isinstance(one, fx.Node) else None for one in results]
        others = [*self.primals, *nodes]
        place = {node: i for i, node in reversed(list(enumerate(others)))}
        memories = [self._memory(named[n.name]) if n.name in named else n for n in saved]
        return {i: place[memory] for i, memory in enumerate(memories) if memory in place}

    @property
    def mutated(self) -> dict[int, int]:
        """The position of the new value of each input that is changed in place, by its own."""
        return {
            desc.mutated_input.idx: i
            for i, desc in enumerate(self.descs)
            if _kind(desc) == "InputMutationAOTOutput"
        }

    @property
    def tangent_of(self) -> dict[int, int]:
        """The position of each plain output's tangent, by that of the output."""
        plain = [i for i, kind in enumerate(self.kinds) if kind == "PlainAOTOutput"]
        found = {}
        for position, node in enumerate(self.tangents):
            output = node.meta["desc"].output
            if _kind(output) != "PlainAOTOutput":
                raise NotOurs("a tensor that it changes in place is trained")
            found[plain[output.idx] if output.idx < len(plain) else output.idx] = position
        return found


def plain(values: Sequence[Any]) -> list[Any]:
    """Return values with what tensors wrap in their places, which graphs are given."""
    found = [plain_parts(v) if isinstance(v, torch.Tensor) else (v,) for v in values]
    return [part for parts in found for part in parts]


def _with_a_gradient_each(graph: fx.Graph, given: Sequence[Any]) -> int:
    """Have a joint graph give a gradient of each of its primals; return how many outputs precede.

    AOTAutograd has one of each tensor that it was given, of whatever parts this consists.
    """
    output = graph.output_node()
    found = list(zip(output.args[0], output.meta["desc"], strict=True))
    returned = len(found) - len(given)
    parts = [
        [pair, *[(None, None)] * (len(plain([value])) - 1)]
        for value, pair in zip(given, found[returned:], strict=True)
    ]
    found[returned:] = [pair for pairs in parts for pair in pairs]
    output.args = ([node for node, _ in found],)
    output.meta["desc"] = [desc for _, desc in found]
    return returned


def _whole(node: Any) -> Any:
    """Return what two nodes of dynamo's have in common that are one tensor."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return node
    if is_traceable_wrapper_subclass(value):
        return node
    shape = f"{value.dtype} {value.shape} {value.stride()} {value.storage_offset()}"
    return value.untyped_storage()._cdata, shape


def _views(node: fx.Node, base: fx.Node) -> list[fx.Node]:
    """Return the views by which a node shows an input or an output, the last one first."""
    found = [node]
    while found[-1] is not base:
        read = found[-1].all_input_nodes
        if len(read) != 1:
            raise NotOurs("it returns a view of an input, or of what it returns, too")
        found.append(read[0])
    return found


def _kind(desc: Any) -> str:
    return type(desc).__name__


_HERE = torch.device("cpu")  # stands for the device of a call
_STATE = "a generator's state"  # the value of a node that is one


def run_again(
    graph: fx.Graph, again: Collection[fx.Node], backward: Collection[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Have the nodes of the backward read second runs of some calls; return these by the first.

    So nothing of these calls is kept for the backward. Random ones keep their generator's state for
    it, and leave the generator as it was. Beyond the paper.
    """
    twins = twins_of(graph, again, backward)
    for node, twin in twins.items():
        if KEY in node.meta:
            twin.meta[KEY] = f"{node.meta[KEY]}@{AGAIN}"
        if is_random(node):
            _draw_alike(graph, node, twin)
    return twins


def _draw_alike(graph: fx.Graph, node: fx.Node, twin: fx.Node) -> None:
    """Have a random call give its generator's state, too, and its second run begin with that."""
    with graph.inserting_after(node):
        state = graph.call_function(operator.getitem, (node, 1))
        result = graph.call_function(operator.getitem, (node, 0))
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in (state, result))
    result.meta = {name: value for name, value in node.meta.items() if name != KEY}
    state.meta["val"] = _STATE
    node.meta["val"] = node.meta["val"], _STATE
    node.target, node.args = SaveAndRun(node.target), (_HERE, *node.args)
    twin.target, twin.args = RunFrom(twin.target), (_HERE, state, *twin.args)


@dataclass(frozen=True, eq=False)
class SaveAndRun:
    """A random call that returns its result and its generator's state before."""

    target: Any
    draws = True
    __name__ = "save_and_run"  # what graphs call it

    def __call__(self, device: torch.device, /, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        state = state_of(device)
        return self.target(*args, **kwargs), state


@dataclass(frozen=True, eq=False)
class RunFrom:
    """A random call that is given its generator's state, and puts back the generator's own."""

    target: Any
    __name__ = "run_from"

    def __call__(
        self, device: torch.device, state: torch.Tensor, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run it."""
        now = state_of(device)
        set_state(device, state)
        try:
            return self.target(*args, **kwargs)
        finally:
            set_state(device, now)
