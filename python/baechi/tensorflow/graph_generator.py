# SPDX-License-Identifier: Apache-2.0
"""Graph Generator of TensorFlow: the ML graph of a training step (Paper 4.1).

A step comes from a function, a SavedModel or a TensorFlow 1 graph; what is captured is one flat
graph whose operators are those of the ML graph, name by name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from baechi._core import Graph, InputError
from baechi.brief_errors import briefly
from baechi.tensorflow import _private
from baechi.tensorflow.captured import Captured, captured_function, finished
from baechi.tensorflow.feeding import feed_of
from baechi.tensorflow.inlining import calls_in
from baechi.tensorflow.keras_model import capture_model
from baechi.tensorflow.request import check_batch, check_class_weight, check_target
from baechi.tensorflow.rewriting import barriers_in, flattened, split_barriers
from baechi.tensorflow.tracing import batch_size_of, shapes_given, trace

if TYPE_CHECKING:
    from baechi._core import Profile

_TF1_VARIABLES = frozenset(["Variable", "VariableV2", "VarHandleOp"])


@briefly
def capture(
    target: Any,
    *inputs: Any,
    fetches: Any = None,
    signature: str = "train",
    class_weight: Mapping[int, float] | None = None,
    share_scalars: bool = False,
    batch: int | None = None,
    dynamic_batch: bool = True,
    **keywords: Any,
) -> Captured:
    """Capture a training step.

    The functions that it calls are inlined, and Keras' barrier of all gradients is split. Loops
    stay one operator each, with a warning.

    Args:
        target: A compiled Keras model, a Python function, a tf.function, a ConcreteFunction, the
            path of a SavedModel, or a tf.Graph or MetaGraphDef of TensorFlow 1.
        inputs: For a model: x and y (and sample weights) of a batch, or the dataset, PyDataset or
            generator that fit gets. For a function: its arguments. Tensors, arrays or TensorSpecs.
        fetches: What a step of a TensorFlow 1 graph runs, as tensors and operations, or their
            names. Operators that are not needed for it, such as those that save the weights, then
            move nothing.
        signature: The signature of a SavedModel that is the training step.
        class_weight: What a model's fit gets as such.
        share_scalars: Make equal reads of variables, and equal scalars, one operator: fewer
            transfers of learning rates and step counts, for a few seconds with a large graph.
        batch: The size that stands for what shapes leave open; by default the first size of the
            first input.
        dynamic_batch: Capture a model with an open batch size, so that a last batch may be smaller.
        keywords: Arguments of a function by name.

    Raises:
        InputError: The target cannot be captured; the message says what to do.

    """
    check_target(target)
    check_batch(batch)
    check_class_weight(class_weight)
    if isinstance(target, keras.Model):
        feed = feed_of(inputs, class_weight)
        return capture_model(target, feed, batch=batch, dynamic_batch=dynamic_batch)
    if class_weight is not None:
        raise InputError(
            "class_weight is what fit of a Keras model takes: leave it out for a function or a "
            "graph, and weigh the loss in the step itself"
        )
    if isinstance(target, tf.compat.v1.MetaGraphDef):
        target = _imported(target)
    if isinstance(target, tf.Graph):
        if inputs or keywords:
            raise InputError(
                "a TensorFlow 1 graph takes no inputs here: what it is fed is said when it is "
                "measured, measure(captured, fetches=..., feed_dict=...)"
            )
        return _captured_graph(target, fetches, batch)
    if fetches is not None:
        raise InputError(
            "fetches are for a TensorFlow 1 graph: leave them out for a function, whose results "
            "are what it returns"
        )
    owner = None
    if isinstance(target, str | os.PathLike):
        owner, target = _loaded(target, signature)
    traced = flattened(trace(target, *inputs, **keywords), share=share_scalars)
    shapes = shapes_given(traced, inputs, keywords)
    captured = captured_function(traced, batch or batch_size_of((inputs, keywords)), shapes)
    captured.owner = owner
    captured.values = (inputs, keywords)
    return captured


def _loaded(path: str | os.PathLike[str], signature: str) -> tuple[Any, Any]:
    """Load a SavedModel; return it and its signature."""
    if os.fspath(path).endswith((".keras", ".h5")) and not Path(path).is_dir():
        raise InputError(
            f"target: {os.fspath(path)!r} is a model in a file: load it with "
            "keras.models.load_model, compile it, and place the model"
        )
    try:
        loaded = tf.saved_model.load(os.fspath(path))
    except OSError as error:
        raise InputError(
            f"target: {os.fspath(path)!r} is no SavedModel: {str(error).splitlines()[0]}; give the "
            "folder that model.export or tf.saved_model.save wrote"
        ) from None
    if signature not in loaded.signatures:
        known = ", ".join(sorted(loaded.signatures)) or "none"
        raise InputError(
            f"signature: {os.fspath(path)!r} has none that is called {signature!r}, only {known}: "
            "name one of these"
        )
    return loaded, loaded.signatures[signature]


def _captured_graph(graph: Any, fetches: Any, batch: int | None) -> Captured:
    definition = graph.as_graph_def()
    if barriers := barriers_in(definition):
        warnings.warn(
            f"{barriers[0]!r} passes all gradients on as one operator, so each goes to one device "
            "and back: split it with baechi.tensorflow.graph_generator.without_barriers(graph)",
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
    captured = finished(Captured(b"", graph, None, variables, batch=batch))
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
    if not captured.graph.get_operations():
        raise InputError("what was captured has no operations: there is nothing to place")
    size = batch or captured.batch
    definition = captured.graph_def
    if captured.function is not None and any(_is_open(t) for t in captured.graph.inputs):
        shapes = _argument_shapes(captured, size)
        definition = _private.with_sizes(captured.graph, shapes).SerializeToString()
    with warnings.catch_warnings():  # of loops, which capturing has told
        warnings.filterwarnings("ignore", r".* (is a loop, which counts|are loops, which count) ")
        try:
            return Graph.from_graph_def(definition, costs=costs, batch=size)
        except InputError as error:  # which speaks of a file
            words = str(error).removeprefix("<bytes>: ")
        what = "profile" if words.startswith("unknown device") else "the captured graph"
        raise InputError(f"{what}: {words}")


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
