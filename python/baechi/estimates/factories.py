# SPDX-License-Identifier: Apache-2.0
"""Models that a Python function makes, traced by PyTorch without weights."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from baechi._core import Cluster, InputError
from baechi.estimates.architectures import Step

_EXPECTED = "expected (model, example_inputs), or with a loss and targets behind them"


def is_factory(model: str) -> bool:
    """Whether a text names a function, module:function, and no file."""
    module, colon, function = model.partition(":")
    is_name = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and function.isidentifier() and is_name and not os.path.exists(model)  # noqa: PTH110


def _called(name: str) -> tuple[Any, ...]:
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), function, None)
    except (ImportError, SyntaxError) as error:
        raise InputError(f"{name}: cannot import {module}: {error}") from None
    finally:
        sys.path.remove("")
    if not callable(make):
        raise InputError(f"{name}: {module} has no function {function}")
    import torch

    with torch.device("meta"):
        made = make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4:
        raise InputError(f"{name}: {_EXPECTED}; found {type(made).__name__}")
    return made


def step_of_factory(name: str, cluster: Cluster, optimizer: str) -> Step:
    """Trace the step of a model that a function makes."""
    try:
        import baechi.torch
    except ImportError as error:
        raise InputError(f"{name}: a function's model is traced by PyTorch: {error}") from None
    model, inputs, *rest = _called(name)
    loss, targets = (*rest, None, None)[:2]
    cards = [d.name for d in cluster.devices]
    planned = baechi.torch.plan(
        model,
        inputs,
        cluster.with_capacities(dict.fromkeys(cards, 1 << 50)),
        loss=loss,
        targets=targets,
        optimizer=optimizer,
        method="single",
    )
    parameters = list(model.parameters())
    import torch.utils._pytree as pytree

    first = next((t for t in pytree.tree_leaves(inputs) if getattr(t, "ndim", 0)), None)
    samples = int(first.shape[0]) if first is not None else 1
    return Step(
        name,
        planned.micro_batch_graph,
        samples,
        "samples",
        f"{samples} samples",
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
    )
