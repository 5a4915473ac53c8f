# SPDX-License-Identifier: Apache-2.0
"""TensorFlow training steps, placed over several devices (extra ``baechi[tensorflow]``).

>>> placed = baechi.tensorflow.place(model, x, y, cluster="4x8GiB")  # doctest: +SKIP
>>> model.fit(x, y)  # as before, over four devices  # doctest: +SKIP
>>> placed.restore()  # doctest: +SKIP

The stages of `place`, one by one, are `capture`, `measure`, `plan` and `place(captured, plan=...)`.
"""

from baechi.tensorflow.assigner import Landing, NotAsPlanned
from baechi.tensorflow.captured import Captured
from baechi.tensorflow.graph_generator import capture, without_barriers
from baechi.tensorflow.placing import Placed, place, plan
from baechi.tensorflow.profiler import measure
from baechi.tensorflow.run_metadata import profile_of_cost_graph, profile_of_runs

__all__ = [
    "Captured",
    "Landing",
    "NotAsPlanned",
    "Placed",
    "capture",
    "measure",
    "place",
    "plan",
    "profile_of_cost_graph",
    "profile_of_runs",
    "without_barriers",
]
