# SPDX-License-Identifier: Apache-2.0
"""A model placed over the processes of torch.distributed, as its user holds it on each of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from baechi._core import InputError
from baechi.summary import Summary, in_time
from baechi.torch.base import _private
from baechi.torch.base.mini_batch import check_no_values, cut, samples_in
from baechi.torch.placed import Placed
from baechi.torch.ranks.caller import RankCaller
from baechi.torch.ranks.elsewhere import guard, release, stand_for_gradients
from baechi.torch.ranks.errors import RankError, digest
from baechi.torch.ranks.processes import Facts, Processes
from baechi.torch.ranks.scaling import agree_on
from baechi.torch.ranks.stepper import RankStepper
from baechi.torch.ranks.weights import Guard, gathered, gathered_optimizer, sample_of, total_norm
from baechi.torch.record.capture import call_arguments
from baechi.torch.run.stepping import StepPlan, check_scaler
from baechi.torch.weights.checkpoint import check_can_be_written, write, write_beside
from baechi.torch.weights.homes import named_weights
from baechi.torch.weights.making import Making
from baechi.torch.weights.named_state import checked_state, load_named, named_state
from baechi.torch.weights.optimizer_state import forget
from baechi.torch.weights.sources import matched, source_of

_SAMPLED = 64  # values of each weight of a state that ranks compare


class PlacedOverRanks(Placed):
    """A model of which this process runs the part on one device, until `restore`."""

    _processes: Processes
    _guard: Guard | None = None  # once only the weights of this rank are here
    predicted_step_ns: int | None = None  # of a step, with the all-reduce of replicas
    why_replicas: str = ""  # where their number was chosen
    _elsewhere: Sequence[tuple[str, torch.Tensor, int]] = ()  # the weights of other ranks

    def take_ranks(
        self, processes: Processes, planned: StepPlan, inputs: Any, targets: Any, outputs: str
    ) -> Facts:
        """Have steps and calls run this rank's part; return what all ranks must know alike."""
        self._processes = processes
        self._stepper: RankStepper = RankStepper(self._assigner, planned, processes)
        name = type(self.model).__name__
        self._assigner.refused = (
            f"a part of {name} was called, which is placed over ranks: call the whole model, or "
            "run loss = placed.step(inputs, targets)"
        )
        self._assigner.fix_types(
            f"{name} is placed over ranks, each of which has a part of its weights, so that their "
            "type cannot change: call model.float(), .half() or .to(dtype) before place"
        )
        stepper, behind = self._stepper, self._stand_for_gradients
        caller = RankCaller(self._assigner, planned, processes, stepper, behind, outputs)
        self._assigner.call_elsewhere = caller.call
        if not planned.is_of_calls:
            return stepper.facts(inputs, targets)
        return caller.facts(*call_arguments(inputs))

    def _stand_for_gradients(self) -> None:
        stand_for_gradients(self._elsewhere)

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

    def step(self, inputs: Any, targets: Any = None, *, scaler: Any = None) -> torch.Tensor:
        """Run this rank's part of a step; gradients are where their weights are."""
        loss = super().step(inputs, targets, scaler=scaler)
        self._stand_for_gradients()
        return loss

    def agree_on(self, scaler: Any) -> Any:
        """Have a GradScaler skip a step on all ranks where one finds an infinity; return it."""
        check_scaler(scaler)
        agree_on(scaler, self._processes)
        return scaler

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
        if self.replica:  # they all have the same, and the first one writes it
            own = {}
        kept = None
        with self._processes.agreeing("save a checkpoint") as facts:
            facts["folder"] = str(path)
            check_can_be_written(path, state)
            if optimizer is not None:
                kept = self._own_state_of(optimizer)
                facts["groups of parameters"] = digest(repr(kept["param_groups"]))[:16]
        with self._processes.agreeing("save a checkpoint"):
            if self._processes.number == 0:
                write_beside(path, self.plan, {"processes": self._processes.count})
        with self._processes.agreeing("save a checkpoint"):
            kept = None if self.replica else kept
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
    def replica(self) -> int:
        """Which of the replicas this process is of."""
        return self._processes.replica

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self._processes.replicas

    def share(self, batch: Any) -> Any:
        """Return this replica's part of what all of them are to train on."""
        if self.replicas > 1:
            check_no_values(batch, samples_in(batch, "batch"), "batch", parts="every replica")
        return cut(batch, self.replicas)[self.replica]

    @property
    def mesh(self) -> Any:
        """The processes as a DeviceMesh, by replica and device; None without replicas."""
        return None if self.replicas == 1 else self._processes.mesh

    @property
    def runs_on(self) -> dict[str, str]:
        """The physical device of each device of the cluster; those of others by their rank."""
        here, number = self._stepper.device, self._processes.number_of
        return {
            device.name: str(here.torch_device)
            if device is here
            else f"rank {number(device.index)}"
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
        """Refuse: no rank can run the model alone."""
        raise InputError(
            "verify compares with one device, and over ranks each has a part of the weights: "
            "verify the plan in one process, by place(..., plan=placed.plan, ranks=False)"
        )

    def _summary(self) -> Summary:
        said = super()._summary()
        if self.replicas > 1 or self.why_replicas:
            took, means = self.predicted_step_ns, ""
            if took is not None and self.replicas > 1:
                means = f", {in_time(took)} with the means of their gradients"
            many = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
            said.below.append(f"{many}{means}{self.why_replicas}")
        return said

    def __repr__(self) -> str:
        name, rank, count = type(self.model).__name__, self.rank, self._processes.count
        which = f", replica {self.replica} of {self.replicas}" if self.replicas > 1 else ""
        return f"<Placed {name} over ranks, {rank} of {count}{which}>"
