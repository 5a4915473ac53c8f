# SPDX-License-Identifier: Apache-2.0
"""Gradients of replicas: the mean of each is taken as soon as it is there, while the rest runs.

A bucket is what goes in one message: a large gradient where it lies, or several small ones side by
side. All replicas come to the same buckets, from the same step, and begin them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from baechi._core import Cluster
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.ranks.processes import Processes
from baechi.torch.run.step_order import Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.weights.homes import weight_of

BUCKET = 1 << 20  # bytes of small gradients that go together; a larger one goes alone


@dataclass
class Bucket:
    """Gradients that go together."""

    ready: int  # behind this part of the order, by number
    names: list[str]


def buckets_of(
    program: StepProgram, owned: Mapping[str, torch.Tensor], late: Collection[str]
) -> list[Bucket]:
    """Return the buckets of a rank's weights, in the order in which they are ready.

    Args:
        program: The step.
        owned: The weights that the rank has and that get a gradient, by name.
        late: Those of them whose gradients may come otherwise than by a segment that reads them.

    """
    owned = {name: weight for name, weight in owned.items() if weight.numel()}
    name_of = {id(weight): name for name, weight in owned.items()}

    def name_at(index: int) -> str | None:
        return name_of.get(id(weight_of(program.model, program.graph.nodes[index].target)))

    reads = {s.index: {name_at(index) for index in s.weights} for s in program.segments}
    at_end = {name_at(n) for n in program.readers if program.graph.nodes[n].kind == "weight"}
    last = dict.fromkeys(owned, len(program.order))
    for position, part in enumerate(program.order):
        if part.phase in (Phase.BACKWARD, Phase.BY_WEIGHTS):
            for name in reads[part.segment] - at_end:
                if name is not None and name not in late:
                    last[name] = position
    return filled({n: (w.dtype, w.numel() * w.element_size()) for n, w in owned.items()}, last)


def filled(weights: Mapping[str, tuple[Any, int]], last: Mapping[str, int]) -> list[Bucket]:
    """Return buckets: each has one kind of numbers, and is full or has a large gradient alone.

    Args:
        weights: The kind of numbers and the bytes of each.
        last: When the gradient of each is complete.

    """
    buckets: list[Bucket] = []
    open_: dict[Any, tuple[Bucket, int]] = {}
    for name in sorted(weights, key=lambda name: (last[name], name)):
        kind, size = weights[name]
        bucket, held = open_.get(kind, (None, 0))
        if size >= BUCKET:
            buckets.append(Bucket(last[name], [name]))
        elif bucket is None or held + size > BUCKET:
            open_[kind] = Bucket(last[name], [name]), size
            buckets.append(open_[kind][0])
        else:
            bucket.names.append(name)
            bucket.ready = last[name]
            open_[kind] = bucket, held + size
    return sorted(buckets, key=lambda bucket: (bucket.ready, bucket.names[0]))


@dataclass(frozen=True)
class Ring:
    """What is between the copies of each device: they send in a ring, each to the next one."""

    cluster: Cluster
    replicas: int
    whole: bool  # the cluster is that of all copies; else of one, whose slowest link is taken

    def time(self, size: int, device: int) -> int | None:
        """Return the nanoseconds of an all-reduce; None where there are no links to go by.

        Each process sends 2 (R - 1) times a part of one in R, all at once.
        """
        names = [each.name for each in self.cluster.devices]
        if self.whole:
            ring = names[device :: len(names) // self.replicas]
            pairs = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        else:
            pairs = [(a, b) for a in names for b in names if a != b]
        part = -(-size // self.replicas)
        times = [self.cluster.transfer_time(part, a, b) for a, b in pairs]
        return 2 * (self.replicas - 1) * max(times) if times else None


def averaged_by(ring: Ring, device: int, buckets: Iterable[tuple[int, int]]) -> int | None:
    """Return when a device has all means; a bucket is when it is ready, and its bytes."""
    clock = 0
    for ready, size in buckets:
        took = ring.time(size, device)
        if took is None:
            return None
        clock = max(clock, ready) + took
    return clock


class Averaging:
    """The gradients of one rank in one step, on their way to their mean over the replicas."""

    def __init__(
        self,
        processes: Processes,
        device: LogicalDevice,
        weights: Mapping[str, torch.Tensor],
        buckets: list[Bucket],
    ) -> None:
        self._processes = processes
        self._device = device
        self._weights = weights
        self._to_begin = list(reversed(buckets))
        self._running: list[tuple[Bucket, torch.Tensor, Any]] = []

    def behind(self, position: int) -> None:
        """Begin what is complete behind a part of the order, on every replica alike."""
        while self._to_begin and self._to_begin[-1].ready <= position:
            self._begin(self._to_begin.pop())

    def finish(self, part_at: Callable[[int], str]) -> None:
        """Wait until every gradient is the mean; `part_at`: which part stands in a place."""
        while self._to_begin:
            self._begin(self._to_begin.pop())
        for bucket, line, work in self._running:
            name = f"the gradient of {bucket.names[0]!r}, complete behind {part_at(bucket.ready)}"
            self._processes.waited_for_replicas(work.wait, name)
            self._take(bucket, line)
        self._running.clear()

    def _begin(self, bucket: Bucket) -> None:
        """A rank that failed has no gradients, and sends zeros, which nobody will look at."""
        with torch.no_grad(), self._device.computing():
            line = self._in_place(bucket)
            if line is None:
                parts = [self._flat(self._weights[name]) for name in bucket.names]
                line = torch.cat(parts)
            line /= self._processes.replicas
            if not self._processes.is_direct:
                line = line.to("cpu")
        work = distributed.all_reduce(line, group=self._processes.alike, async_op=True)
        self._running.append((bucket, line, work))

    def _in_place(self, bucket: Bucket) -> torch.Tensor | None:
        """Return the memory of a gradient that travels as it lies; None: it has to be copied."""
        gradient = self._weights[bucket.names[0]].grad
        if len(bucket.names) > 1 or gradient is None or not gradient.is_contiguous():
            return None
        return gradient.view(-1)

    @staticmethod
    def _flat(weight: torch.Tensor) -> torch.Tensor:
        gradient = weight.grad
        if gradient is None:
            return torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
        return gradient.reshape(-1)

    def _take(self, bucket: Bucket, line: torch.Tensor) -> None:
        with torch.no_grad(), self._device.computing():
            for name in bucket.names:
                weight = self._weights[name]
                size = weight.numel()
                if weight.grad is not None and weight.grad.data_ptr() != line.data_ptr():
                    weight.grad.copy_(line[:size].view(weight.grad.size()))
                line = line[size:]
