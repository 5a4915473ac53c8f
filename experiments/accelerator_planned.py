# SPDX-License-Identifier: Apache-2.0
"""Paper Tables 4 and 5 planned from costs that were measured on an accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import baechi
from experiments import insufficient_memory, step_time
from experiments.pytorch_models import BY_HAND
from experiments.workloads import Workload

DEVICES = 4


@dataclass(frozen=True)
class Measured(Workload):
    """A measured graph, on several devices like the one it was measured on."""

    costed: baechi.Graph | None = None
    line: str = ""
    memory: int = 0

    def graph(self) -> baechi.Graph:
        """Return it."""
        assert self.costed is not None  # `workload` gave it
        return self.costed

    def devices(self) -> baechi.Cluster:
        """Return its cluster: one transfer at a time per device, through the host."""
        return baechi.Cluster(
            f"{DEVICES}x{self.memory}B", link=self.line, communication="sequential"
        )


def workload(name: str, graph: baechi.Graph, known: dict[str, Any], line: str) -> Measured:
    """Return what the tables are about."""
    return Measured(name, name, {}, BY_HAND[name], "measured", graph, line, int(known["memory"]))


def row(measured: Measured) -> dict[str, Any]:
    """The row of Table 4."""
    return step_time.row(measured)


def tight_rows(measured: Measured) -> list[dict[str, Any]]:
    """The rows of Table 5."""
    cases = insufficient_memory.cases([measured], of_memory=False)
    return [insufficient_memory.row(case, case.outcomes()) for case in cases]
