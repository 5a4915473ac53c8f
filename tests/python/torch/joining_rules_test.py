# SPDX-License-Identifier: Apache-2.0
"""Parts of a step that become one begin no later than the first of them would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.run.step_order import Part, Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.exported import export
from baechi.torch.trace.placement import GraphPlacement, weights_in
from baechi.torch.weights.homes import named_weights
from torch import nn

M = 2


class Taking(nn.Module):
    """Reads what is made here, and what is made elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, here: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        return self.scale * (here + far)


class Last(nn.Module):
    """The last of three operators of a device reads a value from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.first, self.second = (nn.Linear(4, 4) for _ in range(3))
        self.third = Taking()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far = self.far(x)
        y: torch.Tensor = self.third(self.second(self.first(x)), far)
        return y


class Twice(nn.Module):
    """Two operators of a device read a value from elsewhere, and one need not wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.free = (nn.Linear(4, 4) for _ in range(2))
        self.one, self.other = Taking(), Taking()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        far = self.far(x)
        return self.one(x, far), self.other(self.free(x), far)


def program_of(model: nn.Module, *orders: str) -> StepProgram:
    """Return what runs where each micro-batch has an order; `far` alone is on the other device."""
    exported = export(model, torch.randn(2, 4))
    placement = {name: int(name == "far") for name in orders[0].split()}
    where = {id(w): placement[n.partition(".")[0]] for n, w in named_weights(model)}
    weights = weights_in(model, exported.graph, where)
    schedule = GraphPlacement(placement).scheduled(exported.graph, weights)
    devices = [LogicalDevice(i, f"gpu:{i}", torch.device("meta"), False) for i in range(2)]
    assigner: Any = SimpleNamespace(model=model, placement=placement, devices=devices)
    graph: Any = SimpleNamespace(exported=exported, devices=schedule.devices)

    def start_of(phase: Phase, operator: str, m: int) -> int | None:
        if phase is Phase.BY_WEIGHTS or operator not in placement:
            return None
        place = orders[m].split().index(operator)
        begin = 2 * len(placement) * m
        return begin + (2 * len(placement) - 1 - place if phase is Phase.BACKWARD else place)

    return StepProgram(graph, assigner, M, start_of, 0, joined=True)


def parts(program: StepProgram) -> set[tuple[str, ...]]:
    """Return the operators that are asked for as one."""
    return {tuple(sorted(s.operators)) for s in program.segments if s.operators}


def place_of(program: StepProgram, operator: str, m: int) -> int:
    """Return when the forward of an operator is asked for."""
    number = next(s.index for s in program.segments if operator in s.operators)
    return program.order.index(Part(Phase.FORWARD, number, m))


def test_a_part_begins_before_what_only_its_rest_would_wait_for() -> None:
    """What comes from elsewhere may take longer than all that is asked for behind it."""
    program = program_of(Last(), "far first second third", "far first second third")
    assert parts(program) == {("far",), ("first", "second"), ("third",)}


def test_a_part_is_asked_for_before_what_its_first_operator_does_not_read() -> None:
    """The value came for another reader in one micro-batch, and is late in the next one."""
    program = program_of(Twice(), "far one free other", "free far other one")
    assert place_of(program, "far", 0) < place_of(program, "free", 0)
    assert place_of(program, "free", 1) < place_of(program, "far", 1)
    same = program_of(Twice(), "far one free other", "far one free other")
    assert parts(same) == {("far",), ("free", "one", "other")}  # where it is there each time
