# SPDX-License-Identifier: Apache-2.0
"""Places machine learning graphs on small clusters of memory-limited devices.

>>> import baechi
>>> graph = baechi.generate("fork-join", operators=12)
>>> plan = baechi.place_graph(graph, "2x8GiB", method="m-etf")
>>> plan.fits
True

Times are integer nanoseconds, memory is integer bytes. ``import baechi`` loads the C++ core alone:
no framework and no NumPy. The framework adapters are the subpackages ``baechi.torch`` and
``baechi.tensorflow``, imported on their own; ``baechi.networkx`` converts from and to NetworkX.
"""

from typing import TYPE_CHECKING

from baechi import (
    arguments,  # noqa: F401 before all else: it explains what the core refuses
    notebook,  # noqa: F401 gives the core's types what notebooks show
)
from baechi._core import (
    Cluster,
    Device,
    Graph,
    GraphBuilder,
    InputError,
    InternalError,
    MethodOutcome,
    Operator,
    OperatorProfile,
    Optimized,
    OptimizerPass,
    Plan,
    Profile,
    Simulator,
    Unplaceable,
    device_presets,
    export_formats,
    generate,
    graph_facts,
    graph_from_arrays,
    graph_to_arrays,
    methods,
    models,
    roofline_time,
    verify,
)
from baechi._core import version as _version
from baechi.options import PlaceOptions, StudyOptions
from baechi.pipeline import DoesNotFit, lower_bounds, optimize_graph, place_graph, simulate
from baechi.reports import export_onnx, export_plan, report, trace
from baechi.study import Explanation, device_worth, explain, least, sensitivity, sweep, what_if

__all__ = [
    "Cluster",
    "Device",
    "DoesNotFit",
    "Estimate",
    "Explanation",
    "Graph",
    "GraphBuilder",
    "InputError",
    "InternalError",
    "MethodOutcome",
    "Operator",
    "OperatorProfile",
    "Optimized",
    "OptimizerPass",
    "PlaceOptions",
    "Plan",
    "Profile",
    "Simulator",
    "StudyOptions",
    "Unplaceable",
    "__version__",
    "device_presets",
    "device_worth",
    "estimate",
    "explain",
    "export_formats",
    "export_onnx",
    "export_plan",
    "generate",
    "graph_facts",
    "graph_from_arrays",
    "graph_to_arrays",
    "least",
    "lower_bounds",
    "methods",
    "models",
    "optimize_graph",
    "place_graph",
    "report",
    "roofline_time",
    "sensitivity",
    "simulate",
    "sweep",
    "trace",
    "verify",
    "what_if",
]

__version__ = _version()

_GONE = {
    "objectives": "place_graph makes the step of our simulator short",
    "place_for": "place_graph makes the step of our simulator short",
    "score": "simulate says what a placement takes",
}

if TYPE_CHECKING:
    from baechi.estimates.answer import Estimate, estimate
else:

    def __getattr__(name: str) -> object:
        """Import what few ask for; say what does now what a name of an earlier version did."""
        if name in ("Estimate", "estimate"):
            from baechi.estimates import answer

            return getattr(answer, name)
        if name in _GONE:
            raise AttributeError(f"baechi.{name} is no longer there: {_GONE[name]}")
        raise AttributeError(f"module 'baechi' has no attribute {name!r}")
