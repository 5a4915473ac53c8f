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
from baechi.torch.capture.step import Step
from baechi.torch.capture.trace import capture
from baechi.torch.costs.costs import Costs
from baechi.torch.costs.measured import measure
from baechi.torch.interop.device_map import device_map
from baechi.torch.interop.split_spec import module_fqns_per_model_part, split_spec
from baechi.torch.placed import Placed
from baechi.torch.placing import place, plan
from baechi.torch.ranks.errors import RankError
from baechi.torch.search import Search
from baechi.torch.verification import Verification

__all__ = [
    "Costs",
    "Placed",
    "RankError",
    "Search",
    "Step",
    "Verification",
    "capture",
    "device_map",
    "measure",
    "module_fqns_per_model_part",
    "place",
    "plan",
    "split_spec",
]
