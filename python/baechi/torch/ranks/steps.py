# SPDX-License-Identifier: Apache-2.0
"""Steps over ranks: each rank collects all micro-batches, and runs its part of their program."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.capture.loss import call_arguments
from baechi.torch.graph.graph import source_of
from baechi.torch.program import Parts, Program
from baechi.torch.program.parts import with_reductions
from baechi.torch.program.peaks import whole
from baechi.torch.ranks.errors import facts_of
from baechi.torch.ranks.gradients import is_finite, stand_for_gradients
from baechi.torch.ranks.processes import Agreement
from baechi.torch.ranks.program import READ, RankPlacement, RankProgram
from baechi.torch.run.footprint import bytes_of_batch
from baechi.torch.run.joint import Joint
from baechi.torch.run.mini_batch import parts_of, samples_in
from baechi.torch.run.steps import Collectable, Group, Steps, scale_of


class RankSteps(Steps):
    """What `placed.step` runs on one rank."""

    placement: RankPlacement
    last: Sequence[RankProgram] = ()  # what the last step ran
    batch = 0  # bytes of its batch on the device
    _is_dynamic = False  # messages have sizes

    def __init__(self, model: nn.Module, loss: Any, placement: RankPlacement, *sizes: int) -> None:
        super().__init__(model, loss, placement, *sizes)
        self.processes, self.weights = placement.processes, placement.weights
        self._sums: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of weights, by id

    def __call__(self, inputs: Any, targets: Any, scaler: Any) -> torch.Tensor:
        """Run this rank's part of a mini-batch; return the mean loss.

        Gradients change once all ranks have come to the end: behind an error they are as before.
        """
        try:
            loss = self._step(inputs, targets, scaler)
        finally:
            self._sums.clear()
        stand_for_gradients(self.weights.away)
        return loss

    def _step(self, inputs: Any, targets: Any, scaler: Any) -> torch.Tensor:
        placement, processes = self.placement, self.processes
        inputs, targets = placement.traced((inputs, targets))
        with processes.agreeing("run this step", waits=False) as facts:
            facts |= placement.facts_of((inputs, targets))
            scale = scale_of(scaler, processes.device)
            facts["scale"] = str(scale)
            with placement.tracing():
                groups = self._groups(inputs, targets)
            programs = [self._program_of(found, group) for found, group, _ in groups]
            facts["program"] = " ".join(program.digest for program in programs)
            given = [value for _, group, _ in groups for args in group for value in args]
            facts[READ] = facts_of(placement.others_of(given, (inputs, targets)))
            self._check_unchanged(groups)
        self.last, losses, error = [], list[torch.Tensor](), None
        for one, part in zip(groups, programs, strict=True):
            run = functools.partial(self._run_group, *one, scale) if error is None else list[Any]
            made, failed = part.tried(run, processes.rank)
            losses, error = losses + made, error or failed
            self.last = [*self.last, part]
        return self._ended(losses, groups, error, scaler)

    def _check_unchanged(self, groups: list[Group]) -> None:
        """Raise InputError where one rank alone would have what becomes of a tensor."""
        for found, group, _ in groups:
            for place in found.joint.mutated:
                if id(changed := group[0][place]) not in self.weights.names:
                    raise InputError(
                        f"{type(self.model).__name__} or the loss changes a tensor of shape "
                        f"{tuple(changed.shape)} in place, which is no buffer of the model, so "
                        "that one rank would have its new values: register it as a buffer, or "
                        "change a copy of what is of the batch"
                    )

    def _give(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Keep a gradient until all ranks have come to the end."""
        _, known = self._sums.get(id(weight), (weight, None))
        self._sums[id(weight)] = weight, gradient if known is None else known.add_(gradient)

    def _ended(
        self, losses: list[torch.Tensor], groups: list[Any], error: Exception | None, scaler: Any
    ) -> torch.Tensor:
        """Return the loss, which one rank has; all go on, or none."""
        processes, total, finite = self.processes, 0.0, True
        try:
            total = float(sum(losses)) if losses else 0.0
            finite = scaler is None or all(map(self._is_finite, self.weights.own.values()))
        except Exception as failed:
            error = error or failed
        numbers = total, float(finite), float(bool(losses))
        what = "finish this step (gradients stay as they were)"
        told = Agreement(processes, what, {}, error, numbers)
        given = (value for _, group, _ in groups for args in group for value in args)
        (self.batch,) = bytes_of_batch(self.model, [processes.traced], given)
        found = told.numbers()
        for weight, gradient in self._sums.values():
            super()._give(weight, gradient)
        if finite and not all(each[1] for each in found):
            self.weights.be_infinite()
        joint = groups[0][0].joint
        like = joint.results[groups[0][0].loss].meta["val"]
        self._share_buffers(groups)
        there = [rank for rank, each in enumerate(found) if each[2]]
        loss = sum({processes.replicas.number[rank]: found[rank][0] for rank in there}.values())
        return torch.tensor(loss, dtype=like.dtype, device=self.processes.device)

    def _is_finite(self, weight: torch.Tensor) -> bool:
        """Tell whether a gradient will be, if there is one."""
        _, new = self._sums.get(id(weight), (weight, None))
        parts = [part for part in (weight.grad, new) if part is not None]
        return not parts or is_finite(functools.reduce(torch.add, parts))

    def _share_buffers(self, groups: list[Any]) -> None:
        """Have all replicas go on with the buffers of the first."""
        known, processes = self.weights.home_of, self.processes
        for found, group, _ in groups if processes.replicas.count > 1 else ():
            for place in found.joint.mutated:
                if known.get(id(buffer := group[0][place])) == processes.part:
                    host = buffer.detach().to("cpu", copy=True).contiguous()
                    buffer.copy_(processes.have(host, processes.part, processes.alike))

    def peaks_of(self, device: int) -> list[int]:
        """Return the most bytes of a device, and of its rank's store, in the last step.

        They are beside weights and buffers; in a store what lies there for all ranks is of rank 0.
        """
        weights, homes, store = self.weights, self.placement.homes, self.placement.away.store
        sums = Counter[int]()  # of the gradients that the programs before have made
        for i, tensor in weights.tensors.items() if len(self.last) > 1 else ():
            if tensor.requires_grad:
                sums[homes.get(weights.names[i], 0)] += whole(tensor.nbytes)
        most = [program.peaks_of(device) for program in self.last]
        batch = self.batch if self.processes.is_traced[device] else 0
        found = [batch + max(own + (sums[device] if i else 0) for i, (own, *_) in enumerate(most))]
        if store is not None:
            there = max(own for _, own in most)
            found.append(there if device else there + sums[store])
        return found

    def _groups(self, inputs: Any, targets: Any) -> list[Group]:
        """Return the micro-batches, those of one graph together, with their shares."""
        count = samples_in(inputs, "inputs", targets)
        self._collected.clear()
        shares = []
        why = self._why_whole_gradients()
        for part, size in self._own_parts(parts_of((inputs, targets), count, self.size)):
            args, kwargs = call_arguments(part[0])
            why = why or self._collected_or_why(args, kwargs, part[1])
            shares.append(size / count)
        if why:
            raise self.placement.no_graph("step", why)
        return self._grouped(shares)

    def _own_parts(self, parts: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """Return this replica's micro-batches: all have as many, of the same sizes.

        Where none is left for it, it runs the last one, too, but its samples count elsewhere.
        """
        replicas, number = self.processes.replicas.count, self.processes.replica
        found = []
        for _, same in itertools.groupby(parts, lambda part: part[1]):
            there = list(same)
            each, left = divmod(len(there), replicas)
            found += there[number * each :][:each]
            if left:
                place = replicas * each + number
                found.append(there[place] if number < left else (there[-1][0], 0))
        return found

    def _finish(
        self, parts: Parts, count: int, found: Collectable, gradients: Sequence[int]
    ) -> None:
        """Have gradients be sums over replicas, in the buckets of the plan; one has the rest."""
        if self.processes.replicas.count == 1:
            return
        buckets = self.placement.buckets
        places: dict[str, list[int]] = {name: [] for name in (*buckets, "unplanned")}
        for i in gradients:
            node, part = source_of(found.joint.results[i])
            made = found.names.get(node, ""), part
            named = (name for name, (_, known) in buckets.items() if made in known)
            places[next(named, "unplanned")].append(i)
        with_reductions(parts, count, places)

    def _existing(self, weights: Mapping[int, torch.Tensor]) -> frozenset[int]:  # noqa: ARG002
        return frozenset()  # ranks know their own gradients only, and have one program

    def _promised(self, joint: Joint) -> list[int | None]:
        """Return where outputs go: gradients and buffers home, the loss stays."""
        found: list[int | None] = []
        for i, result in enumerate(joint.results):
            place = _input_of(joint, i)
            if i >= joint.returned and result is not None and place not in joint.homes:
                raise InputError(
                    "loss: it has parameters that are trained, which over ranks no rank would "
                    "have: make them a part of the model"
                )
            found.append(joint.homes.get(place))
        return found

    def _program_of(self, found: Collectable, group: Sequence[tuple[Any, ...]]) -> RankProgram:
        made: RankProgram = self._program(found, len(group), self._shared(group), frozenset())[1]
        return made

    def _runnable(self, program: Program, parts: Parts, joint: Joint) -> Callable[..., Any]:
        """Return what runs this rank's part of a program."""
        known = {place: self.weights.owners[name] for place, name in joint.weights.items()}
        owners = [known.get(one.place) for one in parts.inputs]
        homes = [known.get(_input_of(joint, one.place)) for one in parts.outputs]
        return RankProgram(program, owners, homes, self.placement)


def _input_of(joint: Joint, output: int) -> int:
    """Return the input that an output is the gradient or the new value of; -1: of none."""
    if output >= joint.returned:
        return output - joint.returned
    return next((i for i, changed in joint.mutated.items() if changed == output), -1)
