# SPDX-License-Identifier: Apache-2.0
"""One call from a model and a cluster to a placed model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baechi._core import Cluster, InputError, Plan, Profile, check_options
from baechi.brief_errors import briefly
from baechi.pipeline import cluster_of, place_graph
from baechi.presets import presets_of
from baechi.progress import stage, told
from baechi.reports import report
from baechi.summary import Summary, on_one_device, summary
from baechi.tensorflow import _private, versions
from baechi.tensorflow.assigner import (
    Landing,
    NotAsPlanned,
    PlacedFunction,
    PlacedGraph,
    planned_devices,
)
from baechi.tensorflow.captured import Captured
from baechi.tensorflow.devices import DEFAULT_PRESET, detected_cluster, devices_for
from baechi.tensorflow.graph_generator import capture, graph_of
from baechi.tensorflow.keras_model import PlacedKeras
from baechi.tensorflow.pins import pinned, without_second_runs
from baechi.tensorflow.profiler import measure
from baechi.tensorflow.request import (
    check_devices,
    check_kinds,
    check_plan,
    check_profile,
    check_runs_once,
)

if TYPE_CHECKING:
    import os
    from typing import TypeAlias

    from baechi.pipeline import ClusterLike

    ProfileLike: TypeAlias = (
        str | os.PathLike[str] | Profile | list[str | os.PathLike[str] | Profile]
    )


class Placed:
    """A model, function or graph that runs over several devices, until `restore`.

    Attributes:
        plan: What the placement comes from, if it was planned.
        function: The placed function; what Keras' fit calls for each batch.
        runs_on: TensorFlow's device for each of the cluster's.

    `print(placed)` shows what a step takes, and what every device does and holds.

    """

    def __init__(
        self,
        assigned: PlacedFunction | PlacedGraph,
        keras_part: PlacedKeras | None,
        plan: Any,
        runs_on: Mapping[str, str],
    ) -> None:
        self.plan: Plan | None = plan
        self.runs_on = dict(runs_on)
        self._alone = ""
        self.function: Any = getattr(assigned, "function", None)
        self._assigned = assigned
        self._keras = keras_part

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the placed function."""
        if self.function is None:
            raise InputError("a graph runs in a session: make one now, after it was placed")
        constants = _private.traced_constants(self.function, len(arguments))
        return self.function(*arguments, **{**constants, **keywords})

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

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Show the plan as one HTML page, as `baechi.report` does; return the path."""
        if self.plan is None:
            raise InputError(
                "this was placed without a plan: assign(..., plan=plan) says what to report"
            )
        return report(self.plan, path)

    def _summary(self) -> Summary:
        if self.plan is not None and not self._alone:
            self._alone = on_one_device(self.plan)
        model = None if self._keras is None else self._keras.model
        name = "A graph" if self.function is None else "A function"
        name = name if model is None else type(model).__name__
        return summary(name, self.plan, self.runs_on, {}, self._alone)

    def __str__(self) -> str:
        return str(self._summary())

    def _repr_html_(self) -> str:
        return self._summary().html()

    def __repr__(self) -> str:
        devices = len(set(self.device_of.values()))
        return f"<Placed {len(self.device_of)} operations on {devices} devices>"


@stage("assigning")
def assign(
    captured: Any,
    device_of: Mapping[str, str],
    devices: Mapping[str, str],
    *,
    check: bool = True,
    plan: Plan | None = None,
) -> Placed:
    """Make a function or a graph run as a placement says.

    Args:
        captured: What `capture`, `capture_model` or `trace` returned, or a tf.Graph of
            TensorFlow 1.
        device_of: The device of every operation, by name.
        devices: The TensorFlow device of every device that the placement names.
        check: Read back where the runtime puts each operation of a function, and raise
            NotAsPlanned if it is elsewhere.
        plan: What the placement comes from.

    """
    traced = captured
    if isinstance(captured, Captured):
        traced = captured.graph if captured.function is None else captured.function
    graph = getattr(traced, "graph", traced)
    planned = planned_devices(graph, device_of, devices)
    if not _private.is_concrete(traced):
        return Placed(PlacedGraph(graph, planned), None, plan, devices)
    assigned = PlacedFunction(traced, planned)
    try:
        if check and not (found := assigned.check()):
            raise NotAsPlanned(f"{found}; check=False runs it nevertheless")
        placed = Placed(assigned, None, plan, devices)
        if isinstance(captured, Captured) and captured.model is not None:
            placed._keras = PlacedKeras(
                captured.model, captured.signature, placed.function, placed.device_of
            )
    except BaseException:
        assigned.restore()
        raise
    return placed


@briefly
@told
def plan(
    target: Any,
    *inputs: Any,
    cluster: ClusterLike = "auto",
    profile: ProfileLike = "estimate",
    batch: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    method: str = "auto",
    budget: str | float = "1s",
    devices: Sequence[str] | None = None,
    fetches: Any = None,
    feed_dict: Any = None,
    verbose: bool | None = None,  # noqa: ARG001 what `told` reads
    **options: Any,
) -> Plan:
    """Plan where each operation of a training step would run; arguments are those of `place`.

    The cluster need not be of devices that this process has.
    """
    run = {"fetches": fetches, "feed_dict": feed_dict}
    options = {"method": method, "budget": budget, **options}
    check_options("plan", options, list(inspect.signature(place).parameters))
    check_devices(devices)
    check_profile(profile)
    step = _Step(target, inputs, run, batch=batch, class_weight=class_weight)
    found, names = _cluster(cluster, devices, needed=profile == "measure")
    return step.plan(found, names, profile, options)


@briefly
@told
def place(
    target: Any,
    *inputs: Any,
    cluster: ClusterLike = "auto",
    profile: ProfileLike = "estimate",
    plan: Plan | None = None,
    batch: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    dynamic_batch: bool = True,
    method: str = "auto",
    budget: str | float = "1s",
    devices: Sequence[str] | None = None,
    check: bool = True,
    fetches: Any = None,
    feed_dict: Any = None,
    verbose: bool | None = None,  # noqa: ARG001 what `told` reads
    **options: Any,
) -> Placed:
    """Plan where each operation of a training step runs, and make it run so.

    Args:
        target: A compiled Keras model, a function, a tf.function, a ConcreteFunction, what
            `capture` returned, or a TensorFlow 1 graph.
        inputs: For a model: x and y (and sample weights) of a batch, or the dataset, PyDataset or
            generator that fit gets. For a function: its arguments. Tensors, arrays or TensorSpecs;
            nothing for the others.
        cluster: "auto" for the logical devices of this process, or what `baechi.place_graph` takes.
        profile: "estimate" by a roofline, "measure" by running a few steps on copies of the weights
            (needs inputs with values), a Profile or its file, or presets such as "gpu=rtx3090".
        plan: A plan of the captured step, made before; nothing is planned anew.
        batch: Size to plan for where shapes leave one open; by default that of the inputs.
        class_weight: What the model's fit gets as such.
        dynamic_batch: Trace a model with an open batch size, so that a last batch may be smaller.
        method: One of `baechi.methods()`.
        budget: How long to search for the plan.
        devices: The TensorFlow device of each of the cluster's, such as "GPU:0".
        check: Read back where each operation is put; NotAsPlanned if not where it was planned.
        fetches: What a session runs of a TensorFlow 1 graph.
        feed_dict: What that is fed, to measure it.
        verbose: Say on stderr what is done, where that takes more than a second, and what came of
            it; by default on a terminal and in a notebook.
        options: More for `baechi.place_graph`.

    Raises:
        DoesNotFit: No plan fits the cluster.
        InputError: The target cannot be placed; the message says what to do.
        NotAsPlanned: The runtime put operations elsewhere.

    """
    run = {"fetches": fetches, "feed_dict": feed_dict}
    options = {"method": method, "budget": budget, **options}
    check_options("place", options, list(inspect.signature(place).parameters))
    check_runs_once(options)
    check_devices(devices)
    check_profile(profile)
    check_plan(plan)
    choices = {"batch": batch, "class_weight": class_weight, "dynamic_batch": dynamic_batch}
    step = _Step(target, inputs, run, **choices)
    if plan is not None:
        names = devices_for(plan.cluster, devices)
    else:
        found, names = _cluster(cluster, devices, needed=True)
        plan = step.plan(found, names, profile, options, once=True)
    return assign(step.captured, plan.device_of, names, check=check, plan=plan)


class _Step:
    """A captured training step, and what a session runs of it."""

    def __init__(self, target: Any, inputs: Any, run: Mapping[str, Any], **options: Any) -> None:
        versions.require_tested()
        self._run = run
        if isinstance(target, Captured):
            if inputs:
                raise InputError(
                    "the step is captured already, with its inputs: place(captured) takes no "
                    "others; capture(model, x, y) anew for other ones"
                )
            self.captured = target
        else:
            traced = stage("tracing")(capture)
            self.captured = traced(target, *inputs, fetches=run["fetches"], **options)

    def plan(
        self,
        cluster: Cluster,
        devices: Mapping[str, str],
        profile: ProfileLike,
        options: Any,
        *,
        once: bool = False,
    ) -> Plan:
        """Plan it; `once`: for a placed step, which runs no operation a second time."""
        costs: Any = profile
        if isinstance(profile, str) and profile == "estimate":
            kinds = presets_of(cluster, DEFAULT_PRESET).items()
            costs = ",".join(f"{kind}={preset}" for kind, preset in kinds)
        elif isinstance(profile, str) and profile == "measure":
            costs = self._measured(cluster, devices)
        return self._planned(cluster, devices, costs, options, once=once)

    @stage("planning")
    def _planned(
        self,
        cluster: Cluster,
        devices: Mapping[str, str],
        costs: Any,
        options: Any,
        *,
        once: bool,
    ) -> Plan:
        graph = graph_of(self.captured, costs)
        if once and options.get("order", "none") != "none":
            graph = without_second_runs(graph)
        check_kinds(graph, cluster, costs)
        graph = pinned(graph, self.captured.asked, cluster, devices)
        return place_graph(graph, cluster, **{"order": "none", **options})

    @stage("measuring")
    def _measured(self, cluster: Cluster, devices: Mapping[str, str]) -> Profile:
        kinds: dict[str, str] = {}
        for device in cluster.devices:
            ours = devices[device.name].split("/device:")[-1].split(":")[0]
            if kinds.setdefault(ours, device.kind) != device.kind:
                raise InputError(
                    f"devices of kinds {kinds[ours]!r} and {device.kind!r} cannot be told apart "
                    "here: measure on each and give both, profile=[...]"
                )
        if self.captured.function is None:
            return measure(self.captured, kinds=kinds, **self._run)
        return measure(self.captured, kinds=kinds)


def _cluster(
    cluster: ClusterLike, devices: Sequence[str] | None, *, needed: bool
) -> tuple[Cluster, dict[str, str]]:
    """Return a cluster, and the TensorFlow devices of its own if these are needed."""
    if cluster == "auto":
        found, physical = detected_cluster()
        return found, devices_for(found, devices or physical)
    found = cluster_of(cluster)
    try:
        return found, devices_for(found, devices)
    except InputError:
        if needed or devices is not None:
            raise
        return found, {}
