# SPDX-License-Identifier: Apache-2.0
"""Keras models whose fit, evaluate and predict run over several devices.

The training step is traced once and placed as a function. Evaluation and prediction are traced by
Keras as ever, for whatever batch they get; their operations go where the training step has those of
the same name, or of the same layer.
"""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from baechi._core import InputError
from baechi.tensorflow import _private, _private_keras
from baechi.tensorflow.captured import Captured, captured_function
from baechi.tensorflow.feeding import Feed
from baechi.tensorflow.tracing import shapes_given, trace

_STEPS = ("train_step", "test_step", "predict_step")


def require_placeable(model: Any) -> None:
    """Raise InputError for a model that has no training step of its own to place."""
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow, or place "
            "the model with that framework"
        )
    if isinstance(getattr(model.train_step, "__self__", None), PlacedKeras):
        raise InputError("the model is placed already: restore() it before it is placed anew")
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise InputError(
            "the model has no training step yet: call model.compile(optimizer=..., loss=...) first"
        )
    if model.run_eagerly:
        raise InputError(
            "the model runs operation by operation: compile it with run_eagerly=False to place it"
        )
    if model.jit_compile:
        raise InputError(
            "XLA compiles the whole step for one device (with a GPU, Keras' default): call "
            "model.compile(..., jit_compile=False) to place it"
        )
    if (
        _private_keras.own_strategy(model) is not None
        or tf.distribute.has_strategy()
        or keras.distribution.distribution() is not None
    ):
        raise InputError(
            "the model belongs to a distribution strategy, which places operations itself: make "
            "and place it outside of strategy.scope() and keras.distribution"
        )


def build(model: Any, batch: Any) -> None:
    """Make the variables of weights, metrics and optimizer, as fit does before its first step."""

    def symbolic(spec: Any) -> Any:
        if spec is None:
            return None
        return keras.KerasTensor(tuple(spec.shape), keras.backend.standardize_dtype(spec.dtype))

    try:
        _private_keras.build_keras(model, tf.nest.map_structure(symbolic, batch))
    except Exception as error:
        raise InputError(
            f"the model cannot train on this batch ({type(error).__name__}: {_reason(error)}): "
            "give place x and y as fit gets them; if it is for want of shapes, call the model "
            "once, model(x), before it is placed"
        ) from error


def _reason(error: Exception) -> str:
    """Return the line of an error that says what is wrong: Keras' first one names a call."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line for line in plain.splitlines() if line.strip()] or [""]
    return lines[1] if len(lines) > 1 and lines[0].startswith("Exception enc") else lines[0]


def capture_model(
    model: Any, feed: Feed, *, batch: int | None = None, dynamic_batch: bool = True
) -> Captured:
    """Capture the training step of a compiled Keras model.

    Args:
        model: The model; its variables are made if it has not been built.
        feed: The batches that fit feeds to it.
        batch: The size that stands for the first size of a batch, by default that of the example.
        dynamic_batch: Whether batches may differ in their first size.

    Raises:
        InputError: The model cannot be captured; the message says what to do.

    """
    spec = feed.signature(dynamic_batch)
    traced = trace_training(model, spec)
    shapes = shapes_given(traced, feed.values, {})
    captured = captured_function(traced, batch or feed.batch_size, shapes)
    captured.model = model
    captured.signature = spec
    captured.values = (feed.values, {})
    return captured


def trace_training(model: Any, batch: Any) -> Any:
    """Return the training step of a compiled model as one flat graph, as fit traces it.

    A model with a training step of Keras' is built first, which leaves it as it was if it fails;
    one of the model's own may call anything with anything, and makes the variables as it runs.
    """
    require_placeable(model)
    if not _private_keras.has_own_train_step(model) and _is_plain(batch):
        build(model, batch)

    if model.built:
        _require_trainable(model)

    def step(data: Any) -> Any:
        return model.train_step(data)

    try:
        traced = trace(tf.autograph.experimental.do_not_convert(step), batch)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"fit cannot trace the model's training step with batches of {batch} "
            f"({type(error).__name__}: {_reason(error)}): see that train_on_batch works, then "
            "place it"
        ) from error
    _require_trainable(model)
    return traced


def _require_trainable(model: Any) -> None:
    if not model.trainable_variables:
        raise InputError("the model has no weights to train: set trainable=True on its layers")


def _is_plain(batch: Any) -> bool:
    """Whether a batch has neither sparse nor ragged tensors."""
    return all(isinstance(s, tf.TensorSpec) for s in tf.nest.flatten(batch) if s is not None)


class ByName:
    """Devices for operations of other functions of a model, by the names of the training step's.

    >>> devices = ByName({"m/dense/MatMul": "GPU:0", "m/dense/Add": "GPU:0", "m/out/Add": "GPU:1"})
    >>> devices("m/dense/MatMul"), devices("m/dense/Relu"), devices("elsewhere")
    ('GPU:0', 'GPU:0', None)
    """

    def __init__(self, device_of: Mapping[str, str]) -> None:
        self._device_of = dict(device_of)
        counts: dict[str, collections.Counter[str]] = {}
        for name, device in device_of.items():
            scope = name
            while "/" in scope:
                scope = scope.rpartition("/")[0]
                counts.setdefault(scope, collections.Counter())[device] += 1
        # The first of those that are most frequent: the order of the operations decides.
        self._device_of_scope = {s: c.most_common(1)[0][0] for s, c in counts.items() if "/" in s}

    def __call__(self, name: str) -> str | None:
        """Return the device for an operation, if it or its layer is known."""
        if name in self._device_of:
            return self._device_of[name]
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in self._device_of_scope:
                return self._device_of_scope[name]
        return None

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Give devices to what is traced meanwhile and has none."""
        graph = _private.graph_being_traced()
        if graph is None:
            yield
            return
        with graph.device(lambda operation: operation.device or self(operation.name) or ""):
            yield


