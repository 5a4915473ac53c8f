# SPDX-License-Identifier: Apache-2.0
"""Graph Generator of TensorFlow: the ML graph of a training step (Paper 4.1).

A step comes from a function, a SavedModel or a TensorFlow 1 graph; what is captured is one flat
graph whose operators are those of the ML graph, name by name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from baechi._core import Graph, InputError
from baechi.tensorflow import _private
from baechi.tensorflow.inlining import calls_in
from baechi.tensorflow.pins import asked_devices
from baechi.tensorflow.rewriting import barriers_in, flattened, split_barriers
from baechi.tensorflow.tracing import batch_size_of, shapes_given, trace

if TYPE_CHECKING:
    from baechi._core import Profile

_LOOPS = frozenset(["While", "StatelessWhile", "_While"])
_TF1_VARIABLES = frozenset(["Variable", "VariableV2", "VarHandleOp"])


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
    owner: Any = None  # what must live as long: a loaded SavedModel

    @property
    def names(self) -> list[str]:
        """The operators' names, in the order of the graph."""
        return [operation.name for operation in self.graph.get_operations()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the GraphDef, for `baechi place`."""
        Path(path).write_bytes(self.graph_def)


def capture(
    target: Any,
    *inputs: Any,
    fetches: Any = None,
    share_scalars: bool = False,
    batch: int | None = None,
    **keywords: Any,
) -> Captured:
    """Capture a training step.

    Nested functions are inlined, and Keras' barrier of all gradients is split. Loops stay one
    operator each, with a warning.

    Args:
        target: A Python function, a tf.function, a ConcreteFunction (a SavedModel's signature, for
            one), or a tf.Graph or MetaGraphDef of TensorFlow 1.
        inputs: Example arguments or TensorSpecs of a function that has not been traced.
        fetches: What a step of a TensorFlow 1 graph runs, as tensors and operations, or their
            names. Operators that are not needed for it, such as those that save the weights, then
            move nothing.
        share_scalars: Make equal reads of variables, and equal scalars, one operator: fewer
            transfers of learning rates and step counts, for a few seconds with a large graph.
        batch: The size that stands for what shapes leave open; by default the first size of the
            first input.
        keywords: Arguments by name.

    Raises:
        InputError: The target cannot be captured; the message says what to do.

    """
    if isinstance(target, tf.compat.v1.MetaGraphDef):
        target = _imported(target)
    if isinstance(target, tf.Graph):
        if inputs or keywords:
            raise InputError("a graph has its inputs: give the values to the profiler")
        return _captured_graph(target, fetches, batch)
    if fetches is not None:
        raise InputError("fetches are for a TensorFlow 1 graph: a function has its results")
    traced = flattened(trace(target, *inputs, **keywords), share=share_scalars)
    shapes = shapes_given(traced, inputs, keywords)
    return captured_function(traced, batch or batch_size_of((inputs, keywords)), shapes)


def capture_saved_model(
    path: str | os.PathLike[str], signature: str = "train", **options: Any
) -> Captured:
    """Capture a training step that was saved as a signature of a SavedModel.

    A SavedModel whose variables were moved cannot be saved again: load it anew for that.
    """
    loaded = tf.saved_model.load(os.fspath(path))
    if signature not in loaded.signatures:
        known = ", ".join(sorted(loaded.signatures)) or "none"
        raise InputError(f"{path} has no signature {signature!r}: it has {known}")
    captured = capture(loaded.signatures[signature], **options)
    captured.owner = loaded
    return captured


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
    return _finished(Captured(b"", graph, function, variables, batch=size, shapes=shapes))


def _captured_graph(graph: Any, fetches: Any, batch: int | None) -> Captured:
    definition = graph.as_graph_def()
    if barriers := barriers_in(definition):
        warnings.warn(
            f"{barriers[0]!r} passes all gradients on as one operator, so each goes to one device "
            "and back: split it with baechi.tensorflow.without_barriers(graph)",
            stacklevel=3,
        )
    if calls := calls_in(definition):
        warnings.warn(
            f"{calls[0]!r} calls a function, which is placed as one operator: build the graph with "
            "tf.config.run_functions_eagerly(True) to place what is in it",
            stacklevel=3,
        )
    with graph.as_default():
        found = {v.op.name: v for v in tf.compat.v1.global_variables()}
    variables = {
        operation.name: found.get(operation.name)
        for operation in graph.get_operations()
        if operation.type in _TF1_VARIABLES
    }
    captured = _finished(Captured(b"", graph, None, variables, batch=batch))
    if fetches is not None:
        captured.graph_def = _only_needed(graph, tf.nest.flatten(fetches))
    return captured


def _only_needed(graph: Any, fetches: list[Any]) -> bytes:
    """Return the GraphDef with no outputs to speak of where the fetches need no operation."""
    elements = [graph.as_graph_element(fetch) for fetch in fetches]
    pending = [getattr(element, "op", element) for element in elements]
    needed = {operation.name for operation in pending}
    while pending:
        operation = pending.pop()
        for source in [*(t.op for t in operation.inputs), *operation.control_inputs]:
            if source.name not in needed:
                needed.add(source.name)
                pending.append(source)
    definition = graph.as_graph_def(add_shapes=True)
    for node in definition.node:
        if node.name not in needed and "_output_shapes" in node.attr:
            for shape in node.attr["_output_shapes"].list.shape:
                shape.CopyFrom(tf.TensorShape([0]).as_proto())
    return bytes(definition.SerializeToString())


def _imported(meta_graph: Any) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        _private.import_meta_graph(meta_graph)
    return graph


def without_barriers(graph: Any) -> Any:
    """Return a TensorFlow 1 graph in which each gradient passes Keras' barrier on its own."""
    definition, _ = split_barriers(graph.as_graph_def())
    with graph.as_default():
        meta_graph = tf.compat.v1.train.export_meta_graph(graph_def=definition, graph=graph)
    return _imported(meta_graph)


def _finished(captured: Captured) -> Captured:
    operations = captured.graph.get_operations()
    captured.loops = [o.name for o in operations if o.type in _LOOPS]
    if captured.loops:
        warnings.warn(
            f"{_some(captured.loops)} placed as one operator each: unroll loops to place their "
            "steps, with LSTM(unroll=True) or GRU(unroll=True) in Keras, or a Python loop over "
            "range() instead of tf.range() or tf.while_loop",
            stacklevel=3,
        )
    captured.asked = asked_devices(captured.graph)
    definition = captured.graph.as_graph_def(add_shapes=True)
    captured.graph_def = definition.SerializeToString()
    return captured


def _some(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - 3} more loops are" if len(quoted) > 3 else ""
    return ", ".join(quoted[:3]) + (more or (" is" if len(quoted) == 1 else " are"))


def graph_of(
    captured: Captured,
    costs: str | os.PathLike[str] | Profile | list[str | os.PathLike[str] | Profile],
    batch: int | None = None,
) -> Graph:
    """Return the ML graph; its operators have the names of the operations.

    Args:
        captured: The training step.
        costs: Presets by device kind such as "gpu=rtx3090", a Profile, the path of one, or several
            of these.
        batch: The size that stands for what shapes leave open, if not the captured one. Not needed
            with a profile, which knows all sizes.

    """
    size = batch or captured.batch
    definition = captured.graph_def
    if captured.function is not None and any(_is_open(t) for t in captured.graph.inputs):
        shapes = _argument_shapes(captured, size)
        definition = _private.with_sizes(captured.graph, shapes).SerializeToString()
    return Graph.from_graph_def(definition, costs=costs, batch=size)


def _is_open(tensor: Any) -> bool:
    return not tensor.shape.is_fully_defined()


def _argument_shapes(captured: Captured, size: int | None) -> list[Any]:
    """Return the shapes of all inputs of a graph: the example's, else `size` for what is open.

    The first size of the example is that of a batch, for which `size` stands in every argument.
    """
    shapes = [tensor.shape for tensor in captured.graph.inputs]
    given = captured.shapes or []
    batch = next((one[0] for one in given if one.rank), None)
    for index, shape in enumerate(shapes):
        if shape.is_fully_defined():
            continue
        known = given[index] if index < len(given) else tf.TensorShape(None)
        if shape.rank is None:
            shapes[index] = known
            continue
        sizes = known.as_list() if known.rank is not None else [None] * shape.rank
        if sizes and sizes[0] == batch:
            sizes[0] = None
        filled = [
            two or size if one is None else one for one, two in zip(shape, sizes, strict=True)
        ]
        shapes[index] = tf.TensorShape(filled)
    return shapes
