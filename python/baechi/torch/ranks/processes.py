# SPDX-License-Identifier: Apache-2.0
"""The processes that a placement runs over, and what they must agree on before they go on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import distributed

from baechi._core import InputError
from baechi.pipeline import DoesNotFit
from baechi.progress import warn
from baechi.torch.base import _private

_DIRECT = {"cuda": "nccl", "xpu": "xccl"}  # what takes the tensors of such devices as they are
Facts = Mapping[str, str]  # what must be the same everywhere, by what it is called in an error


class RankError(RuntimeError):
    """Another rank failed, or was lost."""


def digest(text: str) -> str:
    """Return what tells texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()


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


_KNOWN: dict[torch.device, Any] = {}  # the group of all, and what was made for it


def own_rank() -> int:
    """Return the number of this process among all."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


class Processes:
    """The processes that a placement runs over: rank i has device i of the cluster."""

    def __init__(self, device: torch.device) -> None:
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend)
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()
        everyone = list(range(self.count))
        # Of our own: what the user's code does with its groups stays in order beside it.
        how: Any = {"backend": "gloo", "timeout": _private.group_timeout()}
        self._agreeing = distributed.new_group(everyone, **how)
        self._moving = distributed.new_group(everyone, **how)
        self._pairs: dict[tuple[int, int], Any] = {}
        self.is_direct = self._join_directly(device)
        self.device = device
        self.failed = ""  # why nothing more can run
        self.links: Any = None  # between ranks, once they were measured

    @staticmethod
    def on(device: torch.device) -> Processes:
        """Return the processes of the present group; its groups are made once."""
        known = _KNOWN.get(device)
        if known is None or known[0] is not distributed.group.WORLD or known[1].failed:
            made = Processes(device)
            known = _KNOWN[device] = distributed.group.WORLD, made
        return known[1]

    def _join_directly(self, device: torch.device) -> bool:
        """Make groups for tensors of accelerators, one per direction: each is a queue of its own.

        Only where every rank has an accelerator to itself, of a kind that has such groups.
        """
        mine = (device.type, socket.gethostname(), device.index)
        devices = self.all_gathered(mine)
        kind = _DIRECT.get(device.type)
        alike = len({each[0] for each in devices}) == 1 and len(set(devices)) == self.count
        if kind is None or not alike:
            return False
        warn(f"tensors between ranks go by {kind}, which nobody has tried yet")
        for source in range(self.count):
            for target in range(self.count):
                if source != target:
                    pair = distributed.new_group([source, target], backend=kind)
                    self._pairs[source, target] = pair
        return True

    @property
    def all(self) -> Any:
        """The group of all, on the host."""
        return self._agreeing

    def group_of(self, source: int, target: int) -> Any:
        """Return the group by which tensors go from one rank to another."""
        return self._pairs.get((source, target), self._moving)

    # What all have to agree on

    def all_gathered(self, mine: Any) -> list[Any]:
        """Return what every rank has."""
        found: list[Any] = [None] * self.count
        self._talk(lambda: distributed.all_gather_object(found, mine, group=self._agreeing))
        return found

    def from_first(self, value: Any) -> Any:
        """Return what rank 0 has."""
        box = [value]
        self._talk(lambda: distributed.broadcast_object_list(box, 0, group=self._agreeing))
        return box[0]

    def from_rank(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host as a rank has it."""
        if tensor.numel():
            flat = tensor.view(-1).view(torch.uint8)
            self._talk(lambda: distributed.broadcast(flat, rank, group=self._agreeing))
        return tensor

    def norms(self, mine: float) -> list[float]:
        """Return a number that every rank has."""
        line = torch.tensor([mine], dtype=torch.float64)
        found = [torch.empty_like(line) for _ in range(self.count)]
        self._talk(lambda: distributed.all_gather(found, line, group=self._agreeing))
        return [each.item() for each in found]

    def ended(self, rank: int, loss: torch.Tensor, failure: Failure | None) -> torch.Tensor:
        """Return the loss that a rank has; elsewhere `loss` is of the same kind.

        Raises:
            RankError: A rank failed in the step; `failure` is what this one knows of itself.

        """
        mine = torch.tensor([float(failure is None), loss.double().item()], dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        self._talk(lambda: distributed.all_gather(found, mine, group=self._agreeing))
        if all(each[0] for each in found):
            return found[rank][1].to(loss.dtype).reshape(loss.shape)
        told = (
            None if failure is None else (failure.position, failure.part, _Told.of(failure.error))
        )
        failures = [(each[0], r, each) for r, each in enumerate(self.all_gathered(told)) if each]
        _, first, (_, part, error) = min(failures)
        if failure is not None and first == self.rank:
            raise failure.error
        error.raise_as(f"rank {first} failed in {part}")
        raise AssertionError("it was raised")

    def agree(self, what: str, mine: Facts | BaseException) -> None:
        """Go on if all ranks have the same facts, and no error; raise on every rank otherwise.

        Args:
            what: They are about to do.
            mine: What this rank knows, or why it cannot go on.

        """
        error = mine if isinstance(mine, BaseException) else None
        facts = {} if isinstance(mine, BaseException) else dict(mine)
        if self._all_alike(error is None, digest(repr((what, facts)))):
            return
        found = self.all_gathered((what, facts, None if error is None else _Told.of(error)))
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
        raise InputError(_difference(what, [facts for _, facts, _ in found]))

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

    def _all_alike(self, is_fine: bool, mine: str) -> bool:
        """Compare digests, which takes one message."""
        numbers = [int(mine[i : i + 14], 16) for i in range(0, 56, 14)]
        line = torch.tensor([int(is_fine), *numbers])
        lines = [torch.empty_like(line) for _ in range(self.count)]
        self._talk(lambda: distributed.all_gather(lines, line, group=self._agreeing))
        return all(bool(each[0]) and torch.equal(each, line) for each in lines)

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

    def _talk(self, call: Callable[[], Any]) -> None:
        self._or_lost(call, "another rank was lost, or does not answer")

    def waited(self, wait: Callable[[], Any], name: str, rank: int) -> None:
        """Wait for a message to or from another rank."""
        lost = f"rank {rank} was lost, or does not answer: rank {self.rank} waited for it with"
        self._or_lost(wait, f"{lost} {name}")

    def _or_lost(self, call: Callable[[], Any], said: str) -> None:
        try:
            call()
        except RuntimeError as error:
            self.failed = f"{said}: {_first_sentence(error)}"
            raise RankError(self.failed) from error


def _first_sentence(error: BaseException) -> str:
    """Return what went wrong, without a library's place in its sources and its advice."""
    said = str(error).rpartition("] ")[2] if str(error).startswith("[/") else str(error)
    return said.partition(". ")[0]


class _Told(NamedTuple):
    """An error as other ranks are told of it."""

    words: str
    is_input: bool
    as_it_is: DoesNotFit | None

    @staticmethod
    def of(error: BaseException) -> _Told:
        """Return what others are told."""
        as_it_is = error if isinstance(error, DoesNotFit) else None
        return _Told(words_of(error), isinstance(error, ValueError), as_it_is)

    def raise_as(self, where: str) -> None:
        """Raise it on another rank."""
        if self.as_it_is is not None:
            raise self.as_it_is
        raise (InputError if self.is_input else RankError)(f"{where}: {self.words}")


def words_of(error: BaseException) -> str:
    """Return what an error says, in one line."""
    said = " ".join(str(error).split())
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"


def _difference(what: str, facts: list[dict[str, str]]) -> str:
    """Say what ranks do not agree on."""
    for name, first in facts[0].items():
        for rank, other in enumerate(facts):
            if other.get(name) != first:
                return (
                    f"ranks cannot {what}: rank 0 and rank {rank} do not have the same {name}: "
                    f"{_short(first)} and {_short(other.get(name, 'none'))}"
                )
    return f"ranks cannot {what}: they differ in what they know"


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:80]}... (of digest {digest(text)[:8]})"
