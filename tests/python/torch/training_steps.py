# SPDX-License-Identifier: Apache-2.0
"""Steps of training, and whether two models were trained alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from baechi.torch.base.nested import tensors_in
from baechi.torch.record.capture import call_arguments


def loss_like(out: Any) -> Any:
    """The loss of `loss_of`, from the output."""
    own = getattr(out, "loss", None)
    if own is not None:
        return own
    return sum(t.square().mean() for t in tensors_in(out))


def loss_of(model: Any, inputs: Any) -> Any:
    args, kwargs = call_arguments(inputs)
    return loss_like(model(*args, **kwargs))


def train(model: Any, batches: list[Any], optimizer: Any = None) -> tuple[list[float], list[Any]]:
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for inputs in batches:
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [None if p.grad is None else p.grad.cpu() for p in model.parameters()]


def close(expected: tuple[list[float], list[Any]], found: tuple[list[float], list[Any]]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6)
    scale = max((float(g.abs().max()) for g in expected[1] if g is not None), default=0.0)
    for a, b in zip(expected[1], found[1], strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(scale, 1.0))
