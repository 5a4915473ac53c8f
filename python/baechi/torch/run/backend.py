# SPDX-License-Identifier: Apache-2.0
"""Backend: what `torch.compile` hands the graphs of a placed model to.

Paper 4.3.

A graph becomes a node of autograd of our own (`graphs`). What that does not take, or AOTAutograd
cannot make, runs eagerly, as the hooks of `where` have it.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import fx, nn

from baechi.brief_errors import kind_and_line
from baechi.torch.capture.begun import SEED, begin_gradients, memory_of
from baechi.torch.program import Program
from baechi.torch.run.footprint import bytes_of_batch
from baechi.torch.run.graphs import Graph
from baechi.torch.run.placement import Placement
from baechi.torch.where.functions import ONE_BY_ONE
from baechi.torch.where.mode import Aside

_log = logging.getLogger(__name__)


@dataclass
class Frame:
    """What became of one graph of dynamo's: its programs, or why it runs eagerly."""

    programs: dict[str, Program] = field(default_factory=dict)  # "forward", "backward"
    eager: str = ""


def weakly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls a function while somebody has it; dynamo lets go of nothing."""
    is_method = isinstance(function, MethodType)
    reference = weakref.WeakMethod(function) if is_method else weakref.ref(function)

    def handed(*args: Any) -> Any:
        found = reference()
        if found is None:
            raise RuntimeError("the placement that this was compiled for is gone")
        return found(*args)

    return handed


class Backend:
    """A backend of `torch.compile` for one placed model."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.frames: list[Frame] = []
        self.uncompiled: list[str] = []  # why dynamo has no graphs of other frames
        self._last: dict[Graph, tuple[int, ...]] = {}  # of the last call, and its batch in bytes
        self._calls: dict[tuple[Graph, ...], dict[Graph, tuple[int, ...]]] = {}
        self._begins = True
        self._runs: list[Callable[..., Any]] = []  # of the graphs; dynamo has no other hold on them

    def end(self) -> None:
        """Let go of what runs the graphs: the model is not called by them any more."""
        self._runs.clear()
        for replay in self.placement.replays:
            replay.forget()

    def begin(self) -> None:
        """Say that a call of the model begins."""
        self._begins = True

    def trained(self) -> list[dict[Graph, tuple[int, ...]]]:
        """Return the graphs of each call that was unlike others, with their batches in bytes."""
        calls = {**self._calls, tuple(self._last): self._last}
        return [call for call in calls.values() if call]

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what runs a graph of dynamo's."""
        self._runs.append(self._compiled(graph, example_inputs))
        return weakly(self._runs[-1])

    def _compiled(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        frame = Frame()
        self.frames.append(frame)
        bring_together(graph, self.placement)
        frame.eager = why_views_are_eager(graph.graph)
        if frame.eager:
            begin_gradients(graph, example_inputs, SEED, eagerly=True)
            return eagerly(graph)
        try:
            return aside(self._programs(frame, graph, example_inputs))
        except Exception as error:
            frame.programs, frame.eager = {}, kind_and_line(error)
            _log.debug("a graph of %d nodes", len(graph.graph.nodes), exc_info=True)
        return eagerly(graph)

    def _programs(
        self, frame: Frame, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        made = Graph(graph, example_inputs, self.placement)
        frame.programs = made.programs
        if not made.joint.tangents:
            return made
        batch: list[tuple[int, ...]] = []

        def called(*args: Any) -> list[Any]:
            if not batch:
                batch.append(bytes_of_batch(self.placement.model, self.placement.devices, args))
            if self._begins:
                self._begins = False
                self._calls[tuple(self._last)] = self._last
                self._last = {}
            self._last[made] = batch[0]
            return made(*args)

        return called


def why_views_are_eager(graph: fx.Graph) -> str:
    """Return the call behind which a graph returns a view that is none for gradients; "" if none.

    A hook on a view changes its gradient, and so does a function with a backward of its own. Of a
    view that a graph returns AOTAutograd passes that by: it makes the view anew.
    """
    for out in graph.output_node().all_input_nodes:
        node: fx.Node | None = out
        while node is not None:
            if node.target is torch.ops.aten._to_copy.default:  # which programs leave out
                node = node.all_input_nodes[0]
            memory = memory_of(node)
            shown = [n for n in node.all_input_nodes if memory & memory_of(n)]
            if shown and isinstance(node.target, torch._ops.HigherOrderOperator):
                return f"it returns a view with a gradient of its own, by {node.name}"
            node = shown[0] if shown else None
    return ""


def eagerly(graph: fx.GraphModule) -> Callable[..., Any]:
    """Return what runs a graph of dynamo's as it is; an error leaves autograd as it was."""

    def run(*args: Any) -> Any:
        enabled = torch.is_grad_enabled()
        try:
            return graph(*args)
        except BaseException:
            torch.set_grad_enabled(enabled)
            raise

    return run


def aside(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs programs where the mode of eager calls, if it has been entered, is aside."""

    def called(*args: Any) -> Any:
        with Aside():
            return run(*args)

    return called


_MOVE = torch.ops.aten._to_copy.default


def bring_together(graph: fx.GraphModule, placement: Placement) -> None:
    """Have what no function mode sees read and run on one device of a plan.

    Those are functions with a backward of their own: what the mode brought together inside would
    leave that with gradients on other devices than those of what they were given. And assignments
    to parts of a tensor, and functions of lists, which run where the first list is. The device is
    that of the first tensor on one that each is given, or the first for weights that are away; what
    it returns goes to where tracing had it.
    """
    devices = frozenset(placement.accelerators)
    known = devices if placement.away.store is None else devices | {torch.device("cpu")}
    for node in list(graph.graph.nodes):
        if node.target is operator.setitem and (home := _device(node.args[0])) in devices:
            apart = [n for n in node.all_input_nodes if _device(n) in devices - {home}]
            _bring(graph.graph, node, apart, home)
        if node.target in ONE_BY_ONE and node.args:
            first, *others = node.args
            others = [_beside(graph.graph, node, first, other, known) for other in others]
            node.args = (first, *others)
        if node.target is not torch.ops.higher_order.autograd_function_apply:
            continue
        read = {n: device for n in node.args[2:] if (device := _device(n)) in known}
        home = next((device for device in read.values() if device in devices), None)
        if home is None:
            if not any(isinstance(n.meta["example_value"], nn.Parameter) for n in read):
                continue
            home = placement.accelerators[0]
        if {*read.values()} <= {home}:
            continue
        _bring(graph.graph, node, [n for n, device in read.items() if device != home], home)
        for body in node.args[:2]:
            _settle(graph.get_submodule(str(body.target)), home, devices)
        for part in list(node.users):
            if _device(part) in devices and _device(part) != home:
                _send_on(graph.graph, part)
    graph.recompile()


def _bring(graph: fx.Graph, node: fx.Node, apart: Iterable[fx.Node], home: Any) -> None:
    """Have a node read copies on a device of what is on others."""
    for given in apart:
        node.replace_input_with(given, _moved(graph, node, given, home))


def _moved(graph: fx.Graph, node: fx.Node, given: fx.Node, home: Any) -> fx.Node:
    """Return a copy on a device, which stands before a node."""
    with graph.inserting_before(node):
        moved = graph.call_function(_MOVE, (given,), {"device": home})
    moved.meta = dict(given.meta)
    return moved


def _beside(
    graph: fx.Graph, node: fx.Node, first: Any, other: Any, known: Set[torch.device]
) -> Any:
    """Return a list whose tensors are where those of another list are, one by one."""
    if not isinstance(other, (list, tuple)):
        return other
    pairs = [(b, _device(a), _device(b)) for a, b in zip(first, other, strict=True)]
    return [
        _moved(graph, node, b, home) if there in known and there != home else b
        for b, home, there in pairs
    ]


def _device(node: Any) -> torch.device | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value.device if isinstance(value, torch.Tensor) else None


def _settle(body: Any, home: torch.device, devices: Set[torch.device]) -> None:
    """Let a graph run on one device: moves between those of the plan go."""

    def here(value: Any) -> Any:
        return home if isinstance(value, torch.device) and value in devices else value

    for node in list(body.graph.nodes):
        if node.target is _MOVE and node.kwargs.get("device") in devices and len(node.kwargs) == 1:
            node.replace_all_uses_with(node.args[0])
            body.graph.erase_node(node)
        else:
            node.args = fx.node.map_aggregate(node.args, here)
            node.kwargs = fx.node.map_aggregate(node.kwargs, here)
    body.recompile()


def _send_on(graph: fx.Graph, part: fx.Node) -> None:
    with graph.inserting_after(part):
        sent = graph.call_function(_MOVE, (part,), {"device": _device(part)})
    sent.meta = dict(part.meta)
    part.replace_all_uses_with(sent, delete_user_cb=lambda user: user is not sent)
