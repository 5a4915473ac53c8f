# SPDX-License-Identifier: Apache-2.0
"""A placement over the processes of torch.distributed: one plan, one device for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from baechi import __version__
from baechi._core import Cluster, Graph, InputError, Plan
from baechi.pipeline import cluster_of
from baechi.torch.asked import Request
from baechi.torch.base.devices import accelerators, unlike_cluster, usable
from baechi.torch.base.nested import tensors_in
from baechi.torch.micro_batched import PlannedStep, StepRequest, planned_step
from baechi.torch.over_ranks import PlacedOverRanks
from baechi.torch.ranks.detected import cluster_over
from baechi.torch.ranks.errors import digest
from baechi.torch.ranks.processes import Processes, local_rank, own_rank, world_size
from baechi.torch.ranks.weights import check_whole, sample_of
from baechi.torch.weights.homes import named_weights
from baechi.torch.weights.making import Making, making_of

_ALONE = "ranks=False places the whole model in each process alone"
_SAMPLED = 64  # values of each weight that ranks compare


def processes_for(asked: Request, ranks: Any, replicas: Any = 1) -> Processes | None:
    """Return the processes that a placement is to run over; None: this one alone.

    Raises:
        InputError: There are several, and it cannot run over them.

    """
    if ranks not in ("auto", True, False):
        raise InputError(f"ranks is 'auto', True or False, not {ranks!r}")
    check_whole(asked.model)
    count = world_size() if ranks else 1
    _check_replicas(replicas, count)
    if count == 1 and ranks is not True:
        return None
    if count == 1:
        raise InputError(
            "ranks=True needs several processes: start them by torchrun --nproc-per-node N "
            "train.py, or call torch.distributed.init_process_group"
        )
    cluster = _cluster_of(asked)
    if cluster is not None and len(cluster) * replicas != count:
        copies = "" if replicas == 1 else f" for each of {replicas} replicas"
        raise InputError(
            f"there are {count} processes and the cluster has {len(cluster)} devices{copies}: over "
            f"ranks each has one; start {len(cluster) * replicas} processes, or name "
            f"{count // replicas} devices; {_ALONE}"
        )
    given, own = asked.devices, own_rank() % (count // replicas)
    if given is not None and len(given) != count // replicas:
        raise InputError(unlike_cluster(given, count // replicas))
    kind = "" if cluster is None else cluster.devices[own].kind
    here = _own_device(None if given is None else given[own], kind)
    return Processes.on(here, replicas)


def _check_replicas(replicas: Any, count: int) -> None:
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise InputError(
            "replicas is how many copies of the placement train together, from 1, or 'auto', not "
            f"{replicas!r}"
        )
    if replicas > 1 and count % replicas:
        raise InputError(
            f"{replicas} replicas run over as many processes each, and there are {count} in all: "
            f"start a multiple of {replicas}, by torchrun for example"
        )


def _cluster_of(asked: Request) -> Cluster | None:
    """Return the devices that were named; None: they are to be found."""
    if asked.plan is not None:
        return asked.plan.cluster
    return None if asked.cluster == "auto" else cluster_of(asked.cluster)


def on_found_cluster(asked: Request, processes: Processes) -> Request:
    """Return the request with the cluster that the processes are, where none was named."""
    cluster = _cluster_of(asked)
    if cluster is None:
        cluster = cluster_over(processes)
        asked = replace(asked, cluster=cluster)
    kinds = {device.kind for device in cluster.devices}
    if asked.costs == "measure" and len(kinds) > 1:
        raise InputError(
            "costs='measure' over ranks measures on rank 0 alone, and the cluster has devices of "
            f"{len(kinds)} kinds: give costs='estimate', or costs that were measured before"
        )
    return asked


def _own_device(given: Any, kind: str) -> torch.device:
    """Return the physical device of this process."""
    if given is not None:
        return usable(given)
    there = accelerators()
    if kind == "cpu" or not there:
        return torch.device("cpu")
    if len(there) == 1:
        return there[0]
    if local_rank() < len(there):
        return there[local_rank()]
    raise InputError(
        f"this process has number {local_rank()} on its host, which has {len(there)} accelerators: "
        "start as many processes, or name with devices= where each is to be"
    )


def planned_over_ranks(
    asked: Request, micro_batches: Any, loss: Any, targets: Any, processes: Processes
) -> tuple[StepRequest, PlannedStep, Making | None]:
    """Return what rank 0 planned, on every rank, and what makes the weights there."""
    count = processes.count
    asked = replace(asked, devices=[processes.device] * count)
    with processes.agreeing("place this model") as facts:
        step = StepRequest(asked, micro_batches, loss, targets, over_ranks=True)
        facts.update(_facts(asked, targets))
        facts["number of replicas"] = str(processes.replicas)
        _check_loss_of_replicas(loss, processes.replicas)
        making = making_of(asked.model, asked.weights)
        if making is not None:
            facts["seed, files, numbers or code that weights are made with"] = making.facts()
    found: PlannedStep | None = None
    with processes.agreeing("plan this step"):
        if processes.number == 0:
            found = planned_step(step)
    texts = None if found is None else _texts_of(found.plan)
    plan_text, graph_text = processes.from_first(texts)
    with processes.agreeing("place this model by the plan of rank 0") as facts:
        if found is None:
            plan = Plan.from_json(plan_text, Graph.from_json(graph_text))
            count = None if micro_batches is None else plan.micro_batches
            step = StepRequest(replace(asked, plan=plan), count, loss, targets, over_ranks=True)
            found = planned_step(step)
        facts["plan"] = digest("".join(_texts_of(found.plan)))[:16]
    return step, found, making


def _check_loss_of_replicas(loss: Any, replicas: int) -> None:
    parameters = loss.parameters() if isinstance(loss, torch.nn.Module) else ()
    if replicas > 1 and any(parameter.requires_grad for parameter in parameters):
        raise InputError(
            "the loss has parameters that are trained, of which replicas take no mean: make them "
            "a part of the model"
        )


def _texts_of(plan: Plan) -> tuple[str, str]:
    return plan.to_json(), plan.micro_batch_graph.to_json()


def _facts(asked: Request, targets: Any) -> Iterator[tuple[str, str]]:
    """Yield what ranks must have alike before they plan."""
    yield "version of PyTorch", torch.__version__
    yield "version of baechi", __version__
    given = [(tuple(t.shape), str(t.dtype)) for t in tensors_in((asked.example_inputs, targets))]
    yield "shapes of the example batch", str(given)
    plan = None if asked.plan is None else digest("".join(_texts_of(asked.plan)))
    yield "plan", str(plan)
    yield "model", f"{type(asked.model).__name__}, training: {asked.model.training}"
    for name, weight in named_weights(asked.model):
        values = digest(sample_of(weight, _SAMPLED).hex())[:8]
        about = (tuple(weight.shape), str(weight.dtype), weight.requires_grad)
        yield f"weight {name!r}", f"{about}, values of digest {values}"


def run_over_ranks(
    place: Callable[[], Any],
    step: StepRequest,
    found: PlannedStep,
    making: Making | None,
    processes: Processes,
    outputs: str,
) -> PlacedOverRanks:
    """Return a model of which every rank has its part.

    Args:
        place: Places the model on the device of this rank; nothing that others hold is gone yet.
        step: What was asked for.
        found: The plan.
        making: What makes the weights of a model on the meta device.
        processes: Over which it is to run.
        outputs: Of calls, that go to every rank.

    """
    placed: list[PlacedOverRanks] = []
    try:
        with processes.agreeing("place this model") as facts:
            placed.append(place())
            given = step.asked.example_inputs, step.targets
            facts.update(placed[0].take_ranks(processes, found.step_plan, *given, outputs))
        if making is not None:
            placed[0].make(making)
    except BaseException:
        for each in placed:
            each.restore()
        raise
    placed[0].release()
    return placed[0]
