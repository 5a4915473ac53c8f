# SPDX-License-Identifier: Apache-2.0
"""PyTorch models, placed over several devices (extra ``baechi[torch]``).

>>> placed = baechi.torch.place(model, example_inputs, cluster="4x8GiB")  # doctest: +SKIP
>>> model(batch)  # as before, over four devices  # doctest: +SKIP
>>> placed.restore()  # doctest: +SKIP
"""

from baechi.torch.cost.graph_generator import ModelGraph, graph_of
from baechi.torch.cost.profiler import Costs, OpCost, estimate, measure
from baechi.torch.interop.device_map import device_map
from baechi.torch.interop.pt2 import graph_of_program, load_pt2
from baechi.torch.interop.split_spec import split_spec
from baechi.torch.placed import Placed
from baechi.torch.placing import assign, place
from baechi.torch.record.capture import capture
from baechi.torch.record.recorded_step import Capture
from baechi.torch.trace.exported import Exported, export
from baechi.torch.trace.graph import NotExportedError
from baechi.torch.verification import Verification

__all__ = [
    "Capture",
    "Costs",
    "Exported",
    "ModelGraph",
    "NotExportedError",
    "OpCost",
    "Placed",
    "Verification",
    "assign",
    "capture",
    "device_map",
    "estimate",
    "export",
    "graph_of",
    "graph_of_program",
    "load_pt2",
    "measure",
    "place",
    "split_spec",
]
