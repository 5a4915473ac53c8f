# SPDX-License-Identifier: Apache-2.0
"""What a training step is once it is captured: one flat graph (Paper 4.1)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from baechi._core import write_bytes
from baechi.tensorflow import _private
from baechi.tensorflow.pins import asked_devices
from baechi.tensorflow.tracing import batch_size_of

_LOOPS = frozenset(["While", "StatelessWhile", "_While"])


@dataclass
class Captured:
    """A training step as one flat graph.

    Attributes:
        graph_def: Its GraphDef with shapes, serialized: what `baechi place model.pb` takes.
        graph: The graph of TensorFlow; its operations are the operators.
        function: What the assigner makes run as planned; None for a TensorFlow 1 graph.
        variables: The variable behind each operator that stands for one.
        loops: The operators that are whole loops.
        batch: The size that stands for what shapes leave open.
        shapes: Those of the arguments' tensors in an example, if there was one.
        model: The Keras model whose training step it is, if it is one's.
        signature: The shapes and types of that model's batches.
        asked: The devices that the program asks for itself, by operator; they are kept.

    """

    graph_def: bytes
    graph: Any
    function: Any = None
    variables: dict[str, Any] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)
    batch: int | None = None
    shapes: list[Any] | None = None
    model: Any = None
    signature: Any = None
    asked: dict[str, str] = field(default_factory=dict)
    values: tuple[Any, Any] | None = None  # the arguments it was captured with
    owner: Any = None  # what must live as long: a loaded SavedModel

    @property
    def names(self) -> list[str]:
        """The operators' names, in the order of the graph."""
        return [operation.name for operation in self.graph.get_operations()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the GraphDef, for `baechi place`."""
        write_bytes(path, self.graph_def)


def captured_function(
    function: Any, batch: int | None = None, shapes: list[Any] | None = None
) -> Captured:
    """Capture a ConcreteFunction that `trace` returned.

    Args:
        function: The function.
        batch: The size that stands for what shapes leave open.
        shapes: Those of the tensors that a call gives it, if there are any to go by.

    """
    graph = function.graph
    by_handle = {id(_private.handle_of(v)): v for v in graph.variables}
    outer = function.captured_inputs
    variables = {
        inner.op.name: by_handle[id(handle)]
        for handle, inner in zip(outer, graph.inputs[len(graph.inputs) - len(outer) :], strict=True)
        if id(handle) in by_handle
    }
    size = batch or batch_size_of(shapes) or batch_size_of(function.structured_input_signature)
    return finished(Captured(b"", graph, function, variables, batch=size, shapes=shapes))


def finished(captured: Captured) -> Captured:
    """Return what was captured with its GraphDef, and say what was found in it."""
    operations = captured.graph.get_operations()
    captured.loops = [o.name for o in operations if o.type in _LOOPS]
    if captured.loops:
        # A registry of its own: Python would show a model that is captured again no warning.
        warnings.warn_explicit(
            f"{_some(captured.loops)} placed as one operator each, and estimates do not count the "
            "work of their steps: measure it, or unroll loops to place their steps, with "
            "LSTM(unroll=True) or GRU(unroll=True) in Keras, or a Python loop over range() instead "
            "of tf.range() or tf.while_loop",
            UserWarning,
            __file__,
            1,
            registry={},
        )
    captured.asked = asked_devices(captured.graph)
    definition = captured.graph.as_graph_def(add_shapes=True)
    captured.graph_def = definition.SerializeToString()
    return captured


def _some(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - 3} more loops are" if len(quoted) > 3 else ""
    return ", ".join(quoted[:3]) + (more or (" is" if len(quoted) == 1 else " are"))
