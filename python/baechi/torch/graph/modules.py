# SPDX-License-Identifier: Apache-2.0
"""Modules: operators as the paper has them in PyTorch, a module's call and its backward in one.

Paper 3.2. The calls of a module in a row are one operator, whose backward is where it is and whose
outputs stay to the end of the step. A plan of such operators says where every call runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baechi._core import Cluster, Graph, GraphBuilder, Plan
from baechi.pipeline import DoesNotFit, place_graph, simulate
from baechi.torch.capture.step import LOSS
from baechi.torch.graph.graph import StepGraph


@dataclass
class _Operator:
    """What is added up of the operators of a step that are one here."""

    times: dict[str, int] = field(default_factory=dict)
    permanent: int = 0
    temporary: int = 0
    outputs: dict[tuple[str, int], int] = field(default_factory=dict)  # ports by what they were
    sizes: list[int] = field(default_factory=list)
    inputs: dict[tuple[str, str, int], None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    device: str | None = None


@dataclass(frozen=True)
class ModuleGraph:
    """A graph of modules, and which of its operators each one of the step is part of."""

    graph: Graph
    module_of: dict[str, str]


def plan_of_modules(step: StepGraph, cluster: Cluster, nodes: int | None, **options: Any) -> Plan:
    """Place the modules of a step, and replay its calls there; the paper mends nothing."""
    modules = graph_of_modules(step, nodes)
    coarse = place_graph(modules.graph, cluster, **options).device_of
    device_of = {name: coarse[module] for name, module in modules.module_of.items()}
    plan = simulate(step.graph, cluster, device_of)
    if plan.fits:
        return plan
    short, device = max((plan.peaks[d.name] - d.capacity, d.name) for d in cluster.devices)
    raise DoesNotFit(
        f"replayed, the calls of these modules need {short} bytes more than {device} has, and with "
        "paper nothing is mended",
        short,
    )


def graph_of_modules(step: StepGraph, nodes: int | None = None) -> ModuleGraph:
    """Return the graph of a step whose operators are modules.

    Args:
        step: Whose operators are calls.
        nodes: Modules are joined with their siblings, innermost first, until there are no more of
            them than that, as far as it goes; the batch and the loss are beside them.

    """
    graph = step.graph
    path_of = {key: key.rsplit(":", 2)[0] for key in step.keys}
    forward = [n for n in graph.names if n in path_of and not graph[n].backward]
    paths = [path_of[name] for name in forward]
    joined = dict(zip(paths, paths, strict=True))
    if nodes is not None:
        parents = _parents(paths)

        def suffices(count: int) -> bool:
            return _runs(paths, _join(paths, parents[:count])) <= nodes

        count = bisect.bisect_left(range(len(parents)), True, key=suffices)
        joined = _join(paths, parents[:count])
    module_of = _modules(forward, [joined[path] for path in paths])
    _add_followers(graph, module_of, path_of, joined)
    return ModuleGraph(_built(graph, module_of), module_of)


def _parents(paths: Sequence[str]) -> list[str]:
    """Return the modules that have others inside, innermost first."""
    height: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        parts = [] if path == LOSS else path.split(".") if path else []
        for depth in range(len(parts)):
            parent = ".".join(parts[:depth])
            height[parent] = max(height.get(parent, 0), len(parts) - depth)
    return sorted(height, key=lambda parent: height[parent])


def _join(paths: Sequence[str], parents: Sequence[str]) -> dict[str, str]:
    """Return what each path is part of once these parents are one each."""
    known, found = set(parents), {}
    for path in dict.fromkeys(paths):
        parts = path.split(".") if path else []
        outer = (".".join(parts[:depth]) for depth in range(len(parts)))
        found[path] = path if path == LOSS else next((o for o in outer if o in known), path)
    return found


def _runs(paths: Sequence[str], joined: Mapping[str, str]) -> int:
    run = [joined[path] for path in paths if path != LOSS]
    return sum(one != before for one, before in zip(run, [None, *run], strict=False))


def _modules(forward: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Return the operator of each forward call: those of one path in a row are one."""
    found: dict[str, str] = {}
    times: dict[str, int] = {}
    before = None
    for name, path in zip(forward, paths, strict=True):
        if path != before:
            times[path] = times.get(path, -1) + 1
        found[name] = f"{path}#{times[path]}"
        before = path
    return found


def _add_followers(
    graph: Graph, module_of: dict[str, str], path_of: Mapping[str, str], joined: Mapping[str, str]
) -> None:
    """Add all else: backward with forward, weights with their readers, the batch for itself."""
    last = {joined[path_of[name]]: module for name, module in module_of.items()}
    group_of = {g: m for n, m in reversed(module_of.items()) for g in graph[n].colocate}
    for name in graph.names:
        op = graph[name]
        if name in module_of or not (name in path_of or op.backward or op.colocate or op.after):
            module_of.setdefault(name, name)
            continue
        path = path_of.get(name, "")
        found = [group_of[g] for g in op.colocate if g in group_of]
        found += [module_of[op.forward]] if op.forward in module_of else []
        found += [last[joined[path]]] if joined.get(path) in last and name in path_of else []
        found += [module_of[n] for n in (*(p for p, _ in op.inputs), *op.after) if n in module_of]
        module_of[name] = found[0] if found else next(reversed(last.values()), name)


def _built(graph: Graph, module_of: Mapping[str, str]) -> Graph:
    alone = [name for name in graph.names if module_of[name] == name]  # the batch: read, never made
    made = {name: _Operator() for name in (*alone, *module_of.values())}
    for name in graph.names:
        op, one = graph[name], made[module_of[name]]
        for kind, time in op.times.items():
            one.times[kind] = one.times.get(kind, 0) + time
        one.permanent += op.permanent
        one.groups |= dict.fromkeys(op.colocate)
        one.device = op.device or one.device
        if op.variable or op.per_step:
            one.permanent += sum(op.outputs)
        elif op.backward:
            one.temporary = max(one.temporary, op.temporary + sum(op.outputs))
        else:
            one.temporary = max(one.temporary, op.temporary)
            for port, size in enumerate(op.outputs):
                one.outputs[name, port] = len(one.sizes)
                one.sizes.append(size)
    for name in graph.names:
        if not graph[name].backward:
            for producer, port in graph[name].inputs:
                source, target = module_of[producer], module_of[name]
                if source != target and (producer, port) in made[source].outputs:
                    made[target].inputs[source, producer, port] = None
    return _graph(made)


def _graph(made: Mapping[str, _Operator]) -> Graph:
    builder = GraphBuilder("modules", memory_mode="retain")
    for name, one in made.items():
        kinds = {kind: time for kind, time in one.times.items() if kind != "*"}
        builder.add(
            name,
            kinds or {"*": 0},
            permanent=one.permanent,
            temporary=one.temporary,
            outputs=one.sizes,
            inputs=[(source, made[source].outputs[was, p]) for source, was, p in one.inputs],
            colocate=list(one.groups),
            device=one.device,
        )
    return builder.build()
