# SPDX-License-Identifier: Apache-2.0
"""Makes graphs of training steps easier to place; what they compute stays (Paper 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from baechi.tensorflow import _private
from baechi.tensorflow.inlining import calls_in, inline, rename_class, split_input

_BARRIER = "IdentityN"
# Without side effects, and the same result for the same inputs.
_ARITHMETIC = ("AddV2", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Rsqrt", "Sqrt")
_PURE = frozenset([*_ARITHMETIC, "Cast", "Const", "Identity", "Square", "Sub"])
_NOT_THE_VALUE = frozenset(["_output_shapes", "_class", "_has_manual_control_dependencies"])


def barriers_in(definition: Any) -> list[str]:
    """Return the nodes that pass several tensors on as one operator.

    Keras' optimizers send all gradients through one. An operator is on one device: every gradient
    would go there and back.
    """
    return [n.name for n in definition.node if n.op == _BARRIER and len(_data(n)) > 1]


def _data(node: Any) -> list[str]:
    return [text for text in node.input if not text.startswith("^")]


def split_barriers(definition: Any) -> tuple[Any, Callable[[str], str]]:
    """Return a GraphDef with one Identity for each tensor of a barrier.

    And a function from names of tensors to what they are called then.
    """
    barriers = set(barriers_in(definition))
    taken = {node.name for node in definition.node}
    parts: dict[str, list[str]] = {}
    for node in definition.node:
        if node.name in barriers:
            parts[node.name] = [_unused(f"{node.name}/{i}", taken) for i in range(len(_data(node)))]

    def renamed(tensor: str) -> str:
        name, port = split_input(tensor)
        return f"{parts[name][port]}:0" if name in parts else tensor

    result = _empty_like(definition)
    names = {node.name: parts.get(node.name, [node.name])[0] for node in definition.node}
    for node in definition.node:
        if node.name in parts:
            _add_parts(result, node, parts[node.name], renamed)
            continue
        made = result.node.add()
        made.CopyFrom(node)
        if any(split_input(text)[0] in parts for text in node.input):
            controls = dict.fromkeys(
                f"^{one}"
                for text in node.input
                if text.startswith("^")
                for one in parts.get(text[1:], [text[1:]])
            )
            del made.input[:]
            made.input.extend([renamed(text).removesuffix(":0") for text in _data(node)])
            made.input.extend(controls)
        rename_class(made, names)
    return result, renamed


def _unused(name: str, taken: set[str]) -> str:
    made, number = name, 0
    while made in taken:
        number += 1
        made = f"{name}_{number}"
    taken.add(made)
    return made


def _empty_like(definition: Any) -> Any:
    return tf.compat.v1.GraphDef(library=definition.library, versions=definition.versions)


def _add_parts(result: Any, node: Any, names: Iterable[str], renamed: Callable[[str], str]) -> None:
    controls = [text for text in node.input if text.startswith("^")]
    for index, (name, text) in enumerate(zip(names, _data(node), strict=True)):
        part = result.node.add(name=name, op="Identity", device=node.device)
        part.input.extend([renamed(text).removesuffix(":0"), *controls])
        part.attr["T"].type = node.attr["T"].list.type[index]
        shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
        if shapes:
            part.attr["_output_shapes"].list.shape.append(shapes[index])


def share_scalars(definition: Any, scalars: Iterable[str]) -> tuple[Any, Callable[[str], str]]:
    """Return a GraphDef in which equal reads of variables and equal scalars are one operator.

    An optimizer reads its learning rate and counts its steps once for each weight; each of these
    reads would be sent to another device on its own.

    Args:
        definition: Operators that come before what uses them first, as traced functions have it.
        scalars: The operators whose outputs are scalars.

    """
    small = set(scalars)
    instead: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    result = _empty_like(definition)
    for node in definition.node:
        inputs = list(dict.fromkeys(_instead(t, instead) for t in node.input if t[0] == "^"))
        inputs = [_instead(text, instead) for text in _data(node)] + inputs
        if node.op == "ReadVariableOp" or (node.op in _PURE and node.name in small):
            key = (
                node.op,
                node.device,
                tuple(sorted(inputs)) if node.op == "ReadVariableOp" else tuple(inputs),
                _value(node),
            )
            if key in seen:
                instead[node.name] = seen[key]
                continue
            seen[key] = node.name
        made = result.node.add()
        made.CopyFrom(node)
        if inputs != list(node.input):
            del made.input[:]
            made.input.extend(inputs)

    names = {node.name: instead.get(node.name, node.name) for node in definition.node}
    for node in result.node:
        rename_class(node, names)

    def renamed(tensor: str) -> str:
        return _instead(tensor, instead)

    return result, renamed


def _instead(text: str, instead: dict[str, str]) -> str:
    name, port = split_input(text)
    if name not in instead:
        return text
    if text.startswith("^"):
        return f"^{instead[name]}"
    return f"{instead[name]}:{port}" if ":" in text else instead[name]


def _value(node: Any) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (key, node.attr[key].SerializeToString())
        for key in sorted(node.attr)
        if key not in _NOT_THE_VALUE
    )


def flattened(function: Any, *, share: bool = False) -> Any:
    """Return a ConcreteFunction whose graph calls no functions and has no gradient barrier.

    Nor is anything colocated with an argument. The same function when its graph is such already.
    Otherwise what it is made of has new names where it was in another function, and arguments have
    other names as operators.

    Args:
        function: A ConcreteFunction.
        share: Also make equal reads and equal scalars one operator.

    """
    graph = function.graph
    definition = graph.as_graph_def()
    if not (share or calls_in(definition) or barriers_in(definition) or _tied(definition, graph)):
        return function
    made = inline(
        definition,
        [tensor.name for tensor in graph.outputs],
        [operation.name for operation in graph.control_outputs],
    )
    definition, outputs, last = made.definition, made.outputs, made.last
    if barriers_in(definition):
        definition, renamed = split_barriers(definition)
        outputs = [renamed(tensor) for tensor in outputs]
    function = _rebuilt(function, definition, outputs, last)
    return _shared(function) if share else function


def _tied(definition: Any, graph: Any) -> bool:
    """Whether an operator is to be with an argument: TensorFlow would not let it be elsewhere."""
    places = {b"loc:@" + tensor.op.name.encode() for tensor in graph.inputs}
    return any(
        not places.isdisjoint(node.attr["_class"].list.s)
        for node in definition.node
        if "_class" in node.attr
    )


def _rebuilt(function: Any, definition: Any, outputs: list[str], last: list[str]) -> Any:
    """Make the function of a rewritten graph; what is colocated with an argument loses that."""
    arguments = {tensor.op.name for tensor in function.graph.inputs}
    names = {node.name: node.name for node in definition.node if node.name not in arguments}
    for node in definition.node:
        rename_class(node, names)
    return _private.rebuilt(function, definition, outputs, last)


def _shared(function: Any) -> Any:
    graph = function.graph
    scalars = [o.name for o in graph.get_operations() if o.outputs and o.outputs[0].shape.rank == 0]
    definition, renamed = share_scalars(graph.as_graph_def(), scalars)
    outputs = [renamed(tensor.name) for tensor in graph.outputs]
    last = list(dict.fromkeys(renamed(operation.name) for operation in graph.control_outputs))
    return _rebuilt(function, definition, outputs, last)
