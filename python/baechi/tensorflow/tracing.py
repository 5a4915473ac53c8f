# SPDX-License-Identifier: Apache-2.0
"""From Python functions and Keras models to the one flat graph of a training step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from baechi._core import InputError
from baechi.tensorflow import _private, _private_keras, versions
from baechi.tensorflow.rewriting import flattened


def trace(function: Any, *inputs: Any, **keywords: Any) -> Any:
    """Return a function as one flat graph: what it calls is inlined, gradients go one by one.

    TensorFlow traces what it calls as ever, each with its own signature, seeds and variables; the
    bodies are put in afterwards.

    Args:
        function: A Python function, a tf.function or a ConcreteFunction.
        inputs: Example arguments or TensorSpecs; a size of None may vary. Not for a
            ConcreteFunction, which has them.
        keywords: The same by name.

    Raises:
        InputError: XLA compiles the function, or a distribution strategy is in use.

    """
    versions.require_tested()
    if tf.distribute.has_strategy():
        raise InputError(
            "a distribution strategy is in use, and it places operations itself: trace and place "
            "outside of strategy.scope()"
        )
    for leaf in tf.nest.flatten((inputs, keywords)):
        if isinstance(leaf, tf.Variable | keras.Variable):
            raise InputError(
                f"the argument {leaf.name!r} is a variable, which moves to the device of what uses "
                "it: let the function use it from outside, and give it tensors only"
            )
    if _private.is_compiled(function):
        raise InputError(
            "XLA compiles the function as a whole for one device: give tf.function "
            "jit_compile=False to place it"
        )
    if _private.is_concrete(function):
        _require_own_variables(function)
        return flattened(function)
    with _private_keras.no_gradient_barrier():
        traced = _private.untraced(function).get_concrete_function(*inputs, **keywords)
    _require_own_variables(traced)
    arguments = [tensor.op.name for tensor in traced.graph.inputs]
    for operation in traced.graph.get_operations():
        _private.forget_colocation(operation, arguments)
    return flattened(traced)


def _require_own_variables(traced: Any) -> None:
    """Raise InputError if a variable is one of several that a strategy keeps the same."""
    for variable in traced.graph.variables:
        if _private_keras.own_strategy(variable) is not None:
            name = variable.name.split(":")[0]
            raise InputError(
                f"the variable {name!r} belongs to a distribution strategy, which keeps copies of "
                "it: make the variables outside of strategy.scope() to place what uses them"
            )


def shapes_given(function: Any, arguments: Any, keywords: Any) -> list[Any] | None:
    """Return the shape of each tensor that a call hands to a function; None for specs."""
    leaves = tf.nest.flatten((arguments, keywords))
    if not leaves or any(isinstance(leaf, tf.TypeSpec) for leaf in leaves):
        return None
    given = _private.flat_arguments(function, arguments, keywords)
    return [tf.TensorShape(getattr(value, "shape", None)) for value in given]


def batch_size_of(value: Any) -> int | None:
    """Return the first size of the first tensor of a batch, if it is known."""
    for leaf in tf.nest.flatten(value):
        shape = leaf if isinstance(leaf, tf.TensorShape) else getattr(leaf, "shape", None)
        if shape is not None and (known := tf.TensorShape(shape)).rank and known[0] is not None:
            return int(known[0])
    return None
