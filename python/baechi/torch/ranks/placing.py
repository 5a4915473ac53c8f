# SPDX-License-Identifier: Apache-2.0
"""Places a model over the processes of torch.distributed: one plan, one device for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from baechi import __version__
from baechi._core import Graph, InputError, Plan
from baechi.presets import STORE
from baechi.torch.devices import device_of_process, store_of
from baechi.torch.planned_step import PlannedStep, cluster_for, measured_costs, planned, steps_of
from baechi.torch.ranks.errors import digest, facts_of, sum_of
from baechi.torch.ranks.placed import RankPlaced
from baechi.torch.ranks.processes import Processes, own_rank, world_size
from baechi.torch.ranks.replicas import Replicas
from baechi.torch.ranks.times import with_times
from baechi.torch.ranks.weights import owners_of
from baechi.torch.request import Request
from baechi.torch.weights.sources import make_weights
from baechi.torch.where.homes import named_tensors, plain_parts

_ALONE = "ranks=False places the whole model in each process alone"


def processes_for(asked: Request, ranks: Any) -> Processes | None:
    """Return the processes that a placement is to run over; None: this one alone.

    Raises:
        InputError: There are several, and it cannot run over them.

    """
    if ranks not in ("auto", True, False):
        raise InputError(f"ranks is 'auto', True or False, not {ranks!r}")
    count = world_size() if ranks else 1
    if count == 1 and asked.replicas != "1":
        devices = len(cluster_for(asked))
        raise InputError(
            "replicas: each device of each replica has a process, and this is the only one: start "
            f"{devices}, by torchrun --nproc-per-node {devices} train.py, or leave replicas out"
        )
    if count == 1:
        if ranks is True:
            raise InputError(
                "ranks=True needs several processes: start them by torchrun --nproc-per-node N "
                "train.py, or call torch.distributed.init_process_group"
            )
        return None
    cluster, replicas = cluster_for(asked), asked.replicas
    if replicas.isdigit() and count % max(int(replicas), 1):
        raise InputError(
            f"replicas: {replicas} do not divide the {count} processes: each has as many of them"
        )
    store = store_of(cluster)
    devices = len(cluster) - (store is not None)
    if devices != count:
        raise InputError(
            f"there are {count} processes and the cluster has {devices} devices: over ranks "
            f"each has one; start {devices} processes, or name {count} devices; {_ALONE}"
        )
    if asked.devices is not None and len(asked.devices) != count:
        raise InputError(f"devices: {len(asked.devices)} given for {count} processes: one for each")
    own = own_rank()
    processes = Processes(device_of_process(asked.devices, cluster.devices[own].kind, own))
    if store is not None and processes.traced.type == "cpu":
        raise InputError(
            "cluster: it has a host, which keeps what accelerators fetch, and ranks have "
            f"{', '.join(processes.kinds)}: each needs an accelerator, of one kind"
        )
    return processes


def place_over_ranks(asked: Request, processes: Processes) -> RankPlaced:
    """Have rank 0 plan; return the model with this rank's part."""
    with processes.agreeing("place this model") as facts:
        facts.update(_facts(asked, processes))
    if asked.costs == "measure":
        asked = replace(asked, costs=_measured(asked, processes))
        if asked.plan is None:
            parts = asked.micro_batches if isinstance(asked.micro_batches, int) else 1
            each = parts // int(asked.replicas) if asked.replicas.isdigit() else parts
            asked = replace(asked, cluster=with_times(cluster_for(asked), processes, max(each, 1)))
    found: PlannedStep | None = None
    with processes.agreeing("plan this step"), processes.tracing():
        if processes.rank == 0:
            found = planned(asked, here=processes.traced)
    plan_text, graph_text, count = processes.gathered(found and _texts_of(found.plan))[0]
    with processes.agreeing("place it by rank 0's plan") as facts, processes.tracing():
        plan = Plan.from_json(plan_text, Graph.from_json(graph_text))
        by_plan = replace(asked, plan=plan, cluster="auto", micro_batches=count, costs="estimate")
        found = planned(by_plan, here=processes.traced)
        facts["calls of the step"] = digest("\n".join(found.graph.keys))
        facts["plan"] = digest(str(sorted(found.starts.items())))
        replicas = Replicas.of(plan)
        part = replicas.part[processes.rank]
        own = [name for name, owner in owners_of(found, asked.model).items() if owner == part]
        ends = dict(zip(found.names, found.devices, strict=True)) if processes.are_alike else {}
        where = {n: ends.get(found.homes.get(n, ""), processes.device) for n in own}
        make_weights(asked.model, asked.weights, where, own=own)
        kept = named_tensors(asked.model) if replicas.count > 1 else ()
        values = {n: sum_of(t) for n, t in kept if n in own}
    if replicas.count > 1:
        processes.divide(replicas)
        sums = processes.gathered(values)
        for rank, part in enumerate(replicas.part):
            if other := next((n for n, v in sums[part].items() if sums[rank][n] != v), None):
                said = f"weights: ranks {part} and {rank} have other values of {other!r}"
                raise InputError(said)
    return RankPlaced(found, asked, processes)


def _measured(asked: Request, processes: Processes) -> Any:
    """Return the costs that the first rank of each kind of device measures there."""
    kinds, mine = [device.kind for device in cluster_for(asked).devices], None
    kind = kinds[processes.rank]
    with processes.agreeing("measure the calls of this step"):
        if kinds.index(kind) == processes.rank:
            with processes.tracing():
                steps = steps_of(asked, processes.traced)
            host = {} if store_of(cluster_for(asked)) is None else {STORE: torch.device("cpu")}
            mine = measured_costs(asked, steps, {kind: processes.device, **host})
    found, *others = filter(None, processes.gathered(mine))
    for other in others:
        found.add(other)
    return found


def _texts_of(plan: Plan) -> tuple[str, str, int]:
    count = plan.micro_batches * plan.replicas
    return plan.to_json(), plan.micro_batch_graph.to_json(), count


def _facts(asked: Request, processes: Processes) -> dict[str, str]:
    """Return what ranks must have alike before they plan."""
    plan = None if asked.plan is None else digest(repr(_texts_of(asked.plan)))
    facts = {
        "version of PyTorch": torch.__version__.partition("+")[0],
        "version of baechi": __version__,
        "shapes of the example": facts_of((asked.example_inputs, asked.targets), with_values=False),
        "plan": str(plan),
        "micro_batches": str(asked.micro_batches),
        "replicas": asked.replicas,
        "model": f"{type(asked.model).__name__}, training: {asked.model.training}",
    }
    for name, weight in named_tensors(asked.model):
        if not processes.are_alike and next(plain_parts(weight)) is not weight:
            raise InputError(
                f"model: {name!r} wraps other tensors, as quantised weights do, which needs ranks "
                f"with devices of one kind; these have {', '.join(processes.kinds)}"
            )
        about = f"{tuple(weight.shape)} of {weight.dtype}, trained: {weight.requires_grad}"
        facts[f"weight {name!r}"] = f"{about}, with sum {sum_of(weight):x}"
    return facts
