# SPDX-License-Identifier: Apache-2.0
"""The processes that a placement runs over, and what they must agree on before they go on."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed

from baechi._core import InputError
from baechi.progress import warn
from baechi.torch.base import _private
from baechi.torch.ranks.errors import RankError, Told, difference, digest, first_sentence, words_of
from baechi.torch.ranks.inquest import Inquest
from baechi.torch.ranks.leaving import destroy, leave_at_exit

_DIRECT = {"cuda": "nccl", "xpu": "xccl"}  # what takes the tensors of such devices as they are
Facts = Mapping[str, str]  # what must be the same everywhere, by what it is called in an error


def world_size() -> int:
    """Return how many processes there are, of a group that is there or that `torchrun` set up."""
    if not distributed.is_available():
        return 1
    if distributed.is_initialized():
        return distributed.get_world_size()
    told = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in told) else 1


def local_rank() -> int:
    """Return the number of this process among those of its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


class Failure(NamedTuple):
    """Why a rank could not go on in a step."""

    position: int  # in the order of the step
    part: str
    error: Exception


_KNOWN: dict[tuple[torch.device, int], Any] = {}  # the group of all, and what was made for it


def own_rank() -> int:
    """Return the number of this process among all."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


class Processes:
    """The processes that a placement runs over: rank i has device i of the cluster.

    With replicas each has as many processes: rank i of replica r is number r * count + i of all,
    which is what is said of failures.
    """

    def __init__(self, device: torch.device, replicas: int = 1) -> None:
        self._has_begun = not distributed.is_initialized()
        if self._has_begun:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend)
        self.number = distributed.get_rank()  # among those of all replicas
        self.replicas = replicas
        self.count = distributed.get_world_size() // replicas
        self.replica, self.rank = divmod(self.number, self.count)
        # Of our own: what the user's code does with its groups stays in order beside it.
        how: Any = {"backend": "gloo", "timeout": _private.group_timeout()}
        numbers = [[self.number_of(d, r) for d in range(self.count)] for r in range(replicas)]
        self._agreeing = distributed.new_group([n for row in numbers for n in row], **how)
        self._moving = [distributed.new_group(row, **how) for row in numbers][self.replica]
        self._alike: Any = None  # the processes with the same part, in every replica
        if replicas > 1:
            parts = [
                distributed.new_group(list(part), **how) for part in zip(*numbers, strict=True)
            ]
            self._alike = parts[self.rank]
        self._pairs: dict[tuple[int, int], Any] = {}
        self.failed = ""  # why nothing more can run
        self._about = "to tell each other what they have"  # why all of them talk
        self._inquest = Inquest(self.number, self.count * replicas)
        self.is_direct = self._join_directly(device)
        self.device = device
        self.links: Any = None  # between ranks, once they were measured
        leave_at_exit(self)

    @staticmethod
    def on(device: torch.device, replicas: int = 1) -> Processes:
        """Return the processes of the present group; its groups are made once."""
        known = _KNOWN.get((device, replicas))
        if known is None or known[0] is not distributed.group.WORLD or known[1].failed:
            made = Processes(device, replicas)
            known = _KNOWN[device, replicas] = distributed.group.WORLD, made
        return known[1]

    def number_of(self, rank: int, replica: int | None = None) -> int:
        """Return the number among all of a rank of a replica, by default of this one."""
        return (self.replica if replica is None else replica) * self.count + rank

    def _join_directly(self, device: torch.device) -> bool:
        """Make groups for tensors of accelerators, one per direction: each is a queue of its own.

        Only where every rank has an accelerator to itself, of a kind that has such groups.
        """
        mine = (device.type, socket.gethostname(), device.index)
        devices = self.all_gathered(mine)
        kind = _DIRECT.get(device.type)
        alike = len({each[0] for each in devices}) == 1 and len(set(devices)) == len(devices)
        if kind is None or not alike:
            return False
        warn(f"tensors between ranks go by {kind}, which nobody has tried yet")
        ranks = range(self.count)
        for replica in range(self.replicas):
            for way in ((s, t) for s in ranks for t in ranks if s != t):
                numbers = [self.number_of(rank, replica) for rank in way]
                pair = distributed.new_group(numbers, backend=kind)
                if replica == self.replica:
                    self._pairs[way] = pair
        for rank in ranks if self.replicas > 1 else ():
            numbers = [self.number_of(rank, replica) for replica in range(self.replicas)]
            part = distributed.new_group(numbers, backend=kind)
            if rank == self.rank:
                self._alike = part
        return True

    @property
    def all(self) -> Any:
        """The group of all, on the host."""
        return self._agreeing

    @property
    def alike(self) -> Any:
        """The group of those that have the same part, one in each replica."""
        return self._alike

    @functools.cached_property
    def mesh(self) -> Any:
        """All processes by replica and device."""
        from torch.distributed.device_mesh import DeviceMesh

        numbers = torch.arange(self.replicas * self.count).view(self.replicas, self.count)
        groups = [self._alike, self._moving]
        names = ("replica", "device")
        return DeviceMesh.from_group(groups, self.device.type, mesh=numbers, mesh_dim_names=names)

    def group_of(self, source: int, target: int) -> Any:
        """Return the group by which tensors go from one rank to another."""
        return self._pairs.get((source, target), self._moving)

    # What all have to agree on

    def all_gathered(self, mine: Any) -> list[Any]:
        """Return what every rank has."""
        found: list[Any] = [None] * (self.count * self.replicas)
        self._talk(lambda: distributed.all_gather_object(found, mine, group=self._agreeing))
        return found

    def from_first(self, value: Any) -> Any:
        """Return what rank 0 has."""
        box = [value]
        self._talk(lambda: distributed.broadcast_object_list(box, 0, group=self._agreeing))
        return box[0]

    def from_rank(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host as a rank of the first replica has it."""
        if tensor.numel():
            flat = tensor.view(-1).view(torch.uint8)
            self._talk(lambda: distributed.broadcast(flat, rank, group=self._agreeing))
        return tensor

    def norms(self, mine: float) -> list[float]:
        """Return a number that every rank of the first replica has."""
        found = self._gathered(torch.tensor([mine], dtype=torch.float64))
        return [each.item() for each in found[: self.count]]

    def from_each(self, mine: Sequence[float]) -> list[list[float]]:
        """Return numbers that every process has, of all replicas."""
        if not mine:
            return [[] for _ in range(self.count * self.replicas)]
        found = self._gathered(torch.tensor(mine, dtype=torch.float64))
        return [each.tolist() for each in found]

    def summed(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor of the host that every rank of this replica has."""
        kind = mine.dtype
        if kind in (torch.float16, torch.bfloat16):
            mine = mine.float()
        line = torch.view_as_real(mine.resolve_conj()) if kind.is_complex else mine
        line = line.contiguous().clone()
        self._about = "to add up the gradients of arguments"
        self._talk(lambda: distributed.all_reduce(line, group=self._moving))
        return (torch.view_as_complex(line) if kind.is_complex else line).to(kind)

    def _gathered(
        self, line: torch.Tensor, left_to: Callable[[int], str] | None = None
    ) -> list[torch.Tensor]:
        """Return a small tensor of every process."""
        found = [torch.empty_like(line) for _ in range(self.count * self.replicas)]
        self._talk(lambda: distributed.all_gather(found, line, group=self._agreeing), left_to)
        return found

    def ended(
        self,
        rank: int,
        loss: torch.Tensor,
        failure: Failure | None,
        left_to: Callable[[int], str],
    ) -> torch.Tensor:
        """Return the loss that a rank has, of replicas the mean; `loss` is of the same kind.

        Args:
            rank: Which has the loss.
            loss: What this one has.
            failure: Why this one could not go on.
            left_to: Tells what a rank may not have run yet, by what came from it.

        Raises:
            RankError: A rank failed in the step, or does not come to its end.

        """
        mine = torch.tensor([float(failure is None), loss.double().item()], dtype=torch.float64)
        self._about = "at the end of a step, whose parts on this rank had run"
        found = self._gathered(mine, left_to)
        if all(each[0] for each in found):
            mean = torch.stack([each[1] for each in found[rank :: self.count]]).mean()
            return mean.to(loss.dtype).reshape(loss.shape)
        told = None if failure is None else (failure.position, failure.part, Told.of(failure.error))
        failures = [(each[0], r, each) for r, each in enumerate(self.all_gathered(told)) if each]
        _, first, (_, part, error) = min(failures)
        if failure is not None and first == self.number:
            raise failure.error
        error.raise_as(f"rank {first} failed in {part}")
        raise AssertionError("it was raised")

    def agree(self, what: str, mine: Facts | BaseException, own: Facts | None = None) -> None:
        """Go on if all ranks have the same facts, and no error; raise on every rank otherwise.

        Args:
            what: They are about to do.
            mine: What this rank knows, or why it cannot go on.
            own: What the ranks of each replica must have alike, for itself.

        """
        error = mine if isinstance(mine, BaseException) else None
        facts = {} if isinstance(mine, BaseException) else dict(mine)
        self._about = f"to {what}"
        if self._all_alike(error is None, digest(repr((what, facts))), digest(repr(own))):
            return
        found = self.all_gathered((what, facts, None if error is None else Told.of(error)))
        if error is not None:
            raise error
        for rank, (other, _, told) in enumerate(found):
            if told is not None:
                told.raise_as(f"rank {rank} cannot {other}")
        wanted = [other for other, _, _ in found]
        for rank, other in enumerate(wanted):
            if other != wanted[0]:
                raise InputError(
                    f"rank 0 is about to {wanted[0]}, and rank {rank} to {other}: every rank calls "
                    "the same, in the same order"
                )
        known = [facts for _, facts, _ in found]
        if all(each == known[0] for each in known):
            known = self.all_gathered({} if own is None else dict(own))
            for replica in range(self.replicas):
                begin = replica * self.count
                if any(each != known[begin] for each in known[begin : begin + self.count]):
                    raise InputError(difference(what, known[begin : begin + self.count], begin))
        raise InputError(difference(what, known))

    @contextlib.contextmanager
    def agreeing(self, what: str) -> Iterator[dict[str, str]]:
        """Do what all ranks do, and go on behind it if all could and found the same facts."""
        facts: dict[str, str] = {}
        try:
            yield facts
        except Exception as error:
            self.agree(what, error)
        else:
            self.agree(what, facts)

    def _all_alike(self, is_fine: bool, mine: str, own: str) -> bool:
        """Compare digests, of all and of those of each replica, which takes one message."""
        words = [*(mine[i : i + 14] for i in range(0, 56, 14)), own[:14], own[14:28]]
        lines = self._gathered(torch.tensor([int(is_fine), *(int(word, 16) for word in words)]))
        firsts = [lines[self.number_of(0, i // self.count)] for i in range(len(lines))]
        alike = [torch.equal(e[-2:], first[-2:]) for e, first in zip(lines, firsts, strict=True)]
        return all(alike) and all(bool(e[0]) and torch.equal(e[:5], lines[0][:5]) for e in lines)

    # Failures

    def check(self) -> None:
        """Raise RankError where a step has failed before: messages may be on their way still."""
        if self.failed:
            raise RankError(f"an earlier step failed, and ranks are not in step: {self.failed}")

    @contextlib.contextmanager
    def running(self, said: Callable[[], str]) -> Iterator[None]:
        """Run what others wait for; `said` tells where it is."""
        try:
            yield
        except BaseException as error:
            self.failed = self.failed or f"{said()}: {words_of(error)}"
            raise

    def leave(self) -> None:
        """Leave the groups, with the first of all if it was begun here.

        Not behind a failure: what was asked for then may never come, and would be waited for.
        """
        if self.failed:
            return
        self.failed = "the process is ending"
        destroy([*self._pairs.values(), *filter(None, (self._alike, self._moving, self._agreeing))])
        self._pairs, self._alike, self._moving, self._agreeing = {}, None, None, None
        for key in [key for key, (_, known) in _KNOWN.items() if known is self]:
            begun, _ = _KNOWN.pop(key)
            if self._has_begun and begun is distributed.group.WORLD:
                distributed.destroy_process_group()

    def _talk(self, call: Callable[[], Any], left_to: Callable[[int], str] | None = None) -> None:
        self.check()
        waited = f"rank {self.number} waited for all ranks {self._about}"
        self._or_lost(call, waited, None, left_to)

    def waited(self, wait: Callable[[], Any], name: str, rank: int) -> None:
        """Wait for a message to or from another rank."""
        number = self.number_of(rank)
        self._or_lost(wait, f"rank {self.number} waited for rank {number} with {name}", number)

    def waited_for_replicas(self, wait: Callable[[], Any], name: str) -> None:
        """Wait for what the other replicas send."""
        self._or_lost(wait, f"rank {self.number} waited for other replicas with {name}", None)

    def _or_lost(
        self,
        call: Callable[[], Any],
        waited: str,
        awaited: int | None,
        left_to: Callable[[int], str] | None = None,
    ) -> None:
        try:
            call()
        except RuntimeError as error:
            silent = self._inquest.silent(waited)
            if awaited is not None and (awaited in silent or not silent):
                silent = [awaited]
            elif len(silent) > 1 and "imed out" not in str(error):  # some wait for others still
                silent = []
            who = "another rank" if not silent else " and ".join(f"rank {n}" for n in silent)
            verbs = ("were", "do") if len(silent) > 1 else ("was", "does")
            lost = f"{who} {verbs[0]} lost, or {verbs[1]} not answer"
            for number in silent:
                mine = number // self.count == self.replica
                left = left_to(number % self.count) if left_to is not None and mine else ""
                waited += f"; behind what came from rank {number} it has {left}" if left else ""
            self.failed = f"{lost}: {waited}: {first_sentence(error)}"
            raise RankError(self.failed) from error
