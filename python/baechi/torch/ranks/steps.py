# SPDX-License-Identifier: Apache-2.0
"""Steps over ranks: each rank collects all micro-batches, and runs its part of their program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi._core import InputError
from baechi.torch.capture.loss import call_arguments
from baechi.torch.graph.graph import source_of
from baechi.torch.program import Parts, Program
from baechi.torch.program.peaks import walk, whole
from baechi.torch.program.reductions import with_reductions
from baechi.torch.ranks.cutting import part_of
from baechi.torch.ranks.errors import digest
from baechi.torch.ranks.gradients import stand_for_gradients
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.replicas import Buckets
from baechi.torch.ranks.values import facts_of
from baechi.torch.ranks.weights import RankWeights
from baechi.torch.run import executor
from baechi.torch.run.footprint import beside, bytes_on
from baechi.torch.run.joint import Joint
from baechi.torch.run.mini_batch import parts_of, samples_in
from baechi.torch.run.placement import Placement
from baechi.torch.run.steps import Collectable, Steps

_GRAPHS = 64  # one for each size of a micro-batch, as messages have sizes
_SPREAD = 1_000_003  # between the seeds of ranks


class RankPlacement(Placement):
    """A placement whose devices are other processes': weights are found by what they are."""

    weights: RankWeights
    buckets: Buckets

    def homes_of(self, inputs: Sequence[Any]) -> dict[int, int]:
        """Return the device of each input that is a weight or a buffer, by its place."""
        known = self.weights.home_of
        return {i: known[id(value)] for i, value in enumerate(inputs) if id(value) in known}


