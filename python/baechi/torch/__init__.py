# SPDX-License-Identifier: Apache-2.0
"""PyTorch models, placed over several devices (extra ``baechi[torch]``).

>>> placed = baechi.torch.place(model, example_inputs, cluster="4x8GiB")  # doctest: +SKIP
>>> model(batch)  # as before, over four devices  # doctest: +SKIP
>>> placed.restore()  # doctest: +SKIP

The stages of `place`, one by one, are `capture`, `measure`, `plan` and `place(..., plan=...)`.
"""

from baechi.torch import versions  # noqa: F401, warns before others may fail

# isort: split
import baechi.torch.capture  # noqa: F401 the room; below its name becomes that of a function
from baechi.torch.cost.profiler import Costs, measure
from baechi.torch.interop.device_map import device_map
from baechi.torch.interop.pt2 import load_pt2
from baechi.torch.interop.split_spec import module_fqns_per_model_part, split_spec
from baechi.torch.placed import Placed
from baechi.torch.placing import place, plan
from baechi.torch.ranks.errors import RankError
from baechi.torch.record.capture import capture
from baechi.torch.record.recorded_step import Capture
from baechi.torch.verification import Verification
from baechi.torch.weights.deferred import deferred_weights

__all__ = [
    "Capture",
    "Costs",
    "Placed",
    "RankError",
    "Verification",
    "capture",
    "deferred_weights",
    "device_map",
    "load_pt2",
    "measure",
    "module_fqns_per_model_part",
    "place",
    "plan",
    "split_spec",
]
