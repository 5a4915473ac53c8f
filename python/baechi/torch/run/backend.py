# SPDX-License-Identifier: Apache-2.0
"""Backend: what `torch.compile` hands the graphs of a placed model to.

Paper 4.3.

A graph that is trained becomes a node of autograd of our own (`joint`). What that does not take
has AOTAutograd's runtime around the same programs; what AOTAutograd cannot make runs eagerly, as
the hooks of `where` have it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi.brief_errors import kind_and_line
from baechi.torch.capture.keys import is_random
from baechi.torch.program import Program
from baechi.torch.run import executor
from baechi.torch.run.footprint import beside, bytes_on
from baechi.torch.run.functions import bring_together
from baechi.torch.run.graphs import Graph
from baechi.torch.run.marks import mark, program_of, promised_by, promised_by_joint
from baechi.torch.run.partition import backward_of, calls_again, partition
from baechi.torch.run.placement import Placement
from baechi.torch.run.regions import in_regions
from baechi.torch.run.second_runs import run_again
from baechi.torch.where.mode import Aside

_log = logging.getLogger(__name__)

# What AOTAutograd answers wrongly in silence: the versions of tensors, which are all 0 there.
_WRONG_IN_GRAPHS = ("_tensor_version", "_unsafe_set_version_counter")


@dataclass
class Frame:
    """What became of one graph of dynamo's: its programs, or why it runs eagerly."""

    calls: int = 0  # nodes of dynamo's graph
    programs: dict[str, Program] = field(default_factory=dict)  # "forward", "backward"
    eager: str = ""
    theirs: str = ""  # why AOTAutograd's own runtime is around the programs


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
        self._last: dict[Graph, tuple[int, ...]] = {}  # of the last call, and its batch in bytes
        self._calls: dict[tuple[Graph, ...], dict[Graph, tuple[int, ...]]] = {}
        self._begins = True
        self._runs: list[Callable[..., Any]] = []  # of the graphs; dynamo has no other hold on them

    def end(self) -> None:
        """Let go of what runs the graphs: the model is not called by them any more."""
        self._runs.clear()

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
        frame = Frame(len(graph.graph.nodes))
        self.frames.append(frame)
        asked = " ".join(str(node.target) for node in graph.graph.nodes)
        if any(name in asked for name in _WRONG_IN_GRAPHS):
            frame.eager = "it reads the versions of tensors"
            return eagerly(graph)
        bring_together(graph, frozenset(self.placement.accelerators))
        if why := why_views_are_eager(graph.graph):
            frame.eager = why
            return eagerly(graph)
        for make in (self._ours, self._theirs):
            try:
                return aside(make(frame, graph, example_inputs))
            except Exception as error:
                frame.programs, said = {}, kind_and_line(error)
                frame.theirs, frame.eager = frame.eager or said, said
                _log.debug("a graph of %d nodes: %s", frame.calls, make.__name__, exc_info=True)
        return eagerly(graph)

    def _ours(
        self, frame: Frame, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        made = Graph(graph, example_inputs, self.placement)
        frame.programs, frame.eager = made.programs, ""
        batch: list[tuple[int, ...]] = []

        def called(*args: Any) -> list[Any]:
            if not batch:
                tensors = beside(self.placement.model, args)
                batch.append(bytes_on(self.placement.devices, tensors))
            if self._begins:
                self._begins = False
                self._calls[tuple(self._last)] = self._last
                self._last = {}
            self._last[made] = batch[0]
            return made(*args)

        return called

    def _theirs(
        self, frame: Frame, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        lowering = _Lowering(self.placement, frame)
        compiled = aot_autograd(
            fw_compiler=lowering.forward,
            bw_compiler=lowering.backward,
            inference_compiler=lowering.inference,
            partition_fn=lowering.partition,
            keep_inference_input_mutations=True,
        )
        found: Callable[..., Any] = compiled(graph, example_inputs)
        frame.eager = ""
        return found


class _Lowering:
    """Makes the programs of one graph of dynamo's for AOTAutograd's runtime."""

    def __init__(self, placement: Placement, frame: Frame) -> None:
        self.placement = placement
        self.frame = frame
        self.returned = 0  # of the forward's outputs, those that are not saved for the backward
        self.gradients: list[int | None] = []  # the devices that they come back on

    def partition(
        self,
        joint: fx.GraphModule,
        inputs: Sequence[Any],  # noqa: ARG002
        *,
        num_fwd_outputs: int,
        **more: Any,  # noqa: ARG002
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Give every call of the joint graph its key and device, and cut it in two."""
        self.returned = num_fwd_outputs
        mark(joint.graph, self.placement)
        promised = promised_by_joint(joint, self.placement, num_fwd_outputs)
        self.gradients = promised[num_fwd_outputs:]
        again = calls_again(joint.graph, self.placement.again)
        kept = [node for node in again if not is_random(node)]  # states are no activations
        run_again(joint.graph, kept, backward_of(joint.graph, num_fwd_outputs))
        forward, backward, _ = partition(joint, num_fwd_outputs)
        return forward, backward

    def forward(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the program of a forward whose backward comes later."""
        promised = promised_by(graph, self.placement, self.returned)
        return self._compiled("forward", graph, promised)

    def backward(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the program of a backward."""
        return self._compiled("backward", graph, self.gradients)

    def inference(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the program of a forward without a backward."""
        mark(graph.graph, self.placement)
        return self._compiled("forward", graph, promised_by(graph, self.placement))

    def _compiled(
        self, name: str, graph: fx.GraphModule, promised: Sequence[int | None]
    ) -> Callable[..., Any]:
        program = program_of(graph, self.placement, promised)
        if self.placement.compile:
            program = in_regions(program)
        self.frame.programs[name] = program
        run = executor.compile(program, self.placement.devices)

        def boxed(inputs: list[Any]) -> list[Any]:  # AOTAutograd marks what takes a list
            return run(inputs)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed


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
            memory = _memory(node)
            shown = [n for n in node.all_input_nodes if memory & _memory(n)]
            if shown and isinstance(node.target, torch._ops.HigherOrderOperator):
                return f"it returns a view with a gradient of its own, by {node.name}"
            node = shown[0] if shown else None
    return ""


def _memory(node: fx.Node) -> set[int]:
    values = pytree.tree_leaves(node.meta.get("example_value"))
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.layout == torch.strided]
    return {t.untyped_storage()._cdata for t in tensors if not is_traceable_wrapper_subclass(t)}


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
