# SPDX-License-Identifier: Apache-2.0
"""The processes of torch.distributed that a placement runs over, and what all of them do together.

Rank i has device i of the cluster. What is common (agreements, values) goes through a group of our
own on the host.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from baechi._core import InputError
from baechi.torch.capture.joint import for_every_kind
from baechi.torch.private import group_timeout
from baechi.torch.ranks.errors import RankError, Told, difference, digest, one_line
from baechi.torch.ranks.replicas import Replicas


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
        self.calls = itertools.count(1)  # of what is placed here, that may go back
        self.failed = ""  # why nothing more can run
        self.asked: Agreement | None = None  # of what all are about to do
        _known.append(self)
        self.kinds = self.gathered(device.type)
        self.are_alike = len({*self.kinds}) == 1
        # As if all were there: where kinds differ, on the CPU, which every process has.
        self.traced = device if self.are_alike else torch.device("cpu")
        self.is_traced = [kind == self.traced.type for kind in self.kinds]

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Return where all trace the same."""
        return contextlib.nullcontext() if self.are_alike else for_every_kind()

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

    def have(self, tensor: torch.Tensor, rank: int, group: Any = None) -> torch.Tensor:
        """Return a dense tensor of the host as a rank of a group has it, by default of all."""
        if tensor.numel():
            line, there = tensor.view(-1).view(torch.uint8), group or self.group
            self._talk(lambda: distributed.broadcast(line, rank, group=there), "share a tensor")
        return tensor

    @contextlib.contextmanager
    def agreeing(self, what: str, *, waits: bool = True) -> Iterator[dict[str, str]]:
        """Do what all ranks do, and go on behind it if all could and found the same facts.

        Without waiting, they are `asked` before there is any message.
        """
        facts: dict[str, str] = {}
        try:
            yield facts
        except Exception as error:
            self.agree(what, facts, error)
        if waits:
            self.agree(what, facts)
        else:
            self.asked = Agreement(self, what, facts)

    def agreed(self) -> None:
        """Wait for what was asked, if it was; raise what `agree` raises, each time."""
        if self.asked is not None:
            self.asked.numbers()
            self.asked = None

    def agree(
        self,
        what: str,
        facts: Mapping[str, str],
        error: Exception | None = None,
        numbers: Sequence[float] = (),
    ) -> list[list[float]]:
        """Return up to three numbers of every rank.

        Raises:
            Exception: This rank's error.
            InputError: Ranks do not know the same, or are not about to do the same.
            RankError: Another rank failed, or does not answer.

        """
        return Agreement(self, what, facts, error, numbers).numbers()

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


class Agreement:
    """What this rank has told the others, in one hop, unlike a ring, and what they tell it.

    Args:
        processes: Of all ranks.
        what: They are about to do.
        facts: They have to have alike.
        error: Why this one cannot.
        numbers: Up to three of its own.

    """

    def __init__(
        self,
        processes: Processes,
        what: str,
        facts: Mapping[str, str],
        error: Exception | None = None,
        numbers: Sequence[float] = (),
    ) -> None:
        self._processes, self._mine = processes, (what, facts, error)
        whole = digest(repr((what, facts)))
        self._words = [int(whole[i : i + 12], 16) for i in (0, 12, 24, 36)]  # which floats can be
        line = [float(error is None), *self._words, *numbers, 0, 0, 0][:8]
        self._line = torch.tensor(line, dtype=torch.float64)
        self._lines = [torch.empty_like(self._line) for _ in range(processes.count)]
        self._lines[processes.rank] = self._line
        self._works: list[Any] = []
        self._refused: Exception | None = None
        self._wait(self._post)

    def _post(self) -> None:
        group, rank = self._processes.group, self._processes.rank
        others = [i for i in range(len(self._lines)) if i != rank]
        self._works += [group.recv([self._lines[i]], i, 0) for i in others]
        self._works += [group.send([self._line], i, 0) for i in others]

    def _wait(self, call: Callable[[], Any]) -> None:
        self._processes.waited(call, f"all ranks to {self._mine[0]}", "a rank")

    def numbers(self) -> list[list[float]]:
        """Wait for all; return the numbers of each, or raise, each time, what is not agreed on."""
        if self._refused is not None:
            raise self._refused
        try:
            self._wait(lambda: [work.wait() for work in self._works])
            found = [line.tolist() for line in self._lines]
            if not all(each[0] and each[1:5] == self._words for each in found):
                self._explain()
        except Exception as error:
            self._refused = error
            raise
        return [each[5:] for each in found]

    def _explain(self) -> None:
        what, facts, error = self._mine
        everyone = self._processes.gathered((what, facts, error and Told.of(error)))
        if error is not None:
            raise error
        for rank, (other, _, told) in enumerate(everyone):
            if told is not None:
                told.raise_on_another(f"rank {rank} cannot {other}")
        first = everyone[0][0]
        for rank, (other, _, _) in enumerate(everyone):
            if other != first:
                raise InputError(
                    f"rank 0 is about to {first}, and rank {rank} to {other}: every rank "
                    "calls the same, in the same order"
                )
        raise InputError(difference(what, [facts for _, facts, _ in everyone]))


_known: list[Processes] = []


@atexit.register
def _leave() -> None:
    for each in reversed(_known):
        each.leave()
