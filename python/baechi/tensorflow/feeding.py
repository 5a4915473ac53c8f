# SPDX-License-Identifier: Apache-2.0
"""What Keras' fit hands to a training step: the signature of its batches, and the first of them."""

from __future__ import annotations

import itertools
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from baechi._core import InputError
from baechi.tensorflow import _private_keras
from baechi.tensorflow.tracing import batch_size_of

_PEEKED = 2  # batches that fit looks at, to see which sizes vary


@dataclass
class Feed:
    """The batches of a training step.

    Attributes:
        spec: Their structure, types and shapes, as Keras hands them over.
        example: The first of them; None where specs were given.

    """

    spec: Any
    example: Any = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The arguments of a step: specs where there is no example."""
        return (self.spec if self.example is None else self.example,)

    @property
    def batch_size(self) -> int | None:
        """The first size of the example, if there is one, else of the spec, if that is known."""
        return batch_size_of(self.values)

    def signature(self, dynamic_batch: bool) -> Any:
        """Return the spec, with the first size open if it may vary, else as it is known."""
        first = None if dynamic_batch else self.batch_size

        def one(spec: Any) -> Any:
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
                return spec
            return tf.TensorSpec(
                [first or (None if dynamic_batch else spec.shape[0]), *spec.shape[1:]], spec.dtype
            )

        return tf.nest.map_structure(one, self.spec)


def feed_of(inputs: tuple[Any, ...], class_weight: Mapping[int, float] | None = None) -> Feed:
    """Return what fit would feed to a model.

    Args:
        inputs: One batch: x, y and sample weights, or a tuple of these, as arrays, tensors or
            specs. Or all that fit takes instead: a dataset, a PyDataset, a generator.
        class_weight: That of fit.

    """
    if not inputs:
        raise InputError(
            "a model is placed for batches of some shape: give one, place(model, x, y), or the "
            "dataset that fit gets"
        )
    if len(inputs) == 1 and isinstance(inputs[0], tuple):
        inputs = inputs[0]
    leaves = [leaf for leaf in tf.nest.flatten(inputs) if leaf is not None]
    if any(isinstance(leaf, tf.TypeSpec) for leaf in leaves):
        return Feed(_specs(inputs, leaves, class_weight))
    source, *rest = inputs
    if isinstance(source, types.GeneratorType):
        source = _peeked(source)
    elif isinstance(source, keras.utils.PyDataset):
        source = _FirstBatches(source)
    size = batch_size_of(leaves)
    data = _private_keras.fed_dataset(source, *rest, batch_size=size, class_weight=class_weight)
    example = next(iter(_private_keras.copied_dataset(data) if source is inputs[0] else data), None)
    if example is None:
        raise InputError(
            "the data holds no batch, and a model is placed for batches of some shape: give data "
            "that has one, or place(model, x[:32], y[:32])"
        )
    return Feed(data.element_spec, example)


def _specs(inputs: Any, leaves: list[Any], class_weight: Any) -> Any:
    if not all(isinstance(leaf, tf.TypeSpec) for leaf in leaves):
        raise InputError(
            "x, y and sample weights are tf.TensorSpecs or hold values, not some of each: give all "
            "as specs, or all as arrays or tensors"
        )
    x, y, weights = keras.utils.unpack_x_y_sample_weight(inputs)
    if class_weight is not None:
        if not isinstance(y, tf.TensorSpec) or weights is not None:
            raise InputError(
                "class_weight is for a model with one output and no sample weights beside it: "
                "leave it out, or give sample weights for each output"
            )
        weights = tf.TensorSpec(y.shape[:1], keras.config.floatx())
    batch = keras.utils.pack_x_y_sample_weight(x, y, weights)
    return keras.tree.lists_to_tuples(batch)  # as fit feeds lists


def _peeked(generator: Any) -> Any:
    """Return the first batches of a generator, as a generator."""
    first = list(itertools.islice(generator, _PEEKED))
    if not first:
        raise InputError("the generator gives no batch: make it anew, it may be used up")
    count = "1 batch" if len(first) == 1 else f"{len(first)} batches"
    taken = "was" if len(first) == 1 else "were"
    warnings.warn(
        f"{count} of the generator {taken} taken to see what they are like, and fit will not get "
        "them: make it anew for fit",
        stacklevel=5,
    )
    return (batch for batch in first)


class _FirstBatches(keras.utils.PyDataset):
    """The first batches of another one, made in this thread."""

    def __init__(self, whole: Any) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        count = whole.num_batches
        self._batches = [whole[i] for i in range(_PEEKED if count is None else min(count, _PEEKED))]

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]
