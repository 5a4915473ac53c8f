# SPDX-License-Identifier: Apache-2.0
"""Four logical CPU devices, and no GPU, for the tests of the TensorFlow side."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["*_test.py"]
else:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # it fuses what shares a device, and rounds otherwise
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )


@pytest.fixture
def exact() -> Iterator[None]:
    """Graphs run as they are: rewriting them changes the rounding."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
