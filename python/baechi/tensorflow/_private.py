# SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow that baechi.tensorflow uses; `versions` tests them."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import function_type_utils
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework import function_def_to_graph, kernels, meta_graph, ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import gen_resource_variable_ops, handle_data_util, resource_variable_ops

from baechi._core import InputError

# Graphs and functions


def this_task() -> Any:
    """Return the job and task of this process, as TensorFlow names its devices."""
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.DeviceSpec.from_string(tf.constant(0).backing_device)


def set_device(operation: Any, device: str) -> None:
    """Ask for another device for an operation of a graph; "" asks for none."""
    operation._set_device(device)


def user_device(operation: Any) -> str:
    """Return the device that a program asked for with tf.device; "" where it did not."""
    return str(operation.device)


def forget_colocation(operation: Any, with_any_of: Iterable[str]) -> None:
    """Let an operation be elsewhere than the named operations."""
    try:
        places = operation.get_attr("_class")
    except ValueError:
        return
    unwanted = {b"loc:@" + name.encode() for name in with_any_of}
    if unwanted.isdisjoint(places):
        return
    operation._clear_attr("_class")
    if kept := [place for place in places if place not in unwanted]:
        value = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(s=kept))
        operation._set_attr("_class", value)


def traced_constants(function: Any, given: int) -> dict[str, Any]:
    """Return the arguments behind the first `given` that are no tensors: calls must repeat them."""
    parameters = list(getattr(function.function_type, "parameters", {}).values())
    return {
        p.name: p.type_constraint.value
        for at, p in enumerate(parameters)
        if hasattr(p.type_constraint, "value")
        and (p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and at >= given))
    }


def function_of(graph: Any, function_type: Any, captures: Sequence[Any]) -> Any:
    """Make a ConcreteFunction of a FuncGraph as it is now; it keeps the graph's variables alive."""
    made = ConcreteFunction.from_func_graph(graph, function_type, {})
    made.set_external_captures(list(captures))
    made._baechi_variables = list(graph.variables)  # the graph itself holds them weakly
    return made


def bodies_of(definition: Any) -> dict[str, tuple[Any, dict[str, str]]]:
    """Return every function of a GraphDef's library as a GraphDef, arguments as placeholders.

    With each, how its graph names the tensors that the function has names for.
    """
    library = tf.compat.v1.GraphDef(library=definition.library, versions=definition.versions)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(library, name="")
        return {
            function.signature.name: function_def_to_graph.function_def_to_graph_def(function)
            for function in library.library.function
        }


def rebuilt(function: Any, definition: Any, outputs: Sequence[str], last: Sequence[str]) -> Any:
    """Make a function of another GraphDef, with the signature and the variables of `function`.

    Args:
        function: The function that the GraphDef was made from.
        definition: It has the function's arguments as placeholders of their names.
        outputs: The tensors that stand for the function's outputs.
        last: The operations that must have run when it returns.

    """
    old = function.graph
    arguments = {tensor.op.name for tensor in old.inputs}
    body = tf.compat.v1.GraphDef(library=definition.library, versions=definition.versions)
    body.node.extend(node for node in definition.node if node.name not in arguments)
    graph = FuncGraph(old.name)
    with graph.as_default():
        inputs = _import_with_arguments(body, old.inputs, [tensor.shape for tensor in old.inputs])
        found = [
            inputs[name] if name in inputs else graph.get_tensor_by_name(name) for name in outputs
        ]
    graph.inputs = list(inputs.values())
    graph.outputs = found
    graph.control_outputs = [
        graph.get_operation_by_name(name) for name in last if name not in arguments
    ]
    graph.structured_input_signature = old.structured_input_signature
    graph.structured_outputs = _with_tensors(old.structured_outputs, found)
    graph.variables = old.variables
    made = function_of(graph, function.function_type, function.captured_inputs)
    made._baechi_source = function  # what keeps its variables alive
    return made


