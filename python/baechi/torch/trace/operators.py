# SPDX-License-Identifier: Apache-2.0
"""The ML graph of single aten calls: an exported model's own operators (Paper 3.2, 4.1).

The exported graph is run call by call under the recorder of eager models, so operators, their
backward, what it keeps, and the memory over a step are found as they are for modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.base.nested import tensors_in
from baechi.torch.base.repeats import sent_bytes
from baechi.torch.base.runs_again import Operation
from baechi.torch.base.second_runs import run_block
from baechi.torch.record.interception import Interceptor
from baechi.torch.record.recomputed import RecordedRuns
from baechi.torch.record.recorded_step import Capture, Op, rounded
from baechi.torch.record.recorder import Recorder, recorder_of
from baechi.torch.trace.blocks import Blocks
from baechi.torch.trace.call_structure import structure_of
from baechi.torch.trace.exported import Exported
from baechi.torch.trace.graph import Node, NotExportedError
from baechi.torch.trace.interpreted import interpreted
from baechi.torch.trace.segments import Segment
from baechi.torch.weights.homes import weight_of


def kind_of(node: Node) -> str:
    """Return what a call is, without namespace and overload."""
    name = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", "call")
    return str(name)


def run_graph(
    model: nn.Module, exported: Exported, args: Any, kwargs: Any, call: Any, **how: Any
) -> Any:
    """Run the graph in the place of the model's code, where the weights are.

    Args:
        model: Whose weights are taken.
        exported: Its graph.
        args: Of the call.
        kwargs: Of the call.
        call: Runs a call of the graph.
        how: More for `interpreted`.

    """
    inputs: list[torch.Tensor] = []
    try:
        fits = structure_of((args, kwargs), inputs) == exported.structure
    except NotExportedError:
        fits = False
    if not (fits and exported.accepts(inputs)):
        raise InputError(
            "the graph was exported for other arguments than it is run with: give example_inputs "
            "like these"
        )
    nodes = exported.graph.nodes
    weights = {n.target: weight_of(model, n.target) for n in nodes if n.kind == "weight"}
    device = next((t.device for t in (*weights.values(), *inputs)), torch.device("cpu"))
    return exported.rebuild(interpreted(exported.graph, weights, device, inputs, call, **how))


class OperatorRecorder(Recorder):
    """Records a step of a model with the calls of its graph as operators."""

    def __init__(
        self,
        model: nn.Module,
        exported: Exported,
        order: Sequence[int] | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__(model, lambda _path, _module: False)
        self._exported = exported
        self._order = order
        self._blocks = blocks or Blocks()
        self._second = _RunsOfBlocks(self)
        self._sources: dict[int, Any] = {}  # what will make values again

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the graph in the place of the model's code."""
        del forward
        self.entered(self.root, args, kwargs)
        self._state.paused = True  # every call is an operator already
        try:
            how: dict[str, Any] = {"order": self._order, "made": self._value}
            how |= {"blocks": self._blocks, "block": self._run_block}
            return run_graph(self.model, self._exported, args, kwargs, self._call, **how)
        finally:
            self._state.paused = False
            self._sources.clear()

    def _run_block(
        self, segment: Segment, inside: Callable[..., Any], taken: list[Any]
    ) -> Sequence[Any]:
        """Run calls as one, and again in the backward where that is planned."""
        again, second = segment.index in self._blocks.repeated, self._second
        sources = [self._sources.get(read) for read in segment.reads]
        first = len(self.ops)
        operation = Operation(self._exported.graph.nodes[segment.nodes[0]].key, inside, None)
        made: Sequence[Any]
        made, outputs = run_block(second, operation, taken, sources, None, again=again)
        second.note_held(self.ops[first:])
        if again:
            self._sources.update(zip(segment.makes, outputs, strict=True))
        return made

    def note_kept(self, tensor: torch.Tensor, kept: torch.Tensor, ops: Sequence[Op]) -> None:
        """Note that operators keep a tensor that they read, for their second run."""
        if tensor in self._weights or not ops:
            return
        number = self.tensor_of(tensor, None)
        op = next((op for op in ops if number in op.reads), ops[0])
        if number not in op.saved:
            op.saved.append(number)
        self._saved.watched(op, number, kept)

    def _value(self, node: Node, value: Any) -> None:
        """Note which storages a node's value is made of."""
        if self.again.handing:
            return  # it is known of the first run
        parts = self.values[node.index] = []
        for tensor in tensors_in(value):
            known = None if tensor in self._weights else self.tensor_of(tensor, None)
            parts.append((known, rounded(sent_bytes(tensor))))

    def _call(
        self, node: Node, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if self.again.handing:
            return self.again.run(node.key, target, args, kwargs)
        with self._running(Op(node.key, kind_of(node), None), args, kwargs):
            return self._finish(target(*args, **kwargs), args, kwargs)


class _RunsOfBlocks(RecordedRuns):
    """Records second runs of blocks; the calls in them are the operators."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__(recorder)
        self._recorder = recorder
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.hold = self._held_for_later

    def compute_again(
        self,
        key: str,  # noqa: ARG002
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        _: Any,
    ) -> Any:
        """Run the calls of a block again."""
        return call(*args, **kwargs)

    def _held_for_later(self, tensor: torch.Tensor) -> torch.Tensor:
        self._held.append((tensor, tensor.data))
        return self._held[-1][1]

    def note_held(self, ops: Sequence[Op]) -> None:
        """Note what a block holds for its second run; `ops`: its calls."""
        for tensor, kept in self._held:
            self._recorder.note_kept(tensor, kept, ops)
        self._held.clear()


@dataclass(frozen=True)
class InOrder:
    """A graph whose calls are recorded in another order, or run again in the backward."""

    exported: Exported
    order: Sequence[int]  # of the nodes
    blocks: Blocks = field(default_factory=Blocks)  # that run as one


@recorder_of.register
def _recorder_of_graph(units: Exported, model: nn.Module) -> Recorder:
    return OperatorRecorder(model, units)


@recorder_of.register
def _recorder_in_order(units: InOrder, model: nn.Module) -> Recorder:
    return OperatorRecorder(model, units.exported, units.order, units.blocks)


class OperatorWatcher(Interceptor):
    """Runs the graph in the place of the model's code and shows what each call makes."""

    def __init__(
        self, model: nn.Module, exported: Exported, watch: Callable[[str, Any], None]
    ) -> None:
        super().__init__(model, lambda _path, _module: False)
        self._exported = exported
        self._watch = watch

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the graph."""
        del forward
        self._state.paused = True
        try:
            return run_graph(self.model, self._exported, args, kwargs, self._call)
        finally:
            self._state.paused = False

    def _call(
        self, node: Node, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        out = target(*args, **kwargs)
        self._watch(node.key, out)
        return out


def kept_together(exported: Exported, captured: Capture) -> list[list[str]]:
    """Return the operators that use the weights of one module call: it may also run as a whole."""
    owner = {node.key: node.owner for node in exported.graph.nodes}
    groups: dict[str, list[str]] = {}
    for op in captured.ops:
        of = owner.get(op.key)
        if op.weights and of is not None:
            groups.setdefault(of, []).append(op.key)
    return [keys for keys in groups.values() if len(keys) > 1]


def module_devices(
    exported: Exported, captured: Capture, device_of: Mapping[str, str]
) -> dict[str, str]:
    """Return the devices of module calls and functions that follow from those of single calls.

    A module with weights is where its weights are, another where most of its calls are.
    """
    nodes = exported.graph.nodes
    votes: dict[str, Counter[str]] = {}
    held: dict[str, str] = {}
    for node in nodes:
        device = device_of.get(node.key)
        if node.owner is None or device is None:
            continue
        votes.setdefault(node.owner, Counter())[device] += 1
        if any(nodes[read].kind == "weight" for read in node.reads):
            held.setdefault(node.owner, device)
    return {
        op.key: held.get(op.key) or votes[op.key].most_common(1)[0][0]
        for op in captured.ops
        if op.key in votes
    }
