# SPDX-License-Identifier: Apache-2.0
"""Cache of steps on disk: a second process finds the graph that a first one made.

What is found only plans: what runs is always the graph of its own process. So a step that has
become stale unnoticed, by a change in a file that no module of the model stands in, costs time and
never a number.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi._core import InputError, write_text
from baechi.torch.capture.identity import identity_of
from baechi.torch.capture.step import Step
from baechi.torch.capture.stored import read, written
from baechi.torch.capture.trace import capture
from baechi.torch.native import cache_folder

KEPT = 64  # files; the oldest go first


def captured(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    *,
    device: torch.device | str | None = None,
) -> Step:
    """Return what `capture` does, from the disk where it was made before."""
    key = identity_of(model, example_inputs, loss, targets, device)
    path = cache_folder() / "steps" / f"{key}.json"
    found = _found(path)
    if found is not None:
        return found
    step = capture(model, example_inputs, loss, targets, device=device)
    if not step.made_by.endswith("values"):  # others would decide otherwise
        with contextlib.suppress(OSError, InputError, TypeError):  # a full disk, no plain constant
            _keep(path, written(step))
    return step


def _found(path: Path) -> Step | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        with contextlib.suppress(OSError):
            os.utime(path)
        return read(document)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None  # none, or one that is broken: it is made again


def _keep(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(path, json.dumps(document))
    by_age = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
    for old in by_age[:-KEPT]:
        old.unlink(missing_ok=True)
