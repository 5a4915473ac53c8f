# SPDX-License-Identifier: Apache-2.0
"""Profiler of TensorFlow: what every operator costs, measured (Paper 4.1).

A step is replayed in a session, which traces every operator as it ran. The variables of a function
are copied into the session: training them there changes nothing outside.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from baechi._core import InputError, Profile
from baechi.brief_errors import briefly
from baechi.pipeline import described
from baechi.tensorflow import _private, versions
from baechi.tensorflow.captured import Captured
from baechi.tensorflow.devices import full_name
from baechi.tensorflow.inlining import split_input
from baechi.tensorflow.step_stats import Measured, bytes_of, give_back_fused, measured_steps
from baechi.tensorflow.tracing import batch_size_of


@briefly
def measure(
    captured: Captured,
    *inputs: Any,
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    steps: int = 5,
    warmup: int = 2,
    device_of: Mapping[str, str] | None = None,
    kinds: Mapping[str, str] | None = None,
    **keywords: Any,
) -> Profile:
    """Run a captured step a few times and return what its operators cost: medians.

    The weights stay as they are: it is copies of them that are trained.

    Args:
        captured: The step.
        inputs: The arguments of a function, if not those that it was captured with.
        fetches: What a session runs of a TensorFlow 1 graph: the loss and the training operation.
        feed_dict: What that is fed, by placeholder.
        steps: Steps that count.
        warmup: Steps before these.
        device_of: The TensorFlow device of each operator, for a model that one device is too small
            for; by default TensorFlow chooses, or the graph says so.
        kinds: What to call the kinds of devices, such as {"GPU": "rtx3090"}; by default "cpu" and
            "gpu".
        keywords: Arguments of a function by name.

    Raises:
        InputError: The step cannot be replayed; the message says why.

    """
    if not isinstance(captured, Captured):
        raise InputError(
            "captured: expected what baechi.tensorflow.capture(...) returned, found "
            f"{described(captured)}"
        )
    if not isinstance(kinds, Mapping | None):
        raise InputError(
            "kinds: expected what to call the kinds of devices, such as {'GPU': 'rtx3090'}, found "
            f"{described(kinds)}"
        )
    known = sorted({device.device_type for device in tf.config.list_logical_devices()})
    unknown = [name for name in kinds or () if name not in known]
    if unknown:
        raise InputError(
            f"kinds: TensorFlow has no devices {unknown[0]!r} here, only {', '.join(known)}"
        )
    versions.require_tested()
    if steps < 1 or warmup < 0:
        raise InputError(
            f"steps={steps}, warmup={warmup}: expected at least 1 step, and 0 or more before it"
        )
    if captured.function is not None:
        if fetches is not None or feed_dict is not None:
            raise InputError(
                "fetches and feed_dict are for a TensorFlow 1 graph: a function is measured with "
                "its arguments, measure(captured, x, y)"
            )
        if not inputs and not keywords and captured.values is not None:
            inputs, keywords = captured.values
        replay = _replay(captured, (inputs, keywords), device_of or {})
    else:
        if fetches is None:
            raise InputError(
                "a TensorFlow 1 graph runs what it is asked for: give fetches=[loss, train_op]"
            )
        replay = _session(captured, fetches, feed_dict or {})
    with replay as run:
        for _ in range(warmup):
            run()
        stats = [run() for _ in range(steps)]
    operators = {o.name: o.type for o in captured.graph.get_operations()}
    found = measured_steps(stats, operators, captured.loops)
    definition = captured.graph.as_graph_def()
    sources = {
        node.name: [split_input(text)[0] for text in node.input if text[0] != "^"]
        for node in definition.node
    }
    for step in found:
        give_back_fused(step, operators, lambda name: sources[name])
    batch = _batch_size((inputs, keywords), feed_dict) or captured.batch
    source = f"TensorFlow {tf.__version__}, median of {steps} replayed steps"
    return _profile(captured, found, kinds or {}, source=source, batch=batch)


def _made(operators: list[dict[str, Any]], source: str, batch: int | None) -> Profile:
    document: dict[str, Any] = {"format": "baechi-profile", "version": 1, "source": source}
    if batch is not None:
        document["batch_size"] = batch
    document["operators"] = operators
    return Profile.from_json(json.dumps(document))


# A function in a session


@contextmanager
def _replay(captured: Captured, arguments: Any, device_of: Mapping[str, str]) -> Iterator[Any]:
    """Give a call that runs a function's step in a session of its own and returns its StepStats."""
    function = captured.function
    graph = captured.graph
    definition = graph.as_graph_def()
    values = {name: variable.numpy() for name, variable in captured.variables.items()}
    _make_variables(definition, captured, device_of)
    session_graph = tf.Graph()
    with session_graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
        assign, feeds = [], {}
        for name, value in values.items():
            variable = captured.variables[name]
            initial = tf.compat.v1.placeholder(variable.dtype, variable.shape)
            handle = session_graph.get_tensor_by_name(f"{name}:0")
            with tf.device(handle.device):
                assign.append(tf.raw_ops.AssignVariableOp(resource=handle, value=initial))
            feeds[initial] = value
    given = _arguments(function, arguments)
    captures = zip(
        graph.inputs[len(graph.inputs) - len(function.captured_inputs) :],
        function.captured_inputs,
        strict=True,
    )
    for inner, outer in captures:
        if inner.dtype != tf.resource:
            given[inner.name] = outer.numpy()
    feed = {session_graph.get_tensor_by_name(name): value for name, value in given.items()}
    fetches = [session_graph.get_tensor_by_name(tensor.name) for tensor in graph.outputs]
    fetches = [tensor for tensor in fetches if tensor.dtype not in (tf.resource, tf.variant)]
    run_too = [session_graph.get_operation_by_name(o.name) for o in graph.control_outputs]
    with tf.compat.v1.Session(graph=session_graph, config=_private.session_config()) as session:
        session.run(assign, feeds)
        yield lambda: _traced(session, [fetches, run_too], feed)


