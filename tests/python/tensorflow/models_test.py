# SPDX-License-Identifier: Apache-2.0
"""The paper's models train the same over four devices as over one, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import baechi.tensorflow
import keras
import numpy as np
import pytest

from models.tensorflow import MODELS, inception_v3

BATCH = 4
METHODS = {"mlp": "auto", "transformer": "m-etf", "gnmt": "m-sct", "inception-v3": "random"}


def small(name: str) -> tuple[Any, Any, Any]:
    """Return a small model, the same every time, and a batch."""
    entry = MODELS[name]
    model = entry.compiled(entry.small())
    return model, *entry.inputs(entry.small(), BATCH)


def losses(model: Any, x: Any, y: Any, steps: int = 5) -> list[float]:
    """Train on one batch again and again."""
    history = model.fit(x, y, batch_size=BATCH, epochs=steps, verbose=0, shuffle=False).history
    return [float(loss) for loss in history["loss"]]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", METHODS)
def test_five_steps_are_the_same_as_on_one_device(name: str) -> None:
    plain, x, y = small(name)
    expected = losses(plain, x, y)
    assert expected[-1] < expected[0]
    model, x, y = small(name)
    placed = baechi.tensorflow.place(
        model, x, y, cluster="4x1MiB", method=METHODS[name], bounds=False, budget="100ms"
    )
    found = placed.check()
    assert found, found
    assert found.checked > 0.9 * len(placed.device_of)
    if METHODS[name] != "auto":
        assert len(set(placed.variable_devices.values())) >= 3
    assert losses(model, x, y) == expected
    for ours, theirs in zip(model.weights, plain.weights, strict=True):
        assert (ours.numpy() == theirs.numpy()).all(), ours.path


@pytest.fixture
def doubles() -> Iterator[None]:
    """Models are made in double precision: training multiplies a rounding error by thousands."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # once one is set, it does not follow
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("name", METHODS)
def test_with_rewritten_graphs_losses_agree_within_rounding(name: str) -> None:
    plain, x, y = small(name)
    assert plain.weights[0].dtype == "float64"
    model, x, y = small(name)
    baechi.tensorflow.place(
        model, x, y, cluster="4x2MiB", method=METHODS[name], bounds=False, budget="100ms"
    )
    np.testing.assert_allclose(losses(model, x, y), losses(plain, x, y), rtol=1e-9)


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
def test_models_are_saved_and_loaded(name: str, tmp_path: Any) -> None:
    model, x, _ = small(name)
    expected = model(x).numpy()
    assert expected.shape == (BATCH, x[0].shape[1], 20)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded(x).numpy() == expected).all()


def test_models_have_the_published_sizes() -> None:
    assert inception_v3.build(inception_v3.Config()).count_params() == 23_851_784
    entry = MODELS["transformer"]
    for shared, size in ((False, 90_218_496), (True, 59_498_496)):
        config = entry.config(shared_embedding=shared)
        model = entry.build(config)
        model(entry.inputs(config, 1)[0])
        assert model.count_params() == size
