# SPDX-License-Identifier: Apache-2.0
"""Derivatives of gradients: those of a graph that runs once more, eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from baechi.torch.run.kept import Kept


def differentiable(graph: Any, kept: Kept, gradients: Sequence[Any]) -> list[Any]:
    """Return gradients that have derivatives: those of the graph run eagerly."""
    if graph.runs_once:
        raise RuntimeError(
            "baechi: a second derivative is asked for of a forward that draws random numbers, "
            "changes buffers or reads tensors that wrap others, which cannot run again for it: "
            "call the model with a leaf that requires a gradient, or under "
            "torch.compiler.set_stance('force_eager')"
        )
    args = kept.args
    with torch.enable_grad():
        outputs = graph.joint.source(*args)
    flat = dict(zip(graph.order, outputs, strict=True))
    found = zip(graph.outputs, gradients, strict=True)
    pairs = [(flat[i], gradient) for i, gradient in found if gradient is not None]
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    found = torch.autograd.grad(
        [o for o, _ in pairs],
        wanted,
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by_id = {id(a): g for a, g in zip(wanted, found, strict=True)}
    return [by_id.get(id(a)) if isinstance(a, torch.Tensor) else None for a in args]
