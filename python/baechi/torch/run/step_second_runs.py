# SPDX-License-Identifier: Apache-2.0
"""Second runs of segments in a step of micro-batches, each when the plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.runs_again import Operation, Output, Run
from baechi.torch.base.second_runs import run_first
from baechi.torch.run.blocks import name_of
from baechi.torch.run.placed_runs import StepRuns
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.segments import Segment


class SecondRunsInStep:
    """Knows what runs again in a step, and who will read that."""

    def __init__(
        self, program: StepProgram, weights: Mapping[int, torch.Tensor], runs: StepRuns
    ) -> None:
        self._program = program
        self._weights = weights
        self._runs = runs
        self._waiting: dict[tuple[int, int], Run] = {}  # by segment and micro-batch
        self._tensors: dict[int, list[int]] = {}  # that a segment makes, in their order
        self._sources: dict[tuple[int, int], Any] = {}  # what will make a value again
        self._reads: dict[tuple[int, int], int] = {}  # of such a value, in the forward, to come

    def first(
        self,
        segment: Segment,
        m: int,
        call: Callable[..., Any],
        taken: list[Any],
        sources: Mapping[int, Any],
        device: LogicalDevice,
    ) -> Any:
        """Run a segment; of what will be made again, nothing is kept for the backward pass."""
        weights = tuple(self._weights[index] for index in segment.weights)
        operation = Operation(name_of(self._program.graph, segment), call, None, weights=weights)
        again = segment.index in self._program.repeated
        with torch.enable_grad():
            made, run = run_first(
                self._runs, operation, tuple(taken), {}, device, sources, again=again
            )
        if run is not None:
            self._waiting[segment.index, m] = run
            pairs = zip(segment.makes, run.outputs_of(made), strict=True)
            outputs = {index: output for index, output in pairs if output is not None}
            self._tensors[segment.index] = list(outputs)
            self._take_outputs(m, outputs)
        return made

    def _take_outputs(self, m: int, outputs: Mapping[int, Output]) -> None:
        """Hold what will make values again for those who read the values in the forward."""
        for index, output in outputs.items():
            self.hold(m, index, output, self._readers(index))

    def hold(self, m: int, index: int, source: Any, readers: int) -> None:
        """Hold what will make a value again until so many have asked for it."""
        if readers:
            self._sources[m, index] = source
            self._reads[m, index] = readers

    def _readers(self, index: int) -> int:
        """Return how many read a value in the forward."""
        return sum(self._program.readers.get(index, {}).values())

    def source(self, m: int, index: int) -> Any:
        """Return what will make a value again; its last reader in the forward pass lets it go."""
        source = self._sources.get((m, index))
        if source is not None:
            self._reads[m, index] -= 1
            if not self._reads[m, index]:
                del self._sources[m, index], self._reads[m, index]
        return source

    def again(self, segment: Segment, m: int) -> None:
        """Run a segment a second time, and send what others will read of it."""
        run = self._waiting.pop((segment.index, m))
        if run.is_wanted():
            run.go()
            self._send(segment, m, run)

    def _send(self, segment: Segment, m: int, run: Run) -> None:  # noqa: ARG002
        run.send_again()
