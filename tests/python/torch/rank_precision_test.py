# SPDX-License-Identifier: Apache-2.0
"""Over ranks models train under autocast, and with scaled gradients, as in one process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch.sim as simulated
import rank_precision
import torch
from rank_precision import BFLOAT, HALF, SCALE
from rank_runs import left_by

folder = left_by(rank_precision)


_CASES = [
    ("bfloat 1", ("cpu", BFLOAT, 1), {}),
    ("bfloat 3", ("cpu", BFLOAT, 3), {}),
    ("half 3", ("cpu", HALF, 3), {}),
    ("called", ("cpu", HALF, 1), {}),
    ("inside", ("cpu", None, 3), {"inside": True}),
    ("simulated bfloat", ("sim", BFLOAT, 3), {}),
    ("simulated half", ("sim", HALF, 3), {}),
    ("simulated inside", ("sim", None, 3), {"inside": True}),
]


@pytest.mark.parametrize(("case", "how", "options"), _CASES)
def test_models_train_under_autocast_as_in_one_process(
    folder: Path, case: str, how: Any, options: Any
) -> None:
    """In half precision one rank finds an infinity, and no rank takes that step.

    What is added up in another order differs by the rounding of half precision.
    """
    where: Any = contextlib.nullcontext()
    if how[0] == "sim":
        where = simulated.configured(devices=1, memory="1GiB")
    with where:
        losses, scales, gradients = rank_precision.in_one_process(*how, **options)
    assert scales == ([SCALE, SCALE, SCALE / 2, SCALE / 2] if HALF in how else [])
    seen: set[str] = set()
    for rank in range(2):
        found = torch.load(folder / f"{case} {rank}.pt")
        assert found[0][0] == pytest.approx(losses[0], rel=1e-6)
        assert found[0] == pytest.approx(losses, rel=2e-2)
        assert found[1] == scales
        assert not seen & found[2].keys()
        seen |= found[2].keys()
        for name, gradient in found[2].items():
            wanted = gradients[name]
            assert (gradient - wanted).norm() <= 0.02 * wanted.norm() + 1e-4, name
    assert seen == gradients.keys()


def test_an_infinity_of_one_replica_is_one_of_all(folder: Path) -> None:
    assert [torch.load(folder / f"replicas {rank}.pt") for rank in range(2)] == [
        (True, SCALE / 2)
    ] * 2


_SAID = {
    "scale": "do not have the same state of the GradScaler",
    "kind": "scaler is a torch.amp.GradScaler, not a float",
    "alone": "call placed.agree_on(scaler) once, on every rank",
    "on one": "rank 0 and rank 1 do not have the same autocast: None and torch.bfloat16",
    "called on one": "cannot call the model: rank 0 and rank 1 do not have the same autocast",
    "off": "nothing",
}


def test_each_state_of_autocast_has_a_graph_of_its_own(folder: Path) -> None:
    """Steps and calls take turns in and out of it; ranks agree on it, and on the scale."""
    model = rank_precision.Mixed()
    x, targets = rank_precision.mixed_batch()
    expected = []
    for dtype in (None, BFLOAT, None, HALF, BFLOAT):
        model.average.reset_running_stats()
        with rank_precision.around("cpu", dtype), torch.no_grad():
            parts = zip(x.chunk(2), targets.chunk(2), strict=True)
            losses = [rank_precision.loss_of(model(part), wanted) for part, wanted in parts]
            expected.append(torch.stack(losses).mean().item())
            expected.append(rank_precision.loss_of(model(x), targets).item())
    assert len(set(expected)) == 6
    for rank in range(2):
        losses, found = torch.load(folder / f"turns {rank}.pt")
        assert losses == pytest.approx(expected, rel=1e-6)
        assert found.keys() == _SAID.keys()
        for name, words in _SAID.items():
            assert words in found[name], (rank, name, found[name])
