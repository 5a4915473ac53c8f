# SPDX-License-Identifier: Apache-2.0
"""One call from a model and a cluster to a placed model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from baechi._core import Cluster, Graph, InputError, Plan
from baechi.pipeline import cluster_of, place_graph
from baechi.tensorflow import _private
from baechi.tensorflow.assigner import (
    Landing,
    NotAsPlanned,
    PlacedFunction,
    PlacedGraph,
    planned_devices,
)
from baechi.tensorflow.devices import detected_cluster, devices_for, presets_of
from baechi.tensorflow.keras_model import PlacedKeras, trace_training
from baechi.tensorflow.tracing import batch_size_of, spec_of, trace

if TYPE_CHECKING:
    from baechi.pipeline import ClusterLike


class Placed:
    """A model, function or graph that runs over several devices, until `restore`.

    Attributes:
        plan: What the placement comes from, if it was planned.
        function: The placed function; what Keras' fit calls for each batch.

    """

    def __init__(
        self, assigned: PlacedFunction | PlacedGraph, keras_part: PlacedKeras | None, plan: Any
    ) -> None:
        self.plan: Plan | None = plan
        self.function: Any = getattr(assigned, "function", None)
        self._assigned = assigned
        self._keras = keras_part

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the placed function."""
        if self.function is None:
            raise InputError("a graph runs in a session: make one now, after it was placed")
        return self.function(*arguments, **keywords)

    @property
    def device_of(self) -> dict[str, str]:
        """The TensorFlow device of every operation that has one, by name."""
        return self._assigned.expected

    @property
    def variable_devices(self) -> dict[str, str]:
        """The TensorFlow device of every variable, by name."""
        return getattr(self._assigned, "variable_devices", {})

    def check(self, *session_run: Any, **keywords: Any) -> Landing:
        """Read back where the runtime puts each operation; true when all is as planned.

        A function is not run for it. A TensorFlow 1 graph is: give a session, fetches and feeds.
        """
        return self._assigned.check(*session_run, **keywords)

    def restore(self) -> None:
        """Undo everything: variables are, and functions run, where they were before."""
        if self._keras is not None:
            self._keras.restore()
        self._assigned.restore()

    def __repr__(self) -> str:
        devices = len(set(self.device_of.values()))
        return f"<Placed {len(self.device_of)} operations on {devices} devices>"


def graph_of(traced: Any, costs: str, batch: int | None) -> Graph:
    """Return the ML graph of a traced function or of a TensorFlow 1 graph."""
    if _private.is_concrete(traced) and batch is not None:
        definition = _private.with_sizes(traced.graph, batch)
    else:
        definition = getattr(traced, "graph", traced).as_graph_def(add_shapes=True)
    return Graph.from_graph_def(definition.SerializeToString(), costs=costs, batch=batch)


def assign(
    traced: Any,
    device_of: Mapping[str, str],
    devices: Mapping[str, str],
    *,
    check: bool = True,
    plan: Plan | None = None,
) -> Placed:
    """Make a function or a graph run as a placement says.

    Args:
        traced: A ConcreteFunction of `trace`, or a tf.Graph of TensorFlow 1.
        device_of: The device of every operation, by name.
        devices: The TensorFlow device of every device that the placement names.
        check: Read back where the runtime puts each operation of a function, and raise
            NotAsPlanned if it is elsewhere.
        plan: What the placement comes from.

    """
    graph = getattr(traced, "graph", traced)
    planned = planned_devices(graph, device_of, devices)
    if not _private.is_concrete(traced):
        return Placed(PlacedGraph(graph, planned), None, plan)
    assigned = PlacedFunction(traced, planned)
    if check and not (found := assigned.check()):
        assigned.restore()
        raise NotAsPlanned(f"{found}; check=False runs it nevertheless")
    return Placed(assigned, None, plan)


def place(
    target: Any,
    *inputs: Any,
    cluster: ClusterLike = "auto",
    profile: str = "estimate",
    batch: int | None = None,
    dynamic_batch: bool = True,
    method: str = "auto",
    budget: str | float = "1s",
    devices: Sequence[str] | None = None,
    check: bool = True,
    **options: Any,
) -> Placed:
    """Plan where each operation of a training step runs, and make it run so.

    Args:
        target: A compiled Keras model, a tf.function, a ConcreteFunction, or a TensorFlow 1 graph.
        inputs: For a model: x and y (and sample weights) of a batch, or a dataset of batches. For
            a function: its arguments. Tensors, arrays or TensorSpecs; nothing for the others.
        cluster: "auto" for the logical devices of this process, or what `baechi.place_graph` takes.
        profile: "estimate" by a roofline, or presets by device kind such as "gpu=rtx3090".
        batch: Size to plan for where shapes leave one open; by default that of the inputs.
        dynamic_batch: Trace a model with an open batch size, so that a last batch may be smaller.
        method: One of `baechi.methods()`.
        budget: How long to search for the plan.
        devices: The TensorFlow device of each of the cluster's, such as "GPU:0".
        check: Read back where each operation is put; NotAsPlanned if not where it was planned.
        options: More for `baechi.place_graph`.

    Raises:
        DoesNotFit: No plan fits the cluster.
        InputError: The target cannot be placed; the message says what to do.
        NotAsPlanned: The runtime put operations elsewhere.

    """
    _private.require_tested()
    if cluster == "auto":
        found, physical = detected_cluster()
        names = devices_for(found, devices or physical)
    else:
        found = cluster_of(cluster)
        names = devices_for(found, devices)
    is_model = isinstance(target, keras.Model)
    if is_model:
        example = _batch_of(inputs)
        traced = trace_training(target, spec_of(example, dynamic_batch))
    else:
        example = inputs
        traced = target if isinstance(target, tf.Graph) else trace(target, *inputs)
    graph = graph_of(traced, _costs(profile, found), batch or batch_size_of(example))
    plan = place_graph(graph, found, method=method, budget=budget, **options)
    placed = assign(traced, plan.device_of, names, check=check, plan=plan)
    if is_model:
        spec = spec_of(example, dynamic_batch)
        placed._keras = PlacedKeras(target, spec, placed.function, placed.device_of)
    return placed


def _costs(profile: str, cluster: Cluster) -> str:
    if profile != "estimate":
        return profile
    return ",".join(f"{kind}={preset}" for kind, preset in presets_of(cluster).items())


def _batch_of(inputs: tuple[Any, ...]) -> Any:
    """Return x, y and sample weights as Keras hands them to a training step."""
    if not inputs:
        raise InputError(
            "a model is placed for batches of some shape: give one, place(model, x, y), or the "
            "dataset that fit gets"
        )
    if len(inputs) == 1 and isinstance(inputs[0], tf.data.Dataset):
        return inputs[0].element_spec
    if len(inputs) == 1 and isinstance(inputs[0], tuple):
        return inputs[0]
    return keras.utils.pack_x_y_sample_weight(*inputs)
