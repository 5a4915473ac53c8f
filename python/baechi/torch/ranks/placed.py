# SPDX-License-Identifier: Apache-2.0
"""A model placed over the processes of torch.distributed, as its user holds it on each of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

from baechi._core import InputError
from baechi.torch.graph.optimizers import updates_of
from baechi.torch.planned_step import PlannedStep
from baechi.torch.private import call_compiled
from baechi.torch.program.peaks import whole
from baechi.torch.program.reductions import REDUCE
from baechi.torch.ranks.calls import RankCalls
from baechi.torch.ranks.errors import RankError
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.program import RankPlacement
from baechi.torch.ranks.replicas import buckets_of
from baechi.torch.ranks.states import RankStates
from baechi.torch.ranks.steps import RankSteps
from baechi.torch.ranks.weights import Guard, RankWeights, owners_of
from baechi.torch.request import Request
from baechi.torch.run.footprint import peak_of_loss
from baechi.torch.run.mini_batch import samples_in
from baechi.torch.where import Homes


class RankPlaced(RankStates):
    """A model of which this process runs the part on one device."""

    def __init__(self, planned: PlannedStep, asked: Request, processes: Processes) -> None:
        self.processes = processes
        super().__init__(planned, asked)

    def _install(self, homes: dict[str, int]) -> None:
        """Keep the weights of this rank, and have steps run its part."""
        model, processes = self.model, self.processes
        owners = owners_of(self.planned, model)
        weights = self._weights = RankWeights(model, owners, processes.part)
        store, here = self._placement.away.store, processes.device
        away = {name: here for name in weights.own if homes.get(name, 0) == store}
        self._runs_on = away
        there = {name: self._devices[store or 0] if name in away else here for name in weights.own}
        Homes(model, there, away).move()
        weights.let_go(here, processes.traced, away)
        self._guard = Guard(model)
        placement = self._placement
        assert isinstance(placement, RankPlacement)
        placement.weights = weights
        self._calls = RankCalls(model, placement, processes, self._backend.frames)
        call_compiled(model, torch.compiler.disable(self._calls.__call__))

    def _made_placement(self, *given: Any) -> RankPlacement:
        how = self.asked.search
        return RankPlacement(*given, compile=bool(how.compile), replay=how.replay)

    def _made_steps(self) -> RankSteps | None:
        if self.asked.micro_batches is None and self.planned.micro_batches == 1:
            return None
        placement = self._placement
        assert isinstance(placement, RankPlacement)
        placement.buckets = buckets = buckets_of(self.planned)
        placement.starts |= {f"{name}:{REDUCE}": [start] for name, (start, _) in buckets.items()}
        samples = samples_in(self.asked.example_inputs, "example_inputs", self.asked.targets)
        count = self.planned.micro_batches
        steps = RankSteps(self.model, self.asked.loss, placement, count, samples)
        return steps.over(self.processes, self._weights)

    @property
    def rank(self) -> int:
        """Which of the cluster's devices this process has."""
        return self.processes.rank

    @property
    def runs_on(self) -> dict[str, str]:
        """The physical device of each device of the cluster; those of others by their rank."""
        found = [f"rank {i}" for i in range(self.processes.count)]
        found[self.rank] = str(self.processes.device)
        store = self._placement.away.store
        found += [] if store is None else [str(self._devices[store])]
        return dict(zip(self.planned.names, found, strict=True))

    @property
    def peaks(self) -> dict[str, int]:
        """The most bytes of each device in the last step, and call with its backward.

        As planned before there is one.
        """
        parts, store = self.processes.replicas.part, self._placement.away.store
        most = {device: self._peaks_of(device) for device in parts}
        if not all(most.values()):
            return dict(self.plan.run_peaks or self.plan.peaks)
        weights, kept = self._weights, updates_of(self.asked.optimizer).kept
        held = Counter[int]()
        for i, tensor in weights.tensors.items():
            sizes = [tensor.numel() * tensor.element_size()]
            sizes += kept(tensor) if tensor.requires_grad else ()
            held[self._placement.homes.get(weights.names[i], 0)] += sum(map(whole, sizes))
        found = [held[i] + weights.stand_ins(i) + max(own for own, *_ in most[i]) for i in parts]
        if store is not None:
            found.append(held[store] + sum(max(own for _, own in each) for each in most.values()))
        return dict(zip(self.planned.names, found, strict=True))

    def _peaks_of(self, device: int) -> list[list[int]]:
        """Return what its rank held beside weights in the last step, and in the last call."""
        found = []
        if isinstance(self._steps, RankSteps) and self._steps.last:
            found.append(self._steps.peaks_of(device))
        if self._calls.last is not None:
            graph, batch = self._calls.last
            called = graph.peaks_of(device, batch, peak_of_loss(self.planned.step))
            found += [] if called is None else [called]
        return found

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip gradients by the norm of those of all ranks; all ranks call it."""
        mine = [w for w in self._weights.own.values() if w.grad is not None]
        norm = float(torch.nn.utils.get_total_norm([w.grad for w in mine], norm_type))
        facts = {"norm": f"{float(max_norm)} {float(norm_type)}"}
        norms = self.processes.agree("clip gradients", facts, None, [norm])
        found = [norms[rank][0] for rank in sorted(set(self.processes.replicas.part))]
        wrong = [rank for rank, each in enumerate(found) if not math.isfinite(each)]
        if error_if_nonfinite and wrong:
            raise RankError(f"the norm of the gradients of rank {wrong[0]} is {found[wrong[0]]}")
        total = torch.linalg.vector_norm(torch.tensor(found, dtype=torch.float64), norm_type)
        torch.nn.utils.clip_grads_with_norm_(mine, max_norm, total)
        return total

    def _granted(self) -> dict[torch.device, int]:
        """Return the bytes that the cluster has of this rank's device."""
        return {self.processes.device: self.plan.cluster.devices[self.rank].capacity}

    def restore(self) -> Any:
        """Refuse: other ranks have the rest of the weights."""
        raise InputError("restore: the model is placed over ranks: build it again")

    def verify(self, *_: Any, **__: Any) -> Any:
        """Refuse: no rank can run the model alone."""
        raise InputError(
            "verify: no rank can run the model alone: verify the plan in one process, by "
            "place(..., plan=placed.plan, ranks=False)"
        )

    def __repr__(self) -> str:
        name, count = type(self.model).__name__, self.processes.count
        replicas = self.processes.replicas.count
        more = f", in {replicas} replicas" if replicas > 1 else ""
        return f"<Placed {name} over ranks, {self.rank} of {count}{more}>"
