# SPDX-License-Identifier: Apache-2.0
"""States of a model over ranks: gathered, and as checkpoints, a part of which each rank writes."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi.torch.placed import Placed
from baechi.torch.ranks.errors import digest, sum_of
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.weights import Guard, RankWeights
from baechi.torch.weights import checkpoint, named_state, sources
from baechi.torch.weights.parts import Parts
from baechi.torch.where.moving import map_tensors


class RankStates(Placed):
    """What a model over ranks saves and loads; all ranks call each of these."""

    processes: Processes
    _weights: RankWeights
    _guard: Guard

    def _is_here(self, name: str) -> bool:
        return self._weights.owners[name] == self.processes.part

    def _is_told(self, name: str) -> bool:
        """Tell whether others have it from this rank: it is here, and of the first replica."""
        return self._weights.owners[name] == self.processes.rank

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the whole model, on the host of every rank."""
        with self.processes.agreeing("gather the state of the model"):
            state, owners = self._guard.state_of(self.model), self._weights.owners
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
            facts["groups of parameters"] = digest(repr(mine["param_groups"]))
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
            facts["state of the optimizer"] = digest(repr((names, named["param_groups"])))
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
                facts["groups of parameters"] = digest(repr(kept["param_groups"]))
            parts = checkpoint.to_write(path, self._guard.state_of(self.model), kept)
        with self.processes.agreeing("save a checkpoint"):
            if self.processes.rank == 0:
                checkpoint.write_beside(path, self.plan, self.processes.count, parts)
        home, rank = self._weights.home_of, self.processes.rank
        own = {n: t.detach() for n, t in parts.tensors.items() if home.get(id(t), 0) == rank}
        with self.processes.agreeing("save a checkpoint"):
            checkpoint.write(path, own, kept, self.processes.group)

    def load(self, source: Any, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Load weights; every rank reads its own, and all do or none."""
        parts, kept = Parts(self._guard.state_of(self.model)), None
        home, part = self._weights.home_of, self.processes.part
        own = {n: t for n, t in parts.tensors.items() if home.get(id(t), part) == part}
        with self.processes.agreeing("load these weights") as facts:
            found = sources.source_of(source)
            names = sources.matched(found, parts)
            facts["names and shapes of what is loaded"] = digest(repr(found.shapes))
            if isinstance(source, Mapping):
                facts["values of the state"] = digest(repr([*map(sum_of, source.values())]))
            values = found.read(dict.fromkeys(names[name] for name in own))
            if optimizer is not None:
                state = found.optimizer_state(filter(self._is_here, self._weights.owners))
                kept = named_state.checked_state(self.model, optimizer, state)
                facts["groups of parameters"] = digest(repr(kept["param_groups"]))
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(values[names[name]])
        if kept is not None and optimizer is not None:
            named_state.load_named(self.model, optimizer, kept, self._is_here)
