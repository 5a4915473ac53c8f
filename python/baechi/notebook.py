# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of a graph, a cluster and a plan: a small table, and the plan's timeline.

`import baechi` runs this: what it needs to show something is imported then.
"""

from __future__ import annotations

from baechi import _core
from baechi.tables import Table, in_bytes, in_time

_WIDTH, _LANE, _LEFT = 800, 22, 100  # pixels of a timeline, of a device's lane, and its name
_MOST_LANES = 16


def of_plan(plan: _core.Plan) -> str:
    """Return a plan's headline, devices and timeline."""
    import html

    busy, peaks = plan.busy_ns, plan.peaks
    rows = [
        (
            device.name,
            _core.share_text(busy[device.name] / max(plan.makespan_ns, 1)),
            in_bytes(peaks[device.name]),
            in_bytes(device.capacity),
        )
        for device in plan.cluster.devices
    ]
    headline = html.escape(repr(plan).removeprefix("<Plan: ").removesuffix(">"))
    table = Table(("device", "busy", "peak", "capacity"), rows).html()
    return f"<div><p>{headline}</p>{table}{timeline(plan)}</div>"


def timeline(plan: _core.Plan) -> str:
    """Return when devices compute; of several micro-batches, which passes."""
    import html

    style = '<svg style="max-width:100%;height:auto"'
    if plan.micro_batches > 1:
        picture = _core.export_plan(plan, "svg")
        return picture[picture.index("<svg") :].replace("<svg", style, 1)
    names = [html.escape(device.name) for device in plan.cluster.devices[:_MOST_LANES]]
    scale, bottom = _WIDTH / max(plan.makespan_ns, 1), _LANE * len(names)
    parts = [f'<text y="{_LANE * i + 15}">{name}</text>' for i, name in enumerate(names)]
    parts += [
        f'<rect x="{_LEFT + start * scale:.1f}" y="{_LANE * device + 2}" '
        f'width="{max((end - start) * scale, 0.1):.1f}" height="{_LANE - 4}" fill="#4c78a8"/>'
        for device, start, end in _bars(plan, 1 / scale)
        if device < len(names)
    ]
    parts += [
        f'<text x="{x}" y="{bottom + 15}" text-anchor="{anchor}">{text}</text>'
        for x, anchor, text in (
            (_LEFT, "start", "0"),
            (_LEFT + _WIDTH, "end", in_time(plan.makespan_ns)),
        )
    ]
    size = f'width="{_LEFT + _WIDTH}" height="{bottom + _LANE}"'
    box = f'viewBox="0 0 {_LEFT + _WIDTH} {bottom + _LANE}"'
    text = 'xmlns="http://www.w3.org/2000/svg" font-size="12" fill="currentColor"'
    return f"{style} {size} {box} {text}>{''.join(parts)}</svg>"


def _bars(plan: _core.Plan, gap: float) -> list[list[int]]:
    """Return (device, start, end) of what devices compute; shorter gaps are not seen."""
    bars: list[list[int]] = []
    for device, start, end in sorted(zip(plan.devices, plan.starts, plan.ends, strict=True)):
        if start == end:
            continue
        if bars and bars[-1][0] == device and start - bars[-1][2] < gap:
            bars[-1][2] = end
        else:
            bars.append([device, start, end])
    return bars


def of_cluster(cluster: _core.Cluster) -> str:
    """Return a table of the devices."""
    rows = [
        (device.name, device.kind, in_bytes(device.capacity), f"{device.speed:g}")
        for device in cluster.devices
    ]
    return Table(("device", "kind", "memory", "speed"), rows).html()


def of_graph(graph: _core.Graph) -> str:
    """Return what is known of a graph without a cluster."""
    facts = _core.graph_facts(graph)
    rows = [
        ("operators", _core.count_text(int(facts["operators"]))),
        ("edges", _core.count_text(int(facts["edges"]))),
        ("work", in_time(facts["work_ns"])),
        ("critical path", in_time(facts["critical_path_ns"])),
        ("permanent memory", in_bytes(int(facts["permanent_bytes"]))),
    ]
    return Table((graph.name or "graph", ""), rows).html()


for _shown, _how in ((_core.Plan, of_plan), (_core.Cluster, of_cluster), (_core.Graph, of_graph)):
    setattr(_shown, "_repr_html_", _how)  # noqa: B010 a type that knows nothing of it
