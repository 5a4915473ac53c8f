# SPDX-License-Identifier: Apache-2.0
"""Every private name of Keras, and of its data, that baechi.tensorflow uses."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers import data_adapters
from tensorflow.python.data.ops import dataset_ops

from baechi._core import InputError

_WITH_STATE = ("CacheDataset", "ShuffleAndRepeatDataset", "ShuffleDataset")


@contextlib.contextmanager
def no_gradient_barrier() -> Iterator[None]:
    """Let Keras' optimizers hand on gradients one by one.

    Outside of distribution strategies they send them all through one IdentityN, which changes
    nothing but would bring every gradient to one device and back.
    """
    owner = next(
        (c for c in keras.optimizers.Optimizer.__mro__ if "_all_reduce_sum_gradients" in vars(c)),
        None,
    )
    if owner is None:
        yield
        return
    original = owner._all_reduce_sum_gradients

    @functools.wraps(original)
    def hand_on(_: Any, gradients: Any) -> Any:
        return list(gradients)

    owner._all_reduce_sum_gradients = hand_on
    try:
        yield
    finally:
        owner._all_reduce_sum_gradients = original


def fed_dataset(
    x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int | None, class_weight: Any
) -> Any:
    """Return the dataset of the batches that Keras' fit feeds to a training step."""
    try:
        adapter = data_adapters.get_data_adapter(
            x, y, sample_weight, batch_size=batch_size, class_weight=class_weight
        )
    except ValueError as error:  # which writes out all of x and y
        given = ", ".join(type(part).__name__ for part in (x, y, sample_weight) if part is not None)
        reason = " ".join(str(error).split())
        if reason.startswith("Unrecognized data type"):
            reason = "these are not arrays, tensors or datasets"
        raise InputError(f"the batch ({given}) is none that fit takes: {reason}") from None
    return adapter.get_tf_dataset()


def copied_dataset(dataset: Any) -> Any:
    """Return a dataset whose batches are like those of another, and that can be looked at freely.

    It neither shuffles nor caches: iterators of a dataset share the count of its shuffles and what
    it keeps. A dataset that cannot be copied is returned as it is.
    """
    try:
        bytes_of_graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor, external_state_policy=1
        )
        graph = tf.compat.v1.GraphDef.FromString(bytes_of_graph.numpy())
        passed_by = {n.name: n.input[0] for n in graph.node if n.op.startswith(_WITH_STATE)}
        for node in graph.node:
            for index in range(len(node.input)):
                while node.input[index] in passed_by:
                    node.input[index] = passed_by[node.input[index]]
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    except tf.errors.OpError:
        return dataset
    return dataset_ops._VariantDataset(variant, dataset.element_spec)


def has_own_train_step(model: Any) -> bool:
    """Whether a Keras model does in its training step what its class says, not what Keras does."""
    return type(model).train_step is not keras.Model.train_step


def build_keras(model: Any, batch: Any) -> None:
    """Make all variables of a compiled model: weights, metrics, optimizer."""
    model._symbolic_build(data_batch=batch)


def own_strategy(model: Any) -> Any:
    """Return the distribution strategy that a model or variable was made under, if any."""
    return getattr(model, "_distribute_strategy", None)


def compiled_state(model: Any) -> tuple[Any, ...]:
    """Return what a Keras model's training step was traced from, to be compared by identity."""
    return (model.optimizer, model._compile_loss, model._compile_metrics, model._loss_tracker)
