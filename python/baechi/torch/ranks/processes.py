# SPDX-License-Identifier: Apache-2.0
"""The processes of torch.distributed that a placement runs over, and what all of them do together.

Rank i has device i of the cluster. What is common (facts, the end of a step) goes through a group
of our own on the host; a rank that fails tells the others of it there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed

from baechi._core import InputError
from baechi.torch.private import group_timeout
from baechi.torch.ranks.errors import RankError, Told, difference, digest, one_line
from baechi.torch.ranks.replicas import Replicas

_WORDS = 4  # of a digest that are compared, each of 56 bits


def world_size() -> int:
    """Return how many processes there are: of the present group, or that torchrun has started."""
    if not distributed.is_available():
        return 1
    if distributed.is_initialized():
        return distributed.get_world_size()
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        return 1
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_rank() -> int:
    """Return the number of this process."""
    return distributed.get_rank() if distributed.is_initialized() else int(os.environ["RANK"])


class Processes:
    """The processes of a placement."""

    def __init__(self, device: torch.device) -> None:
        self.device = device  # of this one
        self._has_begun = not distributed.is_initialized()
        if self._has_begun:
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            )
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()
        timeout = group_timeout()
        # Of our own: what the user's code does with its groups stays in order beside it.
        self.group: Any = distributed.new_group(backend="gloo", timeout=timeout)
        self.replicas = Replicas([0] * self.count, [*range(self.count)])
        self.part, self.replica = self.rank, 0
        self.alike: Any = None  # those that run the same part
        self.failed = ""  # why nothing more can run
        _known.append(self)

    def divide(self, replicas: Replicas) -> None:
        """Be several replicas; groups of their own add up gradients."""
        self.replicas = replicas
        self.part, self.replica = replicas.part[self.rank], replicas.number[self.rank]
        for part in sorted(set(replicas.part)):
            ranks = [rank for rank, other in enumerate(replicas.part) if other == part]
            made = distributed.new_group(ranks, backend="gloo", timeout=group_timeout())
            self.alike = made if self.part == part else self.alike

    def gathered(self, mine: Any) -> list[Any]:
        """Return what every rank has."""
        found: list[Any] = [None] * self.count
        call = distributed.all_gather_object
        self._talk(lambda: call(found, mine, group=self.group), "tell each other what they have")
        return found

    def from_first(self, value: Any) -> Any:
        """Return what rank 0 has."""
        box = [value]
        call = distributed.broadcast_object_list
        self._talk(lambda: call(box, 0, group=self.group), "be told by rank 0")
        return box[0]

    def from_rank(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return a dense tensor of the host, as a rank has it."""
        if tensor.numel():
            flat = tensor.view(-1).view(torch.uint8)
            self._talk(
                lambda: distributed.broadcast(flat, rank, group=self.group), "gather a state"
            )
        return tensor

    def share(self, tensor: torch.Tensor) -> None:
        """Have a tensor be as the first replica has it."""
        host = tensor.detach().to("cpu", copy=True).contiguous()
        self._talk(
            lambda: distributed.broadcast(host, self.part, group=self.alike), "share buffers"
        )
        tensor.data.copy_(host)

    def numbers(self, mine: list[float], what: str) -> list[list[float]]:
        """Return a few numbers of every rank."""
        line = torch.tensor(mine, dtype=torch.float64)
        return [each.tolist() for each in self._lines(line, what)]

    def _lines(self, line: torch.Tensor, what: str) -> list[torch.Tensor]:
        found = [torch.empty_like(line) for _ in range(self.count)]
        self._talk(lambda: distributed.all_gather(found, line, group=self.group), what)
        return found

    # What all have to agree on.

    @contextlib.contextmanager
    def agreeing(self, what: str) -> Iterator[dict[str, str]]:
        """Do what all ranks do, and go on behind it if all could and found the same facts."""
        facts: dict[str, str] = {}
        try:
            yield facts
        except Exception as error:
            self.agree(what, facts, error)
            raise
        self.agree(what, facts, None)

    def agree(self, what: str, facts: dict[str, str], error: BaseException | None) -> None:
        """Raise on every rank unless all can do something, and know the same."""
        whole = digest(repr((what, facts)))
        words = [int(whole[14 * i : 14 * i + 14], 16) for i in range(_WORDS)]
        lines = self._lines(torch.tensor([int(error is None), *words]), what)
        if all(bool(line[0]) and torch.equal(line, lines[0]) for line in lines):
            return
        found = self.gathered((what, facts, None if error is None else Told.of(error)))
        if error is not None:
            return
        for rank, (other, _, told) in enumerate(found):
            if told is not None:
                told.raise_on_another(f"rank {rank} cannot {other}")
        for rank, (other, _, _) in enumerate(found):
            if other != found[0][0]:
                raise InputError(
                    f"rank 0 is about to {found[0][0]}, and rank {rank} to {other}: every rank "
                    "calls the same, in the same order"
                )
        raise InputError(difference(what, [facts for _, facts, _ in found]))

    def ended(self, mine: list[float], error: Exception | None) -> list[list[float]]:
        """Return numbers of every rank at the end of what they ran.

        Raises:
            RankError: A rank failed in it, or does not come to its end.

        """
        found = self.numbers([float(error is None), *mine], "end a step")
        if all(each[0] for each in found):
            return [each[1:] for each in found]
        told = self.gathered(None if error is None else Told.of(error))
        if error is not None:
            raise error
        rank = next(r for r, each in enumerate(told) if each is not None)
        told[rank].raise_on_another(f"rank {rank} failed in a step")
        raise AssertionError("it was raised")

    # Failures.

    def _talk(self, call: Callable[[], Any], what: str) -> None:
        self.waited(call, f"all ranks to {what}", "a rank")

    def waited(self, call: Callable[[], Any], awaited: str, who: str) -> None:
        """Do what waits for another rank, which may be lost."""
        if self.failed:
            raise RankError(f"ranks are not in step: {self.failed}")
        try:
            call()
        except RuntimeError as error:
            said = one_line(error).rpartition("] ")[2].partition(". ")[0]
            self.failed = (
                f"{who} was lost, or does not answer: rank {self.rank} waited for {awaited}: {said}"
            )
            raise RankError(self.failed) from error

    def leave(self) -> None:
        """Leave the groups.

        A thread of gloo holds the tensors of a message for a moment longer than who waits for it,
        and aborts the process if the interpreter has begun to end. Not behind a failure: what was
        asked for then may never come, and would be waited for.
        """
        if self.failed or not distributed.is_initialized():
            return
        self.failed = "the process is ending"
        with contextlib.suppress(ValueError):  # the user's code has left all groups
            for group in (self.group, self.alike) if self.alike else (self.group,):
                distributed.destroy_process_group(group)
        self.group = self.alike = None  # the last who holds one closes its connections
        if self._has_begun:
            distributed.destroy_process_group()


_known: list[Processes] = []


@atexit.register
def _leave() -> None:
    for each in reversed(_known):
        each.leave()
