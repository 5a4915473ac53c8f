# SPDX-License-Identifier: Apache-2.0
"""Faults in what ranks send and receive are seen: by numbers, or by an error on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import rank_cases
import rank_planted
import torch
from rank_runs import left_by

folder = left_by(rank_planted)


def is_right(folder: Path, fault: str) -> bool:
    """Whether both ranks have the loss and the gradients of one process."""
    model, x = rank_planted.crossed()
    loss: Any = rank_cases.mean_square(model(x))
    loss.backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    known: dict[str, torch.Tensor] = {}
    losses = []
    for rank in range(2):
        told, gradients, messages = torch.load(folder / f"{fault} {rank}.pt")
        assert messages == 2  # two values one way, and two gradients the other
        losses.append(told)
        known.update(gradients)
    assert known.keys() == wanted.keys()
    same = (torch.allclose(known[n], g, rtol=1e-12, atol=1e-15) for n, g in wanted.items())
    return losses == pytest.approx([loss.item()] * 2, rel=1e-12) and all(same)


def test_without_a_fault_all_is_as_in_one_process(folder: Path) -> None:
    assert is_right(folder, "none")


@pytest.mark.parametrize("fault", ["values by readers", "gradients by readers", "no waits"])
def test_messages_that_are_taken_for_others_are_seen_in_numbers(folder: Path, fault: str) -> None:
    """Nothing is tagged, and all of them have the same shape: no error tells of it."""
    assert not is_right(folder, fault)


def test_messages_that_ranks_foresee_otherwise_are_an_error_before_the_first(folder: Path) -> None:
    for rank in range(2):
        said = torch.load(folder / f"other messages {rank}.pt")
        assert said.startswith("InputError: ranks cannot place this model: rank 0 and rank 1 do ")
        assert "not have the same messages" in said
