# SPDX-License-Identifier: Apache-2.0
"""Placements over the processes of torch.distributed train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import rank_cases
import torch
from rank_runs import run

_WORLDS = {2: ["twice", "images", "gpt2", "smaller"], 3: ["tied", "accumulated"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for count, cases in _WORLDS.items():
        run(count, [rank_cases.__file__, folder, *cases])
    return folder


def found(folder: Path, name: str) -> list[Any]:
    return [torch.load(path) for path in sorted(folder.glob(f"{name} *.pt"))]


@pytest.mark.parametrize(("count", "name"), [(n, name) for n, ns in _WORLDS.items() for name in ns])
def test_losses_and_weights_are_those_of_one_process(folder: Path, count: int, name: str) -> None:
    losses, weights = rank_cases.alone(rank_cases.CASES[name])
    ranks = found(folder, name)
    assert len(ranks) == count
    seen: list[str] = []
    for told, mine, drawn in ranks:
        assert told == pytest.approx(losses, rel=1e-9)
        assert torch.equal(drawn, ranks[0][2])  # random numbers of the user's stay the same
        for key, weight in mine.items():
            torch.testing.assert_close(weight, weights[key], rtol=1e-7, atol=1e-7)
        seen += mine
    assert sorted(seen) == sorted(weights)
