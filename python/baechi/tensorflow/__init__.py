# SPDX-License-Identifier: Apache-2.0
"""TensorFlow training steps, placed over several devices (extra ``baechi[tensorflow]``).

>>> placed = baechi.tensorflow.place(model, x, y, cluster="4x8GiB")  # doctest: +SKIP
>>> model.fit(x, y)  # as before, over four devices  # doctest: +SKIP
>>> placed.restore()  # doctest: +SKIP
"""

from baechi.tensorflow.assigner import Landing, NotAsPlanned
from baechi.tensorflow.devices import detected_cluster, devices_for
from baechi.tensorflow.graph_generator import (
    Captured,
    capture,
    capture_saved_model,
    graph_of,
    without_barriers,
)
from baechi.tensorflow.keras_model import capture_model
from baechi.tensorflow.placing import Placed, assign, place, plan
from baechi.tensorflow.profiler import estimate, measure
from baechi.tensorflow.run_metadata import profile_of_cost_graph, profile_of_runs
from baechi.tensorflow.tracing import trace

__all__ = [
    "Captured",
    "Landing",
    "NotAsPlanned",
    "Placed",
    "assign",
    "capture",
    "capture_model",
    "capture_saved_model",
    "detected_cluster",
    "devices_for",
    "estimate",
    "graph_of",
    "measure",
    "place",
    "plan",
    "profile_of_cost_graph",
    "profile_of_runs",
    "trace",
    "without_barriers",
]
