# SPDX-License-Identifier: Apache-2.0
"""States of a model over ranks: gathered, and as checkpoints, a part of which each rank writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from baechi.torch.placed import Placed
from baechi.torch.ranks.errors import digest
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.values import sum_of
from baechi.torch.ranks.weights import Guard, RankWeights
from baechi.torch.weights import checkpoint, named_state, sources

_SENT_ALONE = 1  # elements of a tensor that is no longer told with others


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
            checkpoint.check_is_plain(state, "state_dict")
        known: dict[int, Any] = {}
        for name, value in state.items():
            if id(value) not in known:
                is_there = name in owners
                known[id(value)] = self._from(owners[name], value.detach()) if is_there else value
        return {name: known[id(value)] for name, value in state.items()}

    def _from(self, owner: int, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor of another rank, or of this one, on the host."""
        here = owner == self.processes.rank
        host = torch.empty(value.shape, dtype=value.dtype)
        return self.processes.have(host.copy_(value) if here else host, owner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the whole model; every rank takes its own."""
        self.load(state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer by names, on the host of every rank."""
        with self.processes.agreeing("gather the state of an optimizer") as facts:
            mine = named_state.named_state(self.model, optimizer, self._is_told)
            facts["groups of parameters"] = _digest(mine["param_groups"])

        def told(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            small = value.numel() <= _SENT_ALONE
            return value.detach().cpu() if small else torch.empty_like(value, device="meta")

        named = mine["state"].items()
        small = {name: {key: told(v) for key, v in kept.items()} for name, kept in named}
        found: dict[str, dict[str, Any]] = {}
        for rank, each in enumerate(self.processes.gathered(small)):
            for name, kept in each.items():
                own = mine["state"].get(name, kept)
                found[name] = {
                    key: self._from(rank, own[key].detach())
                    if isinstance(value, torch.Tensor) and value.is_meta
                    else value
                    for key, value in kept.items()
                }
        return {"state": found, "param_groups": mine["param_groups"]}

    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load the state of an optimizer; every rank takes what its own parameters need."""
        with self.processes.agreeing("load the state of an optimizer") as facts:
            named = named_state.checked_state(self.model, optimizer, state)
            names = {name: sorted(kept) for name, kept in named["state"].items()}
            facts["state of the optimizer"] = _digest((names, named["param_groups"]))
        named_state.load_named(self.model, optimizer, named, self._is_here)

    def save(
        self, folder: str | os.PathLike[str], *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Write a checkpoint, every rank its own part of it."""
        path, kept = Path(folder), None
        with self.processes.agreeing("save a checkpoint") as facts:
            facts["folder"] = str(path)
            state = self._guard.state_of(self.model)
            checkpoint.check_can_be_written(path, state)
            if optimizer is not None:
                kept = named_state.named_state(self.model, optimizer, self._is_told)
                facts["groups of parameters"] = _digest(kept["param_groups"])
        with self.processes.agreeing("save a checkpoint"):
            if self.processes.rank == 0:
                checkpoint.write_beside(path, self.plan, {"processes": self.processes.count})
        own = {name: t.detach() for name, t in state.items() if self._is_told(name)}
        with self.processes.agreeing("save a checkpoint"):
            checkpoint.write(path, own, kept, self.processes.group)

    def load(self, source: Any, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Load weights; every rank reads its own, and all do or none."""
        wanted, kept = self._guard.state_of(self.model), None
        own = [name for name in wanted if self._is_here(name)]
        with self.processes.agreeing("load these weights") as facts:
            found = sources.source_of(source)
            names = sources.matched(found, wanted)
            facts["names and shapes of what is loaded"] = _digest(found.shapes)
            if isinstance(source, Mapping):
                facts["values of the state"] = _digest({n: sum_of(t) for n, t in source.items()})
            values = found.read(dict.fromkeys(names[name] for name in own))
            if optimizer is not None:
                state = found.optimizer_state(own)
                kept = named_state.checked_state(self.model, optimizer, state)
                facts["groups of parameters"] = _digest(kept["param_groups"])
        with torch.no_grad():
            for name in own:
                wanted[name].copy_(values[names[name]])
        if kept is not None and optimizer is not None:
            named_state.load_named(self.model, optimizer, kept, self._is_here)


def _digest(value: Any) -> str:
    return digest(repr(value))[:16]
