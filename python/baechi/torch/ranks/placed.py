# SPDX-License-Identifier: Apache-2.0
"""A model placed over the processes of torch.distributed, as its user holds it on each of them."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi._core import InputError
from baechi.torch.graph.optimizers import updates_of
from baechi.torch.placed import Placed
from baechi.torch.planned_step import PlannedStep
from baechi.torch.private import call_compiled
from baechi.torch.program.parts import REDUCE
from baechi.torch.program.peaks import whole
from baechi.torch.ranks.calls import RankCalls
from baechi.torch.ranks.errors import RankError, sum_of
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.program import RankPlacement
from baechi.torch.ranks.replicas import buckets_of
from baechi.torch.ranks.steps import RankSteps
from baechi.torch.ranks.weights import RankWeights, owners_of
from baechi.torch.request import Request
from baechi.torch.run.footprint import peak_of_loss
from baechi.torch.weights import checkpoint, named_state, sources
from baechi.torch.weights.parts import Parts
from baechi.torch.where import Homes
from baechi.torch.where.moving import map_tensors


class RankPlaced(Placed):
    """A model of which this process runs the part on one device.

    All ranks call each of its methods that save, load, gather or clip.
    """

    _backend: RankCalls
    _placement: RankPlacement
    _steps: RankSteps | None
    _kind_of_steps = RankSteps

    def __init__(self, planned: PlannedStep, asked: Request, processes: Processes) -> None:
        self.processes = processes
        super().__init__(planned, asked)

    def _made_placement(self, *given: Any) -> RankPlacement:
        how, buckets = self.asked.search, buckets_of(self.planned)
        options = {"compile": bool(how.compile), "replay": how.replay}
        made = RankPlacement(self.processes, *given, **options)
        made.buckets = buckets
        made.starts |= {f"{name}:{REDUCE}": [start] for name, (start, _) in buckets.items()}
        return made

    def _made_backend(self) -> RankCalls:
        return RankCalls(self._placement)

    def _install(self, homes: dict[str, int]) -> None:
        """Keep the weights of this rank, and have calls run its part."""
        model, processes = self.model, self.processes
        owners = owners_of(self.planned, model)
        self._weights = self._placement.weights = RankWeights(model, owners, processes.part)
        weights, store, here = self._weights, self._placement.away.store, processes.device
        away = {name: here for name in weights.own if homes.get(name, 0) == store}
        self._runs_on = away
        there = {name: self._devices[store or 0] if name in away else here for name in weights.own}
        Homes(model, there, away).move()
        weights.let_go(here, processes.traced, away)
        call_compiled(model, torch.compiler.disable(self._backend.call))

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
            sizes = [tensor.nbytes]
            sizes += kept(tensor) if tensor.requires_grad else ()
            held[self._placement.homes.get(weights.names[i], 0)] += sum(map(whole, sizes))
        found = [held[i] + weights.stand_ins(i) + max(own for own, *_ in most[i]) for i in parts]
        if store is not None:
            found.append(held[store] + sum(max(own for _, own in each) for each in most.values()))
        return dict(zip(self.planned.names, found, strict=True))

    def _peaks_of(self, device: int) -> list[list[int]]:
        """Return what its rank held beside weights in the last step, and in the last call."""
        found = []
        if self._steps and self._steps.last:
            found.append(self._steps.peaks_of(device))
        if self._backend.last is not None:
            graph, batch = self._backend.last
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

    def _is_here(self, name: str) -> bool:
        return self._weights.owners[name] == self.processes.part

    def _is_told(self, name: str) -> bool:
        """Tell whether others have it from this rank: it is here, and of the first replica."""
        return self._weights.owners[name] == self.processes.rank

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the whole model, on the host of every rank."""
        with self.processes.agreeing("gather the state of the model"):
            state, owners = self._weights.state_of(self.model), self._weights.owners
        known: dict[int, Any] = {}
        for name, value in state.items():
            if id(value) not in known:
                known[id(value)] = self._from(owners[name], value) if name in owners else value
        return {name: known[id(value)] for name, value in state.items()}

    def _from(self, owner: int, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor of another rank, or of this one, on the host."""
        if is_traceable_wrapper_subclass(value):
            like = value.detach().to("cpu")
            names, about = like.__tensor_flatten__()
            parts = {name: self._from(owner, getattr(like, name)) for name in names}
            return type(like).__tensor_unflatten__(parts, about, like.shape, like.stride())
        here = owner == self.processes.rank
        host = torch.empty(value.shape, dtype=value.dtype)
        return self.processes.have(host.copy_(value.detach()) if here else host, owner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the whole model; every rank takes its own."""
        self.load(state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer by names, on the host of every rank."""
        with self.processes.agreeing("gather the state of an optimizer") as facts:
            mine = named_state.named_state(self.model, optimizer, self._is_told)
            facts["groups of parameters"] = repr(mine["param_groups"])
        shown = map_tensors(lambda t: torch.empty_like(t, device="meta"), mine["state"])
        found: dict[str, Any] = {}
        for rank, each in enumerate(self.processes.gathered(shown)):
            own = mine["state"] if rank == self.processes.rank else each
            found |= map_tensors(functools.partial(self._from, rank), own)
        return {"state": found, "param_groups": mine["param_groups"]}

    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load the state of an optimizer; every rank takes what its own parameters need."""
        with self.processes.agreeing("load the state of an optimizer") as facts:
            named = named_state.checked_state(self.model, optimizer, state)
            names = {name: sorted(kept) for name, kept in named["state"].items()}
            facts["state of the optimizer"] = repr((names, named["param_groups"]))
        named_state.load_named(self.model, optimizer, named, self._is_here)

    def save(
        self, folder: str | os.PathLike[str], *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Write a checkpoint, every rank its own part of it."""
        path, kept = Path(folder), None
        with self.processes.agreeing("save a checkpoint") as facts:
            facts["folder"] = str(path)
            if optimizer is not None:
                kept = named_state.named_state(self.model, optimizer, self._is_told)
                facts["groups of parameters"] = repr(kept["param_groups"])
            parts = checkpoint.to_write(path, self._weights.state_of(self.model), kept)
        with self.processes.agreeing("save a checkpoint"):
            if self.processes.rank == 0:
                checkpoint.write_beside(path, self.plan, self.processes.count, parts)
        home, rank = self._weights.home_of, self.processes.rank
        own = {n: t.detach() for n, t in parts.tensors.items() if home.get(id(t), 0) == rank}
        with self.processes.agreeing("save a checkpoint"):
            checkpoint.write(path, own, kept, self.processes.group)

    def load(self, source: Any, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Load weights; every rank reads its own, and all do or none."""
        parts, kept = Parts(self._weights.state_of(self.model)), None
        home, part = self._weights.home_of, self.processes.part
        own = {n: t for n, t in parts.tensors.items() if home.get(id(t), part) == part}
        with self.processes.agreeing("load these weights") as facts:
            found = sources.source_of(source)
            names = sources.matched(found, parts)
            facts["names and shapes of what is loaded"] = repr(found.shapes)
            if isinstance(source, Mapping):
                facts["values of the state"] = repr([*map(sum_of, source.values())])
            values = found.read(dict.fromkeys(names[name] for name in own))
            if optimizer is not None:
                state = found.optimizer_state(filter(self._is_here, self._weights.owners))
                kept = named_state.checked_state(self.model, optimizer, state)
                facts["groups of parameters"] = repr(kept["param_groups"])
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(values[names[name]])
        if kept is not None and optimizer is not None:
            named_state.load_named(self.model, optimizer, kept, self._is_here)

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