def _import_with_arguments(body: Any, arguments: Sequence[Any], shapes: Sequence[Any]) -> Any:
    """Add a GraphDef without its arguments to the default graph; return these by their names.

    They get names of their own: those they had would be taken as scopes, and what is in these be
    renamed. What is known of a resource must be there before it is used.
    """
    inputs = {}
    for index, (tensor, shape) in enumerate(zip(arguments, shapes, strict=True)):
        made = tf.compat.v1.placeholder(tensor.dtype, shape, f"baechi.argument.{index}")
        handle_data_util.copy_handle_data(tensor, made)
        inputs[tensor.name] = made
    names = {tensor.op.name for tensor in arguments}
    for node in body.node:  # arguments are there before anything runs
        if any(text[0] == "^" and text[1:] in names for text in node.input):
            waits = [text for text in node.input if text[0] != "^" or text[1:] not in names]
            del node.input[:]
            node.input.extend(waits)
    read = {text for node in body.node for text in node.input}
    used = {n: t for n, t in inputs.items() if n in read or n.removesuffix(":0") in read}
    tf.graph_util.import_graph_def(body, input_map=used, name="")
    return inputs


def _with_tensors(structure: Any, tensors: Sequence[Any]) -> Any:
    """Put tensors where a structure of outputs has its own."""
    flat = tf.nest.flatten(structure, expand_composites=True)
    places = [i for i, o in enumerate(flat) if isinstance(o, tf.Tensor | tf.TensorSpec)]
    if len(places) != len(tensors):
        return list(tensors)
    for place, tensor in zip(places, tensors, strict=True):
        flat[place] = tensor
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def import_meta_graph(proto: Any) -> None:
    """Add a MetaGraphDef to the default graph: operations, collections, and nothing more."""
    meta_graph.import_scoped_meta_graph(proto)


def graph_being_traced() -> Any:
    """Return the graph that is being traced, or None when operations run at once."""
    return None if context.executing_eagerly() else ops.get_default_graph()


def with_sizes(graph: Any, shapes: Sequence[Any]) -> Any:
    """Return the GraphDef of a FuncGraph, shapes added, as if its arguments were of these shapes.

    The shapes that tracing left open, a rank even, follow from those of the arguments.
    """
    definition = graph.as_graph_def()
    arguments = {tensor.op.name for tensor in graph.inputs}
    kept = [node for node in definition.node if node.name not in arguments]
    del definition.node[:]
    definition.node.extend(kept)
    known = tf.Graph()
    with known.as_default():
        inputs = _import_with_arguments(definition, graph.inputs, shapes)
        result = known.as_graph_def(add_shapes=True)
    renamed = {made.op.name: name.removesuffix(":0") for name, made in inputs.items()}
    for node in result.node:
        node.name = renamed.get(node.name, node.name)
        _add_traced_shapes(node, graph.get_operation_by_name(node.name))
        for index, source in enumerate(node.input):
            if source.lstrip("^") in renamed:
                node.input[index] = source.replace(source.lstrip("^"), renamed[source.lstrip("^")])
    return result


def _add_traced_shapes(node: Any, traced: Any) -> None:
    """Add what is known of an operation's outputs from tracing: the gradient of a loop says more.

    Shapes that follow from a variable's are not all found again when a graph is read.
    """
    for shape, tensor in zip(node.attr["_output_shapes"].list.shape, traced.outputs, strict=True):
        found = tf.TensorShape(shape)
        if not found.is_fully_defined() and found.is_compatible_with(tensor.shape):
            shape.CopyFrom(found.merge_with(tensor.shape).as_proto())


def has_kernel(operation: Any, device_type: str) -> bool:
    """Whether TensorFlow has a kernel for an operation, with its types, on a kind of device."""
    for kernel in _kernels(operation.type):
        if kernel.device_type not in (device_type, "DEFAULT"):
            continue
        if all(_allows(constraint, operation) for constraint in kernel.constraint):
            return True
    return False


@functools.cache
def _kernels(kind: str) -> list[Any]:
    return list(kernels.get_registered_kernels_for_op(kind).kernel)


def _allows(constraint: Any, operation: Any) -> bool:
    allowed = constraint.allowed_values.list.type
    if not allowed:
        return True
    try:
        found = operation.get_attr(constraint.name)
    except ValueError:
        return True
    types = found if isinstance(found, list) else [found]
    return all(t.as_datatype_enum in allowed for t in types if isinstance(t, tf.DType))


