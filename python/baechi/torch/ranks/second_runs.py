# SPDX-License-Identifier: Apache-2.0
"""Second runs in one rank's part of a step: what is made again here, and what comes from others.

A value that a rank makes again goes once more to those ranks whose backward reads it, or whose
second runs do. Until then nobody holds it there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from baechi.torch.base.runs_again import Output, Run
from baechi.torch.ranks.foreseen import Foreseen
from baechi.torch.run.communication import Arrival
from baechi.torch.run.placed_runs import StepRuns
from baechi.torch.run.step_program import StepProgram
from baechi.torch.run.step_second_runs import SecondRunsInStep
from baechi.torch.trace.segments import Segment

_ELSEWHERE = SimpleNamespace(done=True)  # its messages are asked for before anybody here needs them


class Received:
    """What another rank makes again and sends here."""

    __slots__ = ("__weakref__", "_coming", "device", "run", "value")

    def __init__(self, device: Any) -> None:
        self.run = _ELSEWHERE
        self.device = device
        self.value: torch.Tensor | None = None
        self._coming: Arrival | None = None

    def at(self, device: Any) -> Received:  # noqa: ARG002
        """Return the same tensor: who reads it here has it here."""
        return self

    def come(self, coming: Arrival) -> None:
        """Take what was asked for."""
        self._coming = coming

    def fetch(self) -> None:
        """Have it here."""
        if self._coming is not None:
            self.value = self._coming.wait()
            self._coming = None

    bring = fetch


class SecondRunsHere(SecondRunsInStep):
    """Those of one rank."""

    def __init__(
        self,
        program: StepProgram,
        weights: Mapping[int, torch.Tensor],
        runs: StepRuns,
        foreseen: Foreseen,
        device: Any,
        send: Callable[[torch.Tensor, int, int, int], None],
    ) -> None:
        super().__init__(program, weights, runs)
        self._here = device
        self._send_to = send  # a tensor: of a micro-batch, a node, to a rank
        self._targets: dict[tuple[int, int], list[int]] = {}
        for m, index, target in sorted(foreseen.again):
            self._targets.setdefault((m, index), []).append(target)
        self._leaving: dict[tuple[int, int], Output] = {}  # what goes to others when made again
        self._coming: weakref.WeakValueDictionary[tuple[int, int], Received] = (
            weakref.WeakValueDictionary()
        )

    def _readers(self, index: int) -> int:
        return self._program.readers.get(index, {}).get(self._here.index, 0)

    def _take_outputs(self, m: int, outputs: Mapping[int, Output]) -> None:
        super()._take_outputs(m, outputs)
        kept = {(m, index): o for index, o in outputs.items() if (m, index) in self._targets}
        self._leaving.update(kept)

    def _send(self, segment: Segment, m: int, run: Run) -> None:  # noqa: ARG002
        for index in segment.makes:
            output = self._leaving.pop((m, index), None)
            if output is None:
                continue
            assert output.value is not None
            for target in self._targets[m, index]:
                self._send_to(output.value, m, index, target)

    def expect(self, m: int, index: int) -> None:
        """Take note of a value that came from another rank, which may send it again."""
        if self._here.index in self._targets.get((m, index), ()):
            received = self._coming[m, index] = Received(self._here)
            self.hold(m, index, received, self._readers(index))

    def came(self, m: int, index: int, coming: Arrival) -> None:
        """Take what another rank made again."""
        received = self._coming.get((m, index))
        if received is not None:
            received.come(coming)
