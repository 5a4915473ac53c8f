# SPDX-License-Identifier: Apache-2.0
"""Why is a plan as it is, and what would another cluster bring? (docs/how_to/explain.md).

Every function returns the document that the command of its name prints with ``--json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from baechi import _core
from baechi.notebook import timeline
from baechi.pipeline import DoesNotFit, cluster_of, graph_given, graphs_given, plan_given
from baechi.tables import Table, in_bytes, in_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from baechi.options import StudyOptions
    from baechi.pipeline import ClusterLike

Document: TypeAlias = dict[str, Any]


class Explanation(Document):
    """The document of an answer; ``str()`` and a notebook give it in words, or as a table.

    In a notebook the timeline of a plan stands above its explanation.
    """

    def __init__(
        self, document: Document, shown: str | Table, plan: _core.Plan | None = None
    ) -> None:
        """Keep them."""
        super().__init__(document)
        self._shown, self._plan = shown, plan

    def __str__(self) -> str:
        return str(self._shown)

    __repr__ = __str__  # the document of a large graph has a line for each operator

    def _repr_html_(self) -> str:
        import html

        if isinstance(self._shown, Table):
            return self._shown.html()
        picture = timeline(self._plan) if self._plan is not None else ""
        return f"<div>{picture}<pre>{html.escape(self._shown)}</pre></div>"


class Rows(list[Document]):
    """Documents of plans; ``str()`` and a notebook show a table with a row for each."""

    def __str__(self) -> str:
        return str(_table(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _table(self).html()


_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("name", "", str),
    ("memory", "memory", "{:g}x".format),
    ("capacity", "memory", lambda least: f"{-(-least // 1024)} KiB"),  # a plan fits in so much
    ("devices", "devices", str),
    ("requested_method", "method", str),
    ("makespan", "step", in_time),
    ("gap", "gap", _core.share_text),
    ("highest_peak", "highest peak", in_bytes),
    ("method", "by", str),
)


def _table(rows: Sequence[Document]) -> Table:
    """Show what is known of plans; why one does not fit is in its document."""
    known = [c for c in _COLUMNS if c[0] == "makespan" or any(c[0] in row for row in rows)]
    cells = [
        [
            show(row[key]) if key in row else "does not fit" if key == "makespan" else ""
            for key, _, show in known
        ]
        for row in rows
    ]
    return Table([title for _, title, _ in known], cells)


def _steps(steps: Mapping[str, int | None]) -> Table:
    """Show steps by name, None where nothing fits."""
    return _table(
        [{"name": name} | ({} if ns is None else {"makespan": ns}) for name, ns in steps.items()]
    )


def explain(plan: _core.Plan, operator: str | None = None) -> Explanation:
    """Say why a step takes that long and who holds the memory; or why an operator is where it is.

    Args:
        plan: What to explain.
        operator: The name of an operator: its start, finish, memory and the step time on every
            device. Without it, the critical path and the peak of each device.

    Raises:
        InputError: The graph has no such operator; near names are in the message.

    """
    document = json.loads(_core.explain(plan_given(plan), operator, json=True))
    words = _core.explain(plan, operator)
    return Explanation(document, words, plan if operator is None else None)


def what_if(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    sizes: Sequence[_core.Graph] = (),
    clusters: Mapping[str, ClusterLike] | None = None,
    batch_sizes: Iterable[int] = (),
    standard: bool = True,
    **options: Unpack[StudyOptions],
) -> Rows:
    """Plan anew for one device more or fewer, other memory, links, speeds and mini-batches.

    Args:
        graph: What to place.
        cluster: The cluster as it is, which comes first in the result.
        method: One of ``methods()``.
        sizes: The same graph at other batch sizes, as ``place_graph`` has it.
        clusters: More scenarios: clusters by name.
        batch_sizes: More scenarios: mini-batches, if the graph says for which its costs are.
        standard: The standard scenarios as well.
        options: Those of ``baechi.options.StudyOptions`` for each scenario; the budget is 200ms by
            default.

    """
    others = [(name, cluster_of(other)) for name, other in (clusters or {}).items()]
    how = {"method": method, **options}
    text = _core.what_if(
        graph_given(graph),
        cluster_of(cluster),
        graphs_given(sizes),
        others,
        list(batch_sizes),
        standard,
        how,
    )
    return Rows(json.loads(text)["scenarios"])


def device_worth(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    sizes: Sequence[_core.Graph] = (),
    **options: Unpack[StudyOptions],
) -> Explanation:
    """Say what each device of a cluster buys, and which of them are enough.

    Args:
        graph: What to place.
        cluster: At most 32 devices.
        method: One of ``methods()``.
        sizes: The same graph at other batch sizes, as ``place_graph`` has it.
        options: Those of ``baechi.options.StudyOptions`` for each plan.

    """
    text = _core.device_worth(
        graph_given(graph), cluster_of(cluster), graphs_given(sizes), {"method": method, **options}
    )
    worth = json.loads(text)
    steps = {"as it is": worth.get("makespan")} | {
        f"without {each['name']}": each.get("makespan_without") for each in worth.get("devices", ())
    }
    return Explanation(worth, _steps(steps))


def sweep(
    graph: _core.Graph,
    cluster: ClusterLike,
    *,
    sizes: Sequence[_core.Graph] = (),
    memory: Iterable[float] = (1.0,),
    devices: Iterable[int] = (),
    methods: Iterable[str] = ("auto",),
    **options: Unpack[StudyOptions],
) -> Rows:
    """Plan every point of a grid.

    Args:
        graph: What to place.
        cluster: The devices, with all of their memory.
        sizes: The same graph at other batch sizes, as ``place_graph`` has it.
        memory: Parts of each device's memory, to a millionth.
        devices: Numbers of devices: the first ones, or more like the last one.
        methods: Some of ``methods()``.
        options: Those of ``baechi.options.StudyOptions`` for each point.

    """
    for name, values in (("memory", memory), ("devices", devices), ("methods", methods)):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise _core.InputError(f"{name}: expected a list, such as [{values!r}], not {values!r}")
    parts = [f"{part:.6f}" for part in memory]
    how = dict(options)
    text = _core.sweep(
        graph_given(graph),
        cluster_of(cluster),
        graphs_given(sizes),
        parts,
        list(devices),
        list(methods),
        how,
    )
    return Rows(json.loads(text)["points"])


def least(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    sizes: Sequence[_core.Graph] = (),
    of: str = "both",
    max_devices: int = 64,
    **options: Unpack[StudyOptions],
) -> Explanation:
    """Find the fewest devices and the least memory per device that there is a plan for.

    Args:
        graph: What to place.
        cluster: The devices; those with the most memory come first.
        method: One of ``methods()``.
        sizes: The same graph at other batch sizes, as ``place_graph`` has it.
        of: "devices", "memory" or "both"; what was not found is absent from the result.
        max_devices: Try more devices than the cluster has, up to so many.
        options: Those of ``baechi.options.StudyOptions`` for each of about a
            dozen plans; the budget is 200ms by default.

    """
    if of not in ("devices", "memory", "both"):
        raise _core.InputError(f"of is 'devices', 'memory' or 'both', not {of!r}")
    text = _core.least(
        graph_given(graph),
        cluster_of(cluster),
        graphs_given(sizes),
        devices=of != "memory",
        memory=of != "devices",
        max_devices=max_devices,
        options={"method": method, **options},
    )
    document = json.loads(text)
    found = {"devices": "fewest devices", "memory": "least memory per device"}
    rows = [
        {"name": found[key], **least, **({"devices": least["count"]} if "count" in least else {})}
        for key, least in document.items()
    ]
    return Explanation(document, _table(rows))


def sensitivity(
    graph: _core.Graph,
    cluster: ClusterLike,
    method: str = "auto",
    *,
    sizes: Sequence[_core.Graph] = (),
    off_by: float = 0.2,
    samples: int = 20,
    **options: Unpack[StudyOptions],
) -> Explanation:
    """Place with costs that are off, replay with the true ones: what wrong profiles cost.

    Args:
        graph: With the true costs.
        cluster: The devices.
        method: One of ``methods()``.
        sizes: The same graph at other batch sizes, as ``place_graph`` has it.
        off_by: How far each compute time and tensor size may be off, 0 to 1.
        samples: How many wrong profiles.
        options: Those of ``baechi.options.StudyOptions`` for each sample; the
            budget is 200ms by default.

    Raises:
        DoesNotFit: Nothing fits with the true costs.

    """
    how = {"method": method, **options}
    told = _core.sensitivity(
        graph_given(graph), cluster_of(cluster), graphs_given(sizes), off_by, samples, how
    )
    if isinstance(told, _core.Unplaceable):
        raise DoesNotFit(told)
    document = json.loads(told)
    steps = {"costs are known": document["makespan"], **document.get("steps", {})}
    return Explanation(document, _steps(steps))
