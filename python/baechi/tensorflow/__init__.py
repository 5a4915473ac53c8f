# SPDX-License-Identifier: Apache-2.0
"""TensorFlow training steps, placed over several devices (extra ``baechi[tensorflow]``).

>>> placed = baechi.tensorflow.place(model, x, y, cluster="4x8GiB")  # doctest: +SKIP
>>> model.fit(x, y)  # as before, over four devices  # doctest: +SKIP
>>> placed.restore()  # doctest: +SKIP

The stages of `place`, one by one, are `capture`, `measure`, `plan` and `place(captured, plan=...)`.
"""

from baechi.tensorflow.assigner import NotAsPlanned
from baechi.tensorflow.graph_generator import capture
from baechi.tensorflow.placing import place, plan
from baechi.tensorflow.profiler import measure

__all__ = ["NotAsPlanned", "capture", "measure", "place", "plan"]