class PlacedKeras:
    """The functions of a Keras model, exchanged for placed ones until `restore`."""

    def __init__(self, model: Any, batch: Any, function: Any, device_of: Mapping[str, str]) -> None:
        self.model = model
        self._batch = batch
        self._function = function
        self._state = _private_keras.compiled_state(model)
        self._devices = ByName(device_of)
        self._own = {name: vars(model)[name] for name in _STEPS if name in vars(model)}
        steps = {name: getattr(model, name) for name in _STEPS}
        model.train_step = self._train_step
        model.test_step = self._by_name(steps["test_step"])
        model.predict_step = self._by_name(steps["predict_step"])
        self._forget_functions()

    def _train_step(self, data: Any) -> Any:
        self._require_same_compilation()
        unpacked = keras.utils.unpack_x_y_sample_weight(data)
        data = keras.utils.pack_x_y_sample_weight(*unpacked)
        planned = keras.utils.pack_x_y_sample_weight(
            *keras.utils.unpack_x_y_sample_weight(self._batch)
        )
        try:
            tf.nest.assert_same_structure(planned, data)
            fits = all(
                spec.is_compatible_with(leaf)
                for spec, leaf in zip(tf.nest.flatten(planned), tf.nest.flatten(data), strict=True)
                if spec is not None
            )
        except (TypeError, ValueError):
            fits = False
        if not fits:
            shown = tf.nest.map_structure(
                lambda t: t if t is None else (t.dtype.name, *t.shape), data
            )
            raise InputError(
                f"the training step was placed for batches of {self._batch}, not of {shown}: place "
                "it with a batch like those that are fed, sample weights included"
            )
        return self._function(data)

    def _by_name(self, step: Any) -> Any:
        @tf.autograph.experimental.do_not_convert
        def placed_step(data: Any) -> Any:
            self._require_same_compilation()
            with self._devices.scope():
                return step(data)

        return placed_step

    def _require_same_compilation(self) -> None:
        now = _private_keras.compiled_state(self.model)
        if any(a is not b for a, b in zip(now, self._state, strict=True)):
            raise InputError(
                "the model was compiled again after it was placed: restore() it and place it anew"
            )

    def _forget_functions(self) -> None:
        """Make Keras trace its functions again: those it has hold the resources of before."""
        self.model.train_function = None
        self.model.test_function = None
        self.model.predict_function = None

    def restore(self) -> None:
        """Give the model its own functions back."""
        for name in _STEPS:
            vars(self.model).pop(name, None)
        vars(self.model).update(self._own)
        self._forget_functions()