class RankSteps(Steps):
    """What `placed.step` runs on one rank."""

    placement: RankPlacement
    sent = 0, 0  # messages and bytes of this rank so far
    last: Sequence[RankProgram] = ()  # what the last step ran
    batch = 0  # bytes of its batch on the device

    def over(self, processes: Processes, weights: RankWeights) -> RankSteps:
        """Return itself, to run over processes."""
        self.processes, self.weights = processes, weights
        self._compiled = torch.compile(
            self._one, backend=self._backend, fullgraph=True, dynamic=False
        )
        return self

    def __call__(self, inputs: Any, targets: Any, scaler: Any) -> torch.Tensor:
        """Run this rank's part of a mini-batch; return the mean loss."""
        processes = self.processes
        for weight, _ in self.weights.away.values():
            weight.grad = None  # what stands for one
        with processes.agreeing("run this step") as facts:
            facts["shapes of the batch"] = facts_of((inputs, targets), with_values=False)
            facts["values of the batch"] = facts_of((inputs, targets))
            facts["autocast"] = str(_autocast(processes.device))
            facts["scale"] = "1" if scaler is None else str(scaler.get_scale())
            with self.weights.shaped():
                groups = self._groups(inputs, targets)
            programs = [self._program_of(found, group) for found, group, _ in groups]
            facts["program"] = " ".join(program.digest for program in programs)
        given = [value for _, group, _ in groups for args in group for value in args]
        (self.batch,) = bytes_on([processes.device], beside(self.model, given))
        self.last = []
        losses: list[torch.Tensor] = []
        error: Exception | None = None
        with _own_random_numbers(processes):
            for (found, group, shares), part in zip(groups, programs, strict=True):
                try:
                    if error is None:
                        losses += self._run_group(found, group, shares, scaler)
                except Exception as failed:
                    if processes.failed:
                        raise
                    error = failed
                transport = part.part.transport
                transport.finish()
                self.last = [*self.last, part]
                mine = [m.slot for m in transport.messages if m.source == processes.rank]
                sent = [slot.dense for slot in mine if slot is not None]
                self.sent = self.sent[0] + len(sent), self.sent[1] + sum(sent)
        return self._ended(losses, groups, error, scaler)

    def _ended(
        self, losses: list[torch.Tensor], groups: list[Any], error: Exception | None, scaler: Any
    ) -> torch.Tensor:
        """Return the loss, which one rank has; all go on, or none."""
        processes = self.processes
        total = float(sum(losses)) if losses else 0.0
        own = [w for w in self.weights.own.values() if w.grad is not None]
        finite = scaler is None or all(bool(w.grad.isfinite().all()) for w in own)
        found = processes.ended([total, float(finite), float(bool(losses))], error)
        if finite and not all(each[1] for each in found):
            self._be_infinite(own)
        stand_for_gradients(self.weights.away)
        joint = groups[0][0].joint
        like = joint.results[groups[0][0].loss].meta["val"]
        self._share_buffers(groups)
        there = [rank for rank, each in enumerate(found) if each[2]]
        loss = sum({processes.replicas.number[rank]: found[rank][0] for rank in there}.values())
        return torch.tensor(loss, dtype=like.dtype, device=self.processes.device)

    def _be_infinite(self, own: list[torch.Tensor]) -> None:
        """Have this rank's scaler find an infinity, as that of another rank does."""
        for weight in own:
            if weight.grad.numel():
                weight.grad[(0,) * weight.grad.dim()] = float("inf")
                return
        trained = [weight for weight, _ in self.weights.away.values() if weight.requires_grad]
        for weight in sorted(trained, key=torch.Tensor.numel)[:1]:  # of a rank without weights
            weight.grad = torch.full_like(
                weight, float("inf"), memory_format=torch.contiguous_format
            )

    def _share_buffers(self, groups: list[Any]) -> None:
        """Have all replicas go on with the buffers of the first."""
        known = self.weights.home_of
        for found, group, _ in groups if self.processes.replicas.count > 1 else ():
            for place in found.joint.mutated:
                if known.get(id(buffer := group[0][place])) == self.processes.part:
                    self.processes.share(buffer)

    def peaks(self, kept: Callable[[torch.Tensor], Sequence[int]]) -> list[int]:
        """Return the most bytes of each rank in the last step, with what an optimizer keeps."""
        weights, found = self.weights, []
        for rank in self.processes.replicas.part:
            held = self.batch
            for i, tensor in weights.tensors.items():
                if weights.home_of[i] == rank:
                    held += whole(tensor.numel() * tensor.element_size())
                    held += sum(map(whole, kept(tensor))) if tensor.requires_grad else 0
            found.append(held + max(program.peak_of(rank) for program in self.last))
        return found

    def _groups(
        self, inputs: Any, targets: Any
    ) -> list[tuple[Collectable, list[Any], list[float]]]:
        """Return the micro-batches, those of one graph together, with their shares."""
        count = samples_in(inputs, "inputs", targets)
        self._collected.clear()
        shares = []
        for part, size in self._own_parts(parts_of((inputs, targets), count, self.size)):
            args, kwargs = call_arguments(part[0])
            self._collect_or_refuse(args, kwargs, part[1])
            shares.append(size / count)
        groups: list[tuple[Collectable, list[Any], list[float]]] = []
        for (found, args), share in zip(self._collected, shares, strict=True):
            if not groups or groups[-1][0] is not found:
                groups.append((found, [], []))
            groups[-1][1].append(args)
            groups[-1][2].append(share)
        self._collected.clear()
        return groups

    def _own_parts(self, parts: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """Return the micro-batches of this replica: all have as many, of the same sizes."""
        replicas, sizes = self.processes.replicas.count, [size for _, size in parts]
        each = len(parts) // replicas
        if sizes != sizes[:each] * replicas:
            raise InputError(
                f"inputs: {sum(sizes)} samples are micro-batches of {', '.join(map(str, sizes))}, "
                f"and each of {replicas} replicas needs as many of the same sizes: give a "
                f"multiple of {replicas * self.size} samples (DataLoader: drop_last=True)"
            )
        return parts[self.processes.replica * each :][:each]

    def _collect_or_refuse(self, args: Any, kwargs: Any, targets: Any) -> None:
        with torch._dynamo.config.patch(recompile_limit=_GRAPHS):
            why = self._why_whole_gradients() or self._collected_or_why(args, kwargs, targets)
        if why:
            name = type(self.model).__name__
            raise InputError(
                f"over ranks a step of {name} has to be one graph: {why}; change the model so that "
                "it is, or place it in one process with ranks=False"
            )

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
        homes = joint.homes
        inputs = {output: i for i, output in joint.mutated.items()}
        found: list[int | None] = []
        for i in range(len(joint.results)):
            place = i - joint.returned if i >= joint.returned else inputs.get(i)
            if i >= joint.returned and joint.results[i] is not None and place not in homes:
                raise InputError(
                    "loss: it has parameters that are trained, which over ranks no rank would "
                    "have: make them a part of the model"
                )
            found.append(None if place is None else homes.get(place))
        return found

    def _program_of(self, found: Collectable, group: Sequence[tuple[Any, ...]]) -> RankProgram:
        made: RankProgram = self._program(found, len(group), self._shared(group), frozenset())[1]
        return made

    def _runnable(self, program: Program, parts: Parts, joint: Joint) -> Callable[..., Any]:
        """Return what runs this rank's part of a program."""
        pairs = list(zip(parts.inputs, program.inputs, strict=True))
        everywhere = [slot.name for one, slot in pairs if one.place not in joint.homes]
        given = [slot.name for one, slot in pairs if one.place < len(joint.primals)]
        return RankProgram(program, everywhere, given, self.processes)


class RankProgram:
    """A rank's part of a program, run as the whole is: by all inputs, to all outputs."""

    def __init__(
        self,
        whole: Program,
        everywhere: Sequence[str],
        given: Sequence[str],
        processes: Processes,
    ) -> None:
        self.whole, self.everywhere, self.given = whole, everywhere, given
        self.digest = digest(str(whole))
        self.processes = processes
        self.part = part_of(whole, processes.part, everywhere, processes)
        self.run = executor.compile(self.part.program, [processes.device])

    def peak_of(self, rank: int) -> int:
        """Return the most bytes that a rank's part has beside weights and batch."""
        part = part_of(self.whole, rank, self.everywhere, self.processes)
        (peak,), _ = walk(part.program, resident=self.given)
        return peak.bytes

    def __call__(self, values: list[Any]) -> list[Any]:
        """Run it; what other ranks have is None."""
        own = [values[i] for i in self.part.inputs]
        values.clear()
        found: list[Any] = self.run(own)
        return found


def _autocast(device: torch.device) -> list[tuple[str, str]]:
    kinds = {"cpu", device.type}
    on = [kind for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]
    return [(kind, str(torch.get_autocast_dtype(kind))) for kind in on]


@contextlib.contextmanager
def _own_random_numbers(processes: Processes) -> Iterator[None]:
    """Draw a rank's own numbers, from one that all draw; what follows is the same on all."""
    seed = int(torch.randint(1 << 48, ()))
    devices = [] if processes.device.type == "cpu" else [processes.device]
    kind = devices[0].type if devices else "cuda"
    with torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(seed + _SPREAD * processes.rank)
        yield