def is_compiled(function: Any) -> bool:
    """Whether XLA compiles a function, or one that it calls."""
    if getattr(function, "_jit_compile", False):
        return True
    if not isinstance(function, ConcreteFunction):
        return False
    library = function.graph.as_graph_def().library.function
    return any(f.attr["_XlaMustCompile"].b for f in [function.function_def, *library])


def untraced(function: Any) -> Any:
    """Return a tf.function that has no graph yet, with the options of the one that is given."""
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        return function._clone(None)
    return tf.function(function)


def flat_arguments(function: Any, arguments: Any, keywords: Any) -> list[Any]:
    """Return what a call of a ConcreteFunction hands to the tensors that it takes, in their order.

    As the call itself does: by the structure that was traced, else tensor by tensor.
    """
    kind = function.function_type
    try:
        bound = function_type_utils.canonicalize_function_inputs(arguments, keywords, kind)
        return list(kind.unpack_inputs(bound))
    except (AttributeError, TypeError):
        leaves = tf.nest.flatten((arguments, keywords), expand_composites=True)
        return [leaf for leaf in leaves if leaf is not None]


def is_concrete(function: Any) -> bool:
    """Whether this is a function that was traced for one signature."""
    return isinstance(function, ConcreteFunction)


# Variables


def handle_of(variable: Any) -> Any:
    """Return the resource that a variable's object stands for now."""
    return variable.handle


def move(variable: Any, device: str) -> Any:
    """Give a variable a new resource on `device`, with its value; return the old one, emptied.

    Functions that were traced before hold the old resource. They must not go on with old weights,
    so it is left with a value of no elements, which no operation on the weights takes.
    """
    old = variable.handle
    with tf.init_scope(), tf.device(device):
        value = tf.identity(variable.read_value())
        made = resource_variable_ops._variable_handle_from_shape_and_dtype(
            variable.shape, variable.dtype, None, variable.name.split(":")[0], graph_mode=False
        )
        gen_resource_variable_ops.assign_variable_op(made, value)
    _empty(old, variable.dtype)
    variable._handle = made
    return old


def move_back(variable: Any, old: Any) -> None:
    """Make a variable stand for a resource that `move` emptied, with the value it has now."""
    moved = variable.handle
    with tf.init_scope(), tf.device(old.device):
        gen_resource_variable_ops.assign_variable_op(old, tf.identity(variable.read_value()))
    _empty(moved, variable.dtype)
    variable._handle = old


def _empty(resource: Any, dtype: Any) -> None:
    with tf.init_scope(), tf.device(resource.device):
        gen_resource_variable_ops.assign_variable_op(resource, tf.zeros((0,), dtype))


def functions_with(resources: Iterable[Any]) -> list[Any]:
    """Return the functions of this process that were traced with any of these resources."""
    held = {id(resource) for resource in resources}
    functions = [one for one in gc.get_objects() if issubclass(type(one), ConcreteFunction)]
    return [one for one in functions if any(id(taken) in held for taken in one.captured_inputs)]


def refuse_calls(function: Any, reason: str) -> None:
    """Let a function raise InputError when called, by Python or by one that is being traced."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise InputError(reason)

    function._call_flat = refuse


def allow_calls(function: Any) -> None:
    """Undo `refuse_calls`."""
    vars(function).pop("_call_flat", None)


# What ran where


def partition_graphs(call: Callable[[], Any]) -> list[Any]:
    """Call functions; return the graphs that the runtime made of them, one per device."""
    context.enable_run_metadata()
    try:
        call()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    return [graph for made in metadata.function_graphs for graph in made.partition_graphs]


@contextlib.contextmanager
def without_rewriting() -> Iterator[None]:
    """Turn off the rewriting of graphs before they run, and put it back."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        restored = {"disable_meta_optimizer": False, **before}
        tf.config.optimizer.set_experimental_options(restored)


def session_config() -> Any:
    """Return the configuration of a session that runs a graph as it is, on this process' devices.

    Constants are not folded, equal operations not merged and one operation runs at a time, so that
    each has a time of its own.
    """
    config = tf.compat.v1.ConfigProto()
    config.CopyFrom(context.context().config)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    config.inter_op_parallelism_threads = 1
    return config
