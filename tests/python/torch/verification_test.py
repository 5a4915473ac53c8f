# SPDX-License-Identifier: Apache-2.0
"""`Placed.verify` passes on what is right and names what is not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from baechi.torch.run import program
from baechi.torch.run.communication import Links
from random_placement import placed_at_random
from torch_models import CASES, built


def placed_model(name: str) -> Any:
    case = CASES[name]
    return placed_at_random(built(case), case.inputs(2), seed=2)


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["resnet", "lstm", "transformer"])
def test_nothing_differs_in_a_placed_model(name: str) -> None:
    placed = placed_model(name)
    before = {n: t.clone() for n, t in placed.model.state_dict().items()}
    verification = placed.verify(CASES[name].inputs(2))
    assert verification, str(verification)
    assert verification.compared > 50
    assert all(torch.equal(t, before[n]) for n, t in placed.model.state_dict().items())
    transfers = placed.transfers
    args = CASES[name].inputs(2)
    placed.model(**args) if isinstance(args, dict) else placed.model(
        *(args if isinstance(args, tuple) else (args,))
    )
    assert placed.transfers > transfers  # it is placed again afterwards
    placed.restore()


def test_the_operator_behind_a_wrong_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = placed_model("inception")
    right = Links._copied
    wrong: list[int] = []

    def spoiled(self: Any, tensor: Any, source: Any, target: Any) -> Any:
        copy = right(self, tensor, source, target)
        if copy.dim() == 4:
            wrong.append(1)
            return copy * 1.01 if len(wrong) == 3 else copy
        return copy

    monkeypatch.setattr(Links, "_copied", spoiled)
    verification = placed.verify(CASES["inception"].inputs(2))
    assert not verification
    assert verification.what == "output"
    assert verification.error == pytest.approx(0.01, rel=0.5)
    monkeypatch.undo()
    assert placed.verify(CASES["inception"].inputs(2))
    placed.restore()


def test_a_wrong_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = placed_model("inception")
    right = Links._copied

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
            return gradients[0] * 2

    monkeypatch.setattr(Links, "_copied", lambda self, t, a, b: Doubled.apply(right(self, t, a, b)))
    verification = placed.verify(CASES["inception"].inputs(2))
    assert verification.what == "gradient"
    placed.restore()


def test_a_link_that_changes_bytes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = placed_model("resnet")
    right = Links._copied

    def spoiled(self: Any, tensor: Any, source: Any, target: Any) -> Any:
        copy = right(self, tensor, source, target)
        return copy + 1 if (source.index, target.index) == (2, 0) else copy

    monkeypatch.setattr(Links, "_copied", spoiled)
    verification = placed.verify(CASES["resnet"].inputs(2))
    assert (verification.what, verification.where) == ("copy", "gpu:2 -> gpu:0")
    placed.restore()


def test_the_call_of_a_graph_behind_a_wrong_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tier 2 is compared call by call; what is wrong there only is found."""
    placed = placed_model("inception")
    assert placed.verify(CASES["inception"].inputs(2)).compared > 50
    right = program._sender
    wrong: list[str] = []

    def spoiled(links: Any) -> Any:
        send = right(links)

        def spoil(value: Any, source: Any, target: Any) -> Any:
            arrival = send(value, source, target)
            if value.dim() == 4 and not wrong:
                wrong.append("")
                arrival.tensor = arrival.tensor * 1.01
            return arrival

        return spoil

    monkeypatch.setattr(program, "_sender", spoiled)
    verification = placed.verify(CASES["inception"].inputs(2))
    assert not verification
    assert verification.what == "output"
    assert ":" in str(verification.where)  # a call, not a module
    assert verification.error == pytest.approx(0.01, rel=0.5)
    monkeypatch.undo()
    placed.restore()
