# SPDX-License-Identifier: Apache-2.0
"""What other tools make of our graphs.

Hugging Face accelerate's device map, SAGA's HEFT and ETF, Mt-KaHyPar's mapping onto a graph.

Their code is their own, as published; what is here says a graph in their words and takes their
answer back as device by operator.
"""

from __future__ import annotations

import collections
import functools
import logging
import re
import warnings
from collections.abc import Sequence
from typing import Any

import baechi
from experiments.scopes import by_module, home


class Missing(Exception):
    """A package that the experiment needs is not installed."""


def require() -> None:
    """Import what the peers need, so that no import is in their times."""
    try:
        import accelerate.utils.modeling  # noqa: F401
        import mtkahypar  # noqa: F401
        import saga.schedulers.etf
        import saga.schedulers.heft  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise Missing(
            "peers needs torch, accelerate, mtkahypar, anrg-saga (without its dependencies) and "
            f"pysmt: {error.name} is not installed"
        ) from error


def module_tree(graph: baechi.Graph, layer: str) -> tuple[Any, dict[str, str]]:
    """The graph's scopes as torch modules without data, with parameters of its permanent bytes.

    Also the module of every operator that has permanent memory. Modules whose scope the pattern
    finds are of class Layer, which accelerate is asked not to split.
    """
    import torch
    from torch import nn

    class Layer(nn.Module):
        pass

    class Scope(nn.Module):
        pass

    pattern = re.compile(layer)
    root = Scope()
    module_of: dict[str, str] = {}
    for name in graph.names:
        size = graph[name].permanent
        if size == 0:
            continue
        module, path = root, []
        for part in home(name).replace(".", "/").split("/"):
            path.append(part)
            if part not in module._modules:
                found = any(pattern.fullmatch(separator.join(path)) for separator in "/.")
                module.add_module(part, Layer() if found else Scope())
            module = getattr(module, part)
        data = torch.empty(size, dtype=torch.int8, device="meta")
        number = len(module._parameters)
        module.register_parameter(f"weight{number}", nn.Parameter(data, requires_grad=False))
        module_of[name] = ".".join(path)
    return root, module_of


