# SPDX-License-Identifier: Apache-2.0
"""What a step of micro-batches refuses, since it would compute something else than one batch."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi._core import InputError
from baechi.torch.base import _private
from baechi.torch.run.step_program import StepProgram
from baechi.torch.weights.homes import has_hooks_of_others


def check_hooks(
    program: StepProgram,
    weights: Mapping[int, torch.Tensor],
    trained: Sequence[Sequence[torch.Tensor]],
) -> None:
    """Refuse hooks that would be called with a part of a weight's gradient.

    Args:
        program: The step.
        weights: Weights by the nodes of the program's graph.
        trained: Those that each segment computes gradients of.

    """
    parts = [weight for of_segment in trained for weight in of_segment]
    for index, readers in program.readers.items():
        if index in weights:  # read elsewhere: what comes back is a part, too
            parts += [weights[index]] * len(readers)
    count = Counter(map(id, parts))
    for node in program.graph.nodes:
        weight = weights.get(node.index)
        if weight is None or count[id(weight)] < 2:
            continue
        if has_hooks_of_others(weight):
            raise InputError(
                f"{node.target!r} has a hook on its gradient and is read by several operators, "
                "whose gradients come one by one in a step of micro-batches: take the hook off "
                "and change weight.grad behind step()"
            )


@contextlib.contextmanager
def unchanged(weights: Sequence[torch.Tensor], micro_batches: int) -> Iterator[None]:
    """Refuse what a hook on gradients does to weights before all micro-batches have run."""
    before = [_private.version_of(weight) for weight in weights]
    yield
    if micro_batches > 1 and before != [_private.version_of(w) for w in weights]:
        raise InputError(
            "a hook changed a weight when its gradient was that of one micro-batch, while "
            "others have not run: take it off, and call the optimizer behind step()"
        )


def check_loss(loss: Any) -> None:
    """Refuse a loss that is not one number, or that has no gradient."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(f"loss returns one number as a tensor, not {shape}: take its mean")
    if not loss.requires_grad:
        raise InputError(
            "the loss does not depend on any weight that is trained: nothing has a gradient"
        )
