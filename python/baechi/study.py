# SPDX-License-Identifier: Apache-2.0
"""Why is a plan as it is, and what would another cluster bring? (docs/explain.md).

Every function returns the document that the command of its name prints with ``--json``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from baechi import _core
from baechi.pipeline import budget_text, cluster_of, place_graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baechi.pipeline import ClusterLike

Document: TypeAlias = dict[str, Any]


class Explanation(Document):
    """The document of an explanation; ``str()`` gives it in words."""

    def __init__(self, document: Document, words: str) -> None:
        """Keep both."""
        super().__init__(document)
        self._words = words

    def __str__(self) -> str:
        return self._words


def explain(plan: _core.Plan, operator: str | None = None) -> Explanation:
    """Say why a step takes that long and who holds the memory; or why an operator is where it is.

    Args:
        plan: What to explain.
        operator: The name of an operator: its start, finish, memory and the step time on every
            device. Without it, the critical path and the peak of each device.

    Raises:
        InputError: The graph has no such operator; near names are in the message.

    """
    document = json.loads(_core.explain(plan, operator, json=True))
    return Explanation(document, _core.explain(plan, operator))


def _how(
    method: str, optimize: str, budget: str | float, threads: int, seed: int
) -> tuple[str, str, str, int, int]:
    return method, optimize, budget_text(budget), threads, seed


def what_if(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    clusters: Mapping[str, ClusterLike] | None = None,
    batch_sizes: Iterable[int] = (),
    standard: bool = True,
    optimize: str = "all",
    budget: str | float = "1s",
    threads: int = 1,
    seed: int = 1,
) -> list[Document]:
    """Plan anew for one device more or fewer, other memory, links, speeds and mini-batches.

    Args:
        graph: What to place.
        cluster: The cluster as it is, which comes first in the result.
        method: As for ``place_graph``; so are optimize, budget, threads and seed.
        clusters: More scenarios: clusters by name.
        batch_sizes: More scenarios: mini-batches, if the graph says for which its costs are.
        standard: The standard scenarios as well.
        optimize: What the Graph Optimizer does first.
        budget: For each scenario.
        threads: Threads of each search.
        seed: For every random choice.

    """
    others = [(name, cluster_of(other)) for name, other in (clusters or {}).items()]
    how = _how(method, optimize, budget, threads, seed)
    text = _core.what_if(
        graph, cluster_of(cluster), others, list(batch_sizes), standard=standard, how=how
    )
    scenarios: list[Document] = json.loads(text)["scenarios"]
    return scenarios


def sweep(
    graph: _core.Graph,
    cluster: ClusterLike,
    *,
    memory: Iterable[float] = (1.0,),
    devices: Iterable[int] = (),
    methods: Iterable[str] = ("auto",),
    optimize: str = "all",
    budget: str | float = "1s",
    threads: int = 1,
    seed: int = 1,
) -> list[Document]:
    """Plan every point of a grid.

    Args:
        graph: What to place.
        cluster: The devices, with all of their memory.
        memory: Parts of each device's memory, to a millionth.
        devices: Numbers of devices: the first ones, or more like the last one.
        methods: Some of ``methods()``.
        optimize: What the Graph Optimizer does first.
        budget: For each point.
        threads: Threads of each search.
        seed: For every random choice.

    """
    parts = [f"{part:.6f}" for part in memory]
    how = _how("auto", optimize, budget, threads, seed)
    text = _core.sweep(graph, cluster_of(cluster), parts, list(devices), list(methods), how=how)
    points: list[Document] = json.loads(text)["points"]
    return points


def least(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    of: str = "both",
    max_devices: int = 64,
    optimize: str = "all",
    budget: str | float = "200ms",
    threads: int = 1,
    seed: int = 1,
) -> Document:
    """Find the fewest devices and the least memory per device that there is a plan for.

    Args:
        graph: What to place.
        cluster: The devices; those with the most memory come first.
        method: As for ``place_graph``; so are optimize, budget, threads and seed.
        of: "devices", "memory" or "both"; what was not found is absent from the result.
        max_devices: Try more devices than the cluster has, up to so many.
        optimize: What the Graph Optimizer does first.
        budget: For each of about a dozen plans.
        threads: Threads of each search.
        seed: For every random choice.

    """
    if of not in ("devices", "memory", "both"):
        raise _core.InputError(f"of is 'devices', 'memory' or 'both', not {of!r}")
    text = _core.least(
        graph,
        cluster_of(cluster),
        devices=of != "memory",
        memory=of != "devices",
        max_devices=max_devices,
        how=_how(method, optimize, budget, threads, seed),
    )
    document: Document = json.loads(text)
    return document


def sensitivity(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    off_by: float = 0.2,
    samples: int = 20,
    optimize: str = "all",
    budget: str | float = "200ms",
    threads: int = 1,
    seed: int = 1,
) -> Document:
    """Place with costs that are off, replay with the true ones: what wrong profiles cost.

    Args:
        graph: With the true costs.
        cluster: The devices.
        method: As for ``place_graph``; so are optimize and budget.
        off_by: How far each compute time and tensor size may be off, 0 to 1.
        samples: How many wrong profiles.
        optimize: What the Graph Optimizer does first.
        budget: For each sample.
        threads: Samples at once; they change how long it takes, not the result.
        seed: Of the first wrong profile; the others count on from it.

    Raises:
        DoesNotFit: Nothing fits with the true costs.

    """
    how = _how(method, optimize, budget, threads, seed)
    fits, text = _core.sensitivity(graph, cluster_of(cluster), off_by, samples, how=how)
    if not fits:  # place_graph() says what is short, and what would do
        place_graph(graph, cluster, method, optimize=optimize, budget=budget, seed=seed)
        raise _core.InternalError(f"it fits after all: {text}")
    document: Document = json.loads(text)
    return document