def accelerate_placement(
    graph: baechi.Graph, cluster: baechi.Cluster, layer: str, device_map: str
) -> dict[str, str] | None:
    """``device_map="auto"`` (balanced) or ``"sequential"``; None: it offloads to the CPU.

    Operators without weights are where their module is, else where the operator before them is.
    """
    from accelerate.utils.modeling import get_balanced_memory, infer_auto_device_map

    model, module_of = module_tree(graph, layer)
    memory = {i: device.capacity for i, device in enumerate(cluster.devices)}
    how = {"no_split_module_classes": ["Layer"], "dtype": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("accelerate").setLevel(logging.ERROR)
        if device_map == "auto":
            memory = get_balanced_memory(model, max_memory=memory, **how)
        found = infer_auto_device_map(model, max_memory=memory, **how)
    if any(not isinstance(device, int) for device in found.values()):
        return None
    names = [device.name for device in cluster.devices]
    return by_module(graph, names, module_of, found)


def time_on(operator: baechi.Operator, kind: str) -> int:
    """Nanoseconds on devices of a kind of speed 1."""
    return operator.times.get(kind, operator.times.get("*", 0))


def _precedence(
    graph: baechi.Graph, cluster: baechi.Cluster
) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Nanoseconds of every operator, and of what goes from one to another between two devices."""
    first, second = cluster.devices[0], cluster.devices[1]
    cost: dict[str, int] = {}
    transfer: dict[tuple[str, str], int] = collections.defaultdict(int)
    for name in graph.names:
        operator = graph[name]
        cost[name] = time_on(operator, first.kind)
        for producer, port in dict.fromkeys(operator.inputs):
            size = graph[producer].outputs[port]
            transfer[producer, name] += cluster.transfer_time(size, first.name, second.name)
        for earlier in operator.after:
            transfer[earlier, name] += 0
    return cost, transfer


def saga_placement(graph: baechi.Graph, cluster: baechi.Cluster, scheduler: str) -> dict[str, str]:
    """SAGA's "HEFT" or "ETF", for equal devices and links.

    It knows neither memory nor colocation: a colocation group goes where most of its work went.
    Times are whole nanoseconds in its floats, which then add up exactly.
    """
    from saga import Network, TaskGraph
    from saga.schedulers.etf import ETFScheduler
    from saga.schedulers.heft import HeftScheduler

    cost, transfer = _precedence(graph, cluster)
    names = [device.name for device in cluster.devices]
    pairs = [(a, b, 1.0) for i, a in enumerate(names) for b in names[i + 1 :]]
    network = Network.create([(name, 1.0) for name in names], pairs)
    logging.disable(logging.WARNING)  # that it adds one source and one sink
    try:
        tasks = TaskGraph.create(
            [(name, float(time)) for name, time in cost.items()],
            [(*edge, float(time)) for edge, time in transfer.items()],
        )
        algorithm = {"HEFT": HeftScheduler, "ETF": ETFScheduler}[scheduler]()
        schedule = algorithm.schedule(network, tasks)
    finally:
        logging.disable(logging.NOTSET)
    device_of = {
        task.name: node for node, done in schedule.items() for task in done if task.name in cost
    }
    return colocated(graph, names, device_of)


@functools.cache
def _partitioner() -> Any:
    """Mt-KaHyPar, which may be started once, with one thread so that CPU times compare."""
    import mtkahypar

    return mtkahypar.initialize(1)


def _hypergraph(
    graph: baechi.Graph, cluster: baechi.Cluster
) -> tuple[list[int], list[int], dict[tuple[int, ...], int]]:
    """The node of every operator, and microseconds of every node and every set of nodes.

    A colocation group is one node, a tensor the set of the nodes that make and read it. Its numbers
    are whole and have 32 bits.
    """
    first, second = cluster.devices[0], cluster.devices[1]
    groups = baechi.graph_to_arrays(graph)["groups"].tolist()
    nodes: dict[tuple[str, int], int] = {}
    node_of = [
        nodes.setdefault(("group", group) if group >= 0 else ("alone", op), len(nodes))
        for op, group in enumerate(groups)
    ]
    work = [1] * len(nodes)
    readers: dict[tuple[str, int], set[int]] = collections.defaultdict(set)
    index = {name: op for op, name in enumerate(graph.names)}
    for name, op in index.items():
        operator = graph[name]
        work[node_of[op]] += time_on(operator, first.kind) // 1000
        for producer, port in operator.inputs:
            readers[producer, port] |= {node_of[index[producer]], node_of[op]}
    crossing: dict[tuple[int, ...], int] = collections.defaultdict(int)
    for (producer, port), pins in readers.items():
        if len(pins) > 1:
            size = graph[producer].outputs[port]
            time = cluster.transfer_time(size, first.name, second.name)
            crossing[tuple(sorted(pins))] += max(1, time // 1000)
    return node_of, work, crossing


def mapped_placement(graph: baechi.Graph, cluster: baechi.Cluster) -> dict[str, str]:
    """Mt-KaHyPar's mapping of the tensors' hypergraph onto the graph of the cluster's links.

    For devices that are equal. It balances the work to 3% and makes transfers short; it knows
    neither the order of operators nor memory.
    """
    import mtkahypar

    node_of, work, crossing = _hypergraph(graph, cluster)
    names = [device.name for device in cluster.devices]
    pairs = [(a, b) for a in range(len(names)) for b in range(a + 1, len(names))]
    mebibyte = [cluster.transfer_time(2**20, names[a], names[b]) for a, b in pairs]
    links = [max(1, round(10 * time / max(1, min(mebibyte)))) for time in mebibyte]
    partitioner = _partitioner()
    mtkahypar.set_seed(1)
    context = partitioner.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.logging = False
    context.set_mapping_parameters(len(names), 0.03)
    target = partitioner.create_target_graph(context, len(names), len(pairs), pairs, links)
    hypergraph = partitioner.create_hypergraph(
        context,
        len(work),
        len(crossing),
        [list(pins) for pins in crossing],
        work,
        list(crossing.values()),
    )
    block = hypergraph.map_onto_graph(target, context).get_partition()
    return {name: names[block[node_of[op]]] for op, name in enumerate(graph.names)}


def colocated(
    graph: baechi.Graph, devices: Sequence[str], device_of: dict[str, str]
) -> dict[str, str]:
    """The placement with every colocation group on the device that has most of its work."""
    groups = baechi.graph_to_arrays(graph)["groups"].tolist()
    kind = graph.device_kinds[0] if graph.device_kinds else "*"
    work: dict[int, dict[str, int]] = {}
    for name, group in zip(graph.names, groups, strict=True):
        if group >= 0:
            share = work.setdefault(group, dict.fromkeys(devices, 0))
            share[device_of[name]] += time_on(graph[name], kind) + 1
    best = {group: max(share, key=lambda d: share[d]) for group, share in work.items()}
    return {
        name: best.get(group, device_of[name])
        for name, group in zip(graph.names, groups, strict=True)
    }
