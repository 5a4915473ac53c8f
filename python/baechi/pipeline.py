# SPDX-License-Identifier: Apache-2.0
"""From a graph and a cluster to a plan, in one call."""

from __future__ import annotations

import copyreg
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baechi import _core, progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from typing_extensions import Unpack

    from baechi.options import PlaceOptions

    # A cluster, one line such as "4x8GiB", a preset's name, or the path of a file.
    ClusterLike: TypeAlias = _core.Cluster | str | os.PathLike[str]


class DoesNotFit(Exception):
    """No plan fits the cluster; says which operator, how many bytes, and what would do."""

    __module__ = "baechi"  # where a user finds it

    operator: str | None = None
    proved = False
    smallest_capacity: int | None = None
    smallest_device_count: int | None = None
    step_with_recomputation_ns: int | None = None

    def __init__(self, answer: _core.Unplaceable | str, short_by: int = 0) -> None:
        """Take over what the planner found, or a reason and the missing bytes."""
        super().__init__(str(answer))
        if isinstance(answer, str):
            self.reason, self.short_by = answer, short_by
            return
        self.operator = answer.operator
        self.short_by = answer.short_by
        self.proved = answer.proved
        self.reason = answer.reason
        self.smallest_capacity = answer.smallest_capacity
        self.smallest_device_count = answer.smallest_device_count
        self.step_with_recomputation_ns = answer.step_with_recomputation_ns

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled as a call with its args, and these are words, not an answer.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def described(value: object) -> str:
    """Write a value that was not expected: its type, and how it begins."""
    words = repr(value)
    return f"{type(value).__name__} {words if len(words) <= 60 else words[:57] + '...'}"


def graph_given(graph: object) -> _core.Graph:
    """Return the argument `graph` if it is one."""
    if isinstance(graph, _core.Graph):
        return graph
    raise _core.InputError(
        f"graph: expected a baechi.Graph, found {described(graph)}; baechi.Graph.load(path) reads "
        "one from a file, baechi.generate(name) makes one up"
    )


def graphs_given(graphs: object) -> list[_core.Graph]:
    """Return the argument `sizes` if it is graphs."""
    if isinstance(graphs, (list, tuple)):
        return [graph_given(graph) for graph in graphs]
    raise _core.InputError(f"sizes: expected a list of baechi.Graph, found {described(graphs)}")


def plan_given(plan: object) -> _core.Plan:
    """Return the argument `plan` if it is one."""
    if isinstance(plan, _core.Plan):
        return plan
    raise _core.InputError(
        f"plan: expected a baechi.Plan, found {described(plan)}; baechi.place_graph(graph, "
        "cluster) makes one, baechi.Plan.load(path, graph) reads one"
    )


def cluster_of(cluster: ClusterLike) -> _core.Cluster:
    """Make a cluster of what stands for one."""
    if isinstance(cluster, _core.Cluster):
        return cluster
    if isinstance(cluster, str | os.PathLike):
        return _core.Cluster(os.fspath(cluster))
    raise _core.InputError(
        f"cluster: expected a baechi.Cluster, a line such as '2x24GiB+2x8GiB@0.6' or the path of a "
        f"file, found {described(cluster)}"
    )


def with_fields(cluster: _core.Cluster, **fields: Any) -> _core.Cluster:
    """Return a cluster with other values of some fields of its file."""
    return _core.Cluster.from_json(json.dumps({**json.loads(cluster.to_json()), **fields}))


def _placement_given(device_of: object) -> dict[str, str]:
    if isinstance(device_of, Mapping):
        return dict(device_of)
    raise _core.InputError(
        "device_of: expected a dictionary with the device of every operator by name, such as "
        f"plan.device_of, found {described(device_of)}"
    )


def place_graph(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    sizes: Sequence[_core.Graph] = (),
    *,
    verbose: bool | None = None,
    **options: Unpack[PlaceOptions],
) -> _core.Plan:
    """Decide which operator runs where, so that a step is short and memory suffices.

    Ctrl-C ends the search: the best plan that it has found is returned, with a warning.

    Args:
        graph: What to place.
        cluster: The devices: a Cluster, one line such as "2x24GiB+2x8GiB@0.6", or a file.
        method: One of ``methods()``.
        sizes: The same graph at other batch sizes: what a part of the ``mini_batch`` costs lies
            between them.
        verbose: Whether a search that takes over a second says on stderr how far it is; None: on a
            terminal, and in a notebook.
        options: Those of ``baechi.options.PlaceOptions``, which says what each does.

    Raises:
        DoesNotFit: No plan was found, with the reason and what would fit.
        InputError: The request cannot be right.
        KeyboardInterrupt: Ctrl-C came before there was a plan.

    """
    given, devices = graph_given(graph), cluster_of(cluster)
    with progress.searching("placing", verbose) as tell:
        answer = _core.place_graph(
            given, devices, {"method": method, **options}, graphs_given(sizes), tell
        )
    if isinstance(answer, _core.Unplaceable):
        raise DoesNotFit(answer)
    return answer


def optimize_graph(
    graph: _core.Graph,
    cluster: ClusterLike,
    optimize: str = "all",
    *,
    paper: bool = False,
    coplacement: str = "cut",
) -> _core.Optimized:
    """Run the Graph Optimizer alone, as ``place_graph`` does for the paper's methods."""
    return _core.optimize_graph(
        graph_given(graph), cluster_of(cluster), optimize, paper, coplacement
    )


def simulate(
    graph: _core.Graph, cluster: ClusterLike, device_of: Mapping[str, str], order: str = "none"
) -> _core.Plan:
    """Replay a placement of yours: device by operator name. It may run over: see ``Plan.fits``."""
    placement = _placement_given(device_of)
    return _core.simulate(graph_given(graph), cluster_of(cluster), placement, order)


def lower_bounds(graph: _core.Graph, cluster: ClusterLike) -> dict[str, int]:
    """Nanoseconds that no placement's step time can be below, by the name of the bound."""
    return _core.lower_bounds(graph_given(graph), cluster_of(cluster))