def _make_variables(definition: Any, captured: Captured, device_of: Mapping[str, str]) -> None:
    """Turn the captured variables of a GraphDef into variables of its own; set devices."""
    for node in definition.node:
        if node.name in device_of:
            node.device = full_name(device_of[node.name])
        variable = captured.variables.get(node.name)
        if variable is None:
            if node.op == "Placeholder" and node.attr["dtype"].type == tf.resource.as_datatype_enum:
                raise InputError(
                    f"{node.name!r} is a table, an iterator or the like, which a session cannot "
                    "have: estimate the costs instead"
                )
            continue
        for key in list(node.attr):
            del node.attr[key]
        node.op = "VarHandleOp"
        node.attr["dtype"].type = variable.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
        node.attr["shared_name"].s = node.name.encode()
        node.attr["container"].s = b""


def _arguments(function: Any, arguments: Any) -> dict[str, Any]:
    """Return the values of a function's arguments, by the name of their tensor in its graph."""
    graph = function.graph
    inner = graph.inputs[: len(graph.inputs) - len(function.captured_inputs)]
    if any(isinstance(leaf, tf.TypeSpec) for leaf in tf.nest.flatten(arguments)):
        raise InputError("a step is measured with values: give tensors or arrays, not specs")
    given = _private.flat_arguments(function, *arguments)
    if len(given) != len(inner):
        raise InputError(f"the step takes {len(inner)} tensors as arguments, not {len(given)}")
    values = {}
    for tensor, leaf in zip(inner, given, strict=True):
        value = leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf
        if not tensor.shape.is_compatible_with(getattr(value, "shape", ())):
            raise InputError(
                f"the argument {tensor.op.name!r} has the shape {value.shape}, not {tensor.shape}"
            )
        values[tensor.name] = value
    return values


@contextmanager
def _session(captured: Captured, fetches: Any, feed_dict: Mapping[Any, Any]) -> Iterator[Any]:
    """Give a call that runs a step of a TensorFlow 1 graph and returns its StepStats."""
    graph = captured.graph
    config = _private.session_config()
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        session.run([v.initializer for v in captured.variables.values() if v is not None])
        yield lambda: _traced(session, fetches, dict(feed_dict))


def _traced(session: Any, fetches: Any, feed: Any) -> Any:
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    session.run(fetches, feed, options=options, run_metadata=metadata)
    return metadata.step_stats


# From steps to a profile


def _profile(
    captured: Captured,
    steps: Sequence[dict[str, Measured]],
    kinds: Mapping[str, str],
    *,
    source: str,
    batch: int | None,
) -> Profile:
    operators = []
    common = kinds.get("CPU", "cpu")
    for step in steps:
        for measured in step.values():
            if measured.kind != "CPU":
                common = kinds.get(measured.kind, measured.kind.lower())
    for operation in captured.graph.get_operations():
        runs = [step[operation.name] for step in steps if operation.name in step]
        made: dict[str, Any] = {"name": operation.name}
        if runs:
            kind = kinds.get(runs[0].kind, runs[0].kind.lower())
            time = round(statistics.median(run.time for run in runs))
            made["time"] = {kind: time, common: time}  # what only a CPU can run, it runs for a GPU
        else:  # an argument, or nothing that the step needs
            made["time"] = {common: 0}
        permanent = _permanent(operation, captured.variables)
        temporary = max((run.temporary for run in runs), default=0)
        made["memory"] = {"permanent": permanent, "temporary": temporary}
        made["outputs"] = _sizes(operation, [run.transferred for run in runs], ran=bool(runs))
        if any(run.allocated for run in runs):
            made["allocated"] = _largest(operation, [run.allocated for run in runs])
        operators.append(made)
    return _made(operators, source, batch)


def _largest(operation: Any, runs: Sequence[Mapping[int, int]]) -> list[int | None]:
    ports = range(len(operation.outputs))
    return [max((run[p] for run in runs if p in run), default=None) for p in ports]


def _sizes(operation: Any, runs: Sequence[Mapping[int, int]], *, ran: bool) -> list[int | None]:
    """Return what each output is to others: as measured, else by its shape, if that is known."""
    sizes = _largest(operation, runs)
    for port, tensor in enumerate(operation.outputs):
        if sizes[port] is not None:
            continue
        if tensor.shape.is_fully_defined():
            sizes[port] = bytes_of(tensor.dtype.as_datatype_enum, tensor.shape.as_list())
        elif not ran and operation.type not in ("Placeholder", "PlaceholderWithDefault"):
            sizes[port] = 0  # the step does not make it
    return sizes


def _permanent(operation: Any, variables: Mapping[str, Any]) -> int:
    if operation.name not in variables:
        return 0
    variable = variables[operation.name]
    if variable is None:
        dtype, shape = operation.get_attr("dtype"), tf.TensorShape(operation.get_attr("shape"))
    else:
        dtype, shape = variable.dtype.base_dtype, variable.shape
    if not shape.is_fully_defined():
        return 0
    return bytes_of(dtype.as_datatype_enum, shape.as_list())


def _batch_size(arguments: Any, feed_dict: Mapping[Any, Any] | None) -> int | None:
    fed = batch_size_of(list((feed_dict or {}).values()))
    return fed if arguments == ((), {}) else batch_size_of(arguments)
