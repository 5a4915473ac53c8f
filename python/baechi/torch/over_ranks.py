# SPDX-License-Identifier: Apache-2.0
"""A placement over the processes of torch.distributed: one plan, one device for each of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from baechi import __version__
from baechi._core import Cluster, Graph, InputError, Plan
from baechi.pipeline import cluster_of
from baechi.torch.base import _private
from baechi.torch.base.devices import accelerators, unlike_cluster, usable
from baechi.torch.base.nested import tensors_in
from baechi.torch.micro_batched import PlannedStep, StepRequest, planned_step
from baechi.torch.placed import Placed
from baechi.torch.planning import Request
from baechi.torch.ranks.detected import cluster_over
from baechi.torch.ranks.elsewhere import guard, release, stand_for_gradients
from baechi.torch.ranks.processes import (
    Facts,
    Processes,
    RankError,
    digest,
    local_rank,
    own_rank,
    world_size,
)
from baechi.torch.ranks.stepper import RankStepper
from baechi.torch.ranks.weights import (
    Guard,
    check_whole,
    gathered,
    gathered_optimizer,
    sample_of,
    total_norm,
)
from baechi.torch.run.stepping import StepPlan
from baechi.torch.weights.checkpoint import check_can_be_written, write, write_beside
from baechi.torch.weights.homes import named_weights
from baechi.torch.weights.making import Making, making_of
from baechi.torch.weights.named_state import checked_state, load_named, named_state
from baechi.torch.weights.optimizer_state import forget
from baechi.torch.weights.sources import matched, source_of

_ALONE = "ranks=False places the whole model in each process alone"
_SAMPLED = 64  # values of each weight that ranks compare


def processes_for(asked: Request, ranks: Any, micro_batches: Any) -> Processes | None:
    """Return the processes that a placement is to run over; None: this one alone.

    Raises:
        InputError: There are several, and it cannot run over them.

    """
    if ranks not in ("auto", True, False):
        raise InputError(f"ranks is 'auto', True or False, not {ranks!r}")
    check_whole(asked.model)
    count = world_size() if ranks else 1
    if count == 1 and ranks is not True:
        return None
    if count == 1:
        raise InputError(
            "ranks=True needs several processes: start them by torchrun --nproc-per-node N "
            "train.py, or call torch.distributed.init_process_group"
        )
    cluster = _cluster_of(asked)
    if cluster is not None and len(cluster) != count:
        raise InputError(
            f"there are {count} processes and the cluster has {len(cluster)} devices: over ranks "
            f"each has one; start {len(cluster)} processes, or name {count} devices; {_ALONE}"
        )
    if micro_batches is None:
        raise InputError(
            "over ranks a model runs steps: give micro_batches=1, or more, and a loss; then "
            f"loss = placed.step(inputs, targets); {_ALONE}"
        )
    given = asked.devices
    if given is not None and len(given) != count:
        raise InputError(unlike_cluster(given, count))
    kind = "" if cluster is None else cluster.devices[own_rank()].kind
    return Processes.on(_own_device(given, kind))


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


def _own_device(devices: Any, kind: str) -> torch.device:
    """Return the physical device of this process."""
    if devices is not None:
        return usable(devices[own_rank()])
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


class PlacedOverRanks(Placed):
    """A model of which this process runs the part on one device, until `restore`."""

    _processes: Processes
    _guard: Guard | None = None  # once only the weights of this rank are here
    _elsewhere: Sequence[tuple[str, torch.Tensor, int]] = ()  # the weights of other ranks

    def take_ranks(
        self, processes: Processes, planned: StepPlan, inputs: Any, targets: Any
    ) -> Facts:
        """Have `step` run this rank's part; return what all ranks must know alike."""
        self._processes = processes
        self._stepper: RankStepper = RankStepper(self._assigner, planned, processes)
        name = type(self.model).__name__
        self._assigner.refused = (
            f"{name} is placed over ranks, where it runs steps only: loss = placed.step(inputs, "
            "targets), then optimizer.step()"
        )
        return self._stepper.facts(inputs, targets)

    def make(self, making: Making) -> None:
        """Make the weights of this rank, of a model that has none yet."""
        with self._processes.agreeing("make the weights of this model"):
            values = making.read(name for name, rank in self._ranks.items() if rank == self.rank)
            making.give_attributes()
        making.give(values, self._processes.device)

    def release(self) -> None:
        """Let go of the weights that other ranks have, and of what optimizers keep for them."""
        self._elsewhere = [(n, w, rank) for n, w, rank in self._owned if rank != self.rank]
        for optimizer in forget([weight for _, weight, _ in self._elsewhere]):
            guard(optimizer)
        with _private.without_flat_weights(self.model):
            for _, weight, _ in self._elsewhere:
                release(weight, weight.device if not weight.is_meta else self._processes.device)
        self._guard = Guard(self.model)

    @property
    def _owned(self) -> list[tuple[str, torch.Tensor, int]]:
        """Every weight, and the rank that has it."""
        rank = {device.name: device.index for device in self._assigner.devices}
        where = self.weight_devices
        return [(name, w, rank[where[name]]) for name, w in named_weights(self.model)]

    @property
    def _owners(self) -> dict[int, int]:
        """The rank that has each weight, by id."""
        return {id(weight): rank for _, weight, rank in self._owned}

    @property
    def _ranks(self) -> dict[str, int]:
        """The rank that has each weight, by name."""
        return {name: rank for name, _, rank in self._owned}

    def step(self, inputs: Any, targets: Any = None) -> torch.Tensor:
        """Run this rank's part of a step; gradients are where their weights are."""
        loss = super().step(inputs, targets)
        stand_for_gradients(self._elsewhere)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the whole model, on the host of every rank; all ranks call it."""
        self._processes.agree("gather the state of the model", {})
        return gathered(self._state, self._owners, self._processes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the whole model; every rank takes its own from what it is given."""
        self.load(state)

    def save(self, folder: str | os.PathLike[str], *, optimizer: Any = None) -> None:
        """Write a checkpoint, every rank its own part of it; all ranks call it."""
        path, state, owners = Path(folder), self._state, self._owners
        own = {n: w.detach() for n, w in state.items() if owners.get(id(w)) == self.rank}
        kept = None
        with self._processes.agreeing("save a checkpoint") as facts:
            facts["folder"] = str(path)
            check_can_be_written(path, state)
            if optimizer is not None:
                kept = self._own_state_of(optimizer)
                facts["groups of parameters"] = digest(repr(kept["param_groups"]))[:16]
        with self._processes.agreeing("save a checkpoint"):
            if self.rank == 0:
                write_beside(path, self.plan, {"processes": self._processes.count})
        with self._processes.agreeing("save a checkpoint"):
            write(path, own, kept, self._processes.all)

    def load(self, source: Any, *, optimizer: Any = None) -> None:
        """Load weights; every rank reads its own, and all do or none."""
        wanted, owners = self._state, self._owners
        own = [name for name, weight in wanted.items() if owners.get(id(weight)) == self.rank]
        with self._processes.agreeing("load these weights") as facts:
            found = source_of(source)
            names = matched(found, wanted)
            facts["names and shapes of what is loaded"] = digest(repr(found.shapes))[:16]
            if isinstance(source, Mapping):
                texts = [sample_of(source[name], _SAMPLED).hex() for name in source]
                facts["values of the state"] = digest("".join(texts))[:16]
            values = found.read(dict.fromkeys(names[name] for name in own))
            kept = None
            if optimizer is not None:
                kept = checked_state(self.model, optimizer, found.optimizer_state(own))
                facts["groups of parameters"] = digest(repr(kept["param_groups"]))[:16]
        with torch.no_grad():
            for name in own:
                wanted[name].copy_(values[names[name]])
        if kept is not None:
            load_named(self.model, optimizer, kept, lambda _: True)

    @property
    def _state(self) -> dict[str, Any]:
        """The state of the model, in which those weights have values that are here."""
        assert self._guard is not None
        return self._guard.state_of(self.model)

    def _own_state_of(self, optimizer: Any) -> dict[str, Any]:
        ranks = self._ranks
        return named_state(self.model, optimizer, lambda name: ranks[name] == self.rank)

    def optimizer_state_dict(self, optimizer: Any) -> dict[str, Any]:
        """Return the state of an optimizer by names, on the host of every rank; all call it."""
        with self._processes.agreeing("gather the state of an optimizer") as facts:
            mine = self._own_state_of(optimizer)
            facts["groups of parameters"] = digest(repr(mine["param_groups"]))[:16]
        return gathered_optimizer(mine, self._ranks, self._processes)

    def load_optimizer_state_dict(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        """Load the state of an optimizer; every rank takes what its own parameters need."""
        ranks = self._ranks
        with self._processes.agreeing("load the state of an optimizer") as facts:
            named = checked_state(self.model, optimizer, state)
            names = {name: sorted(kept) for name, kept in named["state"].items()}
            facts["state of the optimizer"] = digest(repr((names, named["param_groups"])))[:16]
        load_named(self.model, optimizer, named, lambda name: ranks[name] == self.rank)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip gradients by the norm of those of all ranks; all ranks call it."""
        owners = self._owners
        mine = [p for p in self.model.parameters() if owners[id(p)] == self.rank]
        grads = [p.grad for p in mine if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads, norm_type)
        asked = {"max_norm": str(float(max_norm)), "norm_type": str(float(norm_type))}
        self._processes.agree("clip gradients", asked)
        norms = self._processes.norms(norm.item())
        wrong = [rank for rank, each in enumerate(norms) if not math.isfinite(each)]
        if error_if_nonfinite and wrong:
            raise RankError(f"the norm of the gradients of rank {wrong[0]} is {norms[wrong[0]]}")
        total = torch.tensor(total_norm(norms, norm_type), dtype=torch.float64)
        torch.nn.utils.clip_grads_with_norm_(mine, max_norm, total)
        return total

    @property
    def rank(self) -> int:
        """Which of the cluster's devices this process has."""
        return self._processes.rank

    @property
    def runs_on(self) -> dict[str, str]:
        """The physical device of each device of the cluster; those of others by their rank."""
        here = self._stepper.device
        return {
            device.name: str(here.torch_device) if device is here else f"rank {device.index}"
            for device in self._assigner.devices
        }

    @property
    def transfers(self) -> int:
        """How many tensors this rank sent so far."""
        return self._stepper.transport.messages

    def restore(self) -> Any:
        """Refuse once weights are gone: other ranks have them."""
        if self._guard is not None:
            raise InputError(
                "restore: the model is placed over ranks, and this one has a part of its weights: "
                "build the model again"
            )
        return super().restore()

    def verify(self, *_: Any, **__: Any) -> Any:
        """Refuse: it compares calls of the model."""
        raise InputError(
            "verify compares calls, and over ranks there are steps only: verify the plan in one "
            "process, by place(..., plan=placed.plan, ranks=False)"
        )

    def __repr__(self) -> str:
        name, rank, count = type(self.model).__name__, self.rank, self._processes.count
        return f"<Placed {name} over ranks, {rank} of {count}>"


def planned_over_ranks(
    asked: Request, micro_batches: Any, loss: Any, targets: Any, processes: Processes
) -> tuple[StepRequest, PlannedStep, Making | None]:
    """Return what rank 0 planned, on every rank, and what makes the weights there."""
    count = processes.count
    asked = replace(asked, devices=[processes.device] * count)
    with processes.agreeing("place this model") as facts:
        step = StepRequest(asked, micro_batches, loss, targets)
        facts.update(_facts(asked, targets))
        making = making_of(asked.model, asked.weights)
        if making is not None:
            facts["seed, files, numbers or code that weights are made with"] = making.facts()
    found: PlannedStep | None = None
    with processes.agreeing("plan this step"):
        if processes.rank == 0:
            found = planned_step(step)
    texts = None if found is None else _texts_of(found.plan)
    plan_text, graph_text = processes.from_first(texts)
    with processes.agreeing("place this model by the plan of rank 0") as facts:
        if found is None:
            plan = Plan.from_json(plan_text, Graph.from_json(graph_text))
            step = StepRequest(replace(asked, plan=plan), plan.micro_batches, loss, targets)
            found = planned_step(step)
        facts["plan"] = digest("".join(_texts_of(found.plan)))[:16]
    return step, found, making


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
) -> PlacedOverRanks:
    """Return a model of which every rank has its part.

    Args:
        place: Places the model on the device of this rank; nothing that others hold is gone yet.
        step: What was asked for.
        found: The plan.
        making: What makes the weights of a model on the meta device.
        processes: Over which it is to run.

    """
    placed: list[PlacedOverRanks] = []
    try:
        with processes.agreeing("place this model") as facts:
            placed.append(place())
            given = step.asked.example_inputs, step.targets
            facts.update(placed[0].take_ranks(processes, found.step_plan, *given))
        if making is not None:
            placed[0].make(making)
    except BaseException:
        for each in placed:
            each.restore()
        raise
    placed[0].release()
    return placed[0]
