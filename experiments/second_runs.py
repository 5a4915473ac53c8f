# SPDX-License-Identifier: Apache-2.0
"""Graphs whose operators run a second time, made without the planner: to compare it with.

What they mean is as docs/explanation/recomputation.md has it; nothing here is shared with the
planner's own rewriting, so that either shows the other's mistakes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from typing import Any

import baechi

AGAIN = "@again"


def repeatable(graph: baechi.Graph) -> list[str]:
    """Operators of the forward pass that may run again, in the order of the graph."""
    ops = [graph[name] for name in graph.names]
    marked = any(op.per_step for op in ops)
    return [
        op.name
        for op in ops
        if not op.backward
        and op.recompute
        and not op.per_step
        and op.inputs
        and op.outputs
        and (marked or max(op.times.values()) > 0)
    ]


class SecondRuns:
    """A graph, and what reads whom in it."""

    def __init__(self, graph: baechi.Graph) -> None:
        self.graph = graph
        self.position = {name: i for i, name in enumerate(graph.names)}
        self.readers: dict[str, list[str]] = {name: [] for name in graph.names}
        for name in graph.names:
            for producer, _ in graph[name].inputs:
                self.readers[producer].append(name)

    def _gradient(self, reader: str, before: int) -> str | None:
        """Return what the reader waits for last of the backward pass."""
        for _ in range(4):
            op = self.graph[reader]
            gradients = [
                producer
                for producer in [*(p for p, _ in op.inputs), *op.after]
                if self.graph[producer].backward
                and not self.graph[producer].per_step
                and self.position[producer] < before
            ]
            if gradients:
                return max(gradients, key=self.position.__getitem__)
            further = [r for r in self.readers[reader] if not self.graph[r].per_step]
            if not further:
                return None
            reader = min(further, key=self.position.__getitem__)
        return None

    def of_use(self, chosen: Collection[str]) -> dict[str, tuple[int, str]]:
        """Return the place of the first reader of each second run, and what it waits for."""
        found: dict[str, tuple[int, str]] = {}
        for name in sorted(chosen, key=self.position.__getitem__, reverse=True):
            first, last_forward = math.inf, self.position[name]
            for reader in self.readers[name]:
                if self.graph[reader].backward:
                    first = min(first, self.position[reader])
                else:
                    last_forward = max(last_forward, self.position[reader])
                    first = min(first, found[reader][0] if reader in found else math.inf)
            if first == math.inf:
                continue
            gradient = self._gradient(self.graph.names[int(first)], int(first))
            if gradient is not None and self.position[gradient] > last_forward:
                found[name] = (int(first), gradient)
        return found

    def rewritten(self, chosen: Collection[str]) -> baechi.Graph:
        """Return the graph with these second runs, each right before its first reader."""
        runs = self.of_use(chosen)
        builder = baechi.GraphBuilder(self.graph.name, memory_mode="dataflow")
        before: dict[int, list[str]] = {}
        for name in sorted(runs, key=self.position.__getitem__):
            before.setdefault(runs[name][0], []).append(name)
        for i, name in enumerate(self.graph.names):
            for again in before.get(i, []):
                self._add(builder, again, runs, second=True)
            self._add(builder, name, runs, second=False)
        for name in self.graph.names:
            if (forward := self.graph[name].forward) is not None:
                builder.set_forward(name, forward)
        return builder.build()

    def _add(
        self, builder: baechi.GraphBuilder, name: str, runs: dict[str, Any], *, second: bool
    ) -> None:
        op = self.graph[name]
        late = second or op.backward
        inputs = [(p + AGAIN if late and p in runs else p, port) for p, port in op.inputs]
        outputs, temporary = list(op.outputs), op.temporary
        if name in runs:
            for port in range(len(outputs)):
                readers = [r for r in self.readers[name] if (name, port) in self.graph[r].inputs]
                wanted = [
                    r
                    for r in readers
                    if (
                        self.graph[r].backward or r in runs
                        if second
                        else not self.graph[r].backward
                    )
                ]
                if not wanted and (second or readers):
                    temporary += outputs[port]
                    outputs[port] = 0
        builder.add(
            name + AGAIN if second else name,
            op.times,
            kind=op.kind,
            permanent=0 if second else op.permanent,
            temporary=temporary,
            outputs=outputs,
            inputs=inputs,
            after=[name, runs[name][1]] if second else op.after,
            colocate=[*op.colocate, *([f"again of {name}"] if name in runs else [])],
            backward=late,
            device=op.device,
            per_step=op.per_step and not second,
        )  # fmt: skip

    def every_root(self) -> baechi.Graph:
        """Keep every sqrt(n)-th of the operators that may run again, and repeat the others."""
        names = repeatable(self.graph)
        step = max(1, math.isqrt(len(names)))
        kept = set(names[step - 1 :: step])
        return self.rewritten([name for name in names if name not in kept])

    def every_choice(self) -> Iterator[baechi.Graph]:
        """Yield the graph with every set of second runs that are all of use."""
        names = repeatable(self.graph)
        for size in range(len(names) + 1):
            for chosen in itertools.combinations(names, size):
                if len(self.of_use(chosen)) == size:
                    yield self.rewritten(chosen)
