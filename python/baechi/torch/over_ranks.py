# SPDX-License-Identifier: Apache-2.0
"""A placement over the processes of torch.distributed: one plan, one device for each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from baechi import __version__
from baechi._core import Graph, InputError, Plan
from baechi.pipeline import cluster_of
from baechi.torch.base.devices import accelerators, usable
from baechi.torch.base.nested import tensors_in
from baechi.torch.micro_batched import PlannedStep, StepRequest, planned_step
from baechi.torch.placed import Placed
from baechi.torch.planning import Request
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
    check_state,
    check_whole,
    gathered,
    release,
    sample_of,
    total_norm,
)
from baechi.torch.run.stepping import StepPlan
from baechi.torch.weights.homes import named_weights

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
    if asked.plan is None and asked.cluster == "auto":
        raise InputError(
            f"there are {count} processes, and over ranks cluster='auto' is not there yet: name "
            f"the devices, one for each process, e.g. cluster='{count}x24GiB'; {_ALONE}"
        )
    cluster = cluster_of(asked.cluster) if asked.plan is None else asked.plan.cluster
    if len(cluster) != count:
        raise InputError(
            f"there are {count} processes and the cluster has {len(cluster)} devices: over ranks "
            f"each has one; start {len(cluster)} processes, or name {count} devices; {_ALONE}"
        )
    if micro_batches is None:
        raise InputError(
            "over ranks a model runs steps: give micro_batches=1, or more, and a loss; then "
            f"loss = placed.step(inputs, targets); {_ALONE}"
        )
    kinds = {device.kind for device in cluster.devices}
    if asked.costs == "measure" and len(kinds) > 1:
        raise InputError(
            "costs='measure' over ranks measures on rank 0 alone, and the cluster has devices of "
            f"{len(kinds)} kinds: give costs='estimate', or costs that were measured before"
        )
    given = asked.devices
    if given is not None and len(given) != count:
        raise InputError(f"{len(given)} devices are given for a cluster of {count}")
    return Processes.on(_own_device(given, cluster.devices[own_rank()].kind))


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

    def release(self) -> None:
        """Let go of the weights that other ranks have."""
        for weight in self._others():
            release(weight)
        self._guard = Guard(self.model)

    @property
    def _owners(self) -> dict[int, int]:
        """The rank that has each weight, by id."""
        rank = {device.name: device.index for device in self._assigner.devices}
        where = self.weight_devices
        return {id(w): rank[where[name]] for name, w in named_weights(self.model)}

    def _others(self) -> list[torch.Tensor]:
        owners = self._owners
        return [w for _, w in named_weights(self.model) if owners[id(w)] != self.rank]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the whole model, on the host of every rank; all ranks call it."""
        assert self._guard is not None
        self._processes.agree("gather the state of the model", {})
        return gathered(self._guard.state_of(self.model), self._owners, self._processes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the whole model; every rank takes its own from what it is given."""
        assert self._guard is not None
        wanted, owners = self._guard.state_of(self.model), self._owners
        with self._processes.agreeing("load this state") as facts:
            check_state(state, wanted)
            texts = [sample_of(state[name], _SAMPLED).hex() for name in wanted]
            facts["values of the state"] = digest("".join(texts))[:16]
        with torch.no_grad():
            for name, weight in wanted.items():
                if owners.get(id(weight)) == self.rank:
                    weight.copy_(state[name])

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
) -> tuple[StepRequest, PlannedStep]:
    """Return what rank 0 planned, on every rank."""
    count = processes.count
    asked = replace(asked, devices=[processes.device] * count)
    with processes.agreeing("place this model") as facts:
        step = StepRequest(asked, micro_batches, loss, targets)
        facts.update(_facts(asked, targets))
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
    return step, found


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
    place: Callable[[], Any], step: StepRequest, found: PlannedStep, processes: Processes
) -> PlacedOverRanks:
    """Return a model of which every rank has its part.

    Args:
        place: Places the model on the device of this rank; nothing that others hold is gone yet.
        step: What was asked for.
        found: The plan.
        processes: Over which it is to run.

    """
    placed: list[PlacedOverRanks] = []
    try:
        with processes.agreeing("place this model") as facts:
            placed.append(place())
            given = step.asked.example_inputs, step.targets
            facts.update(placed[0].take_ranks(processes, found.step_plan, *given))
    except BaseException:
        for each in placed:
            each.restore()
        raise
    placed[0].release()
    return placed[0]
