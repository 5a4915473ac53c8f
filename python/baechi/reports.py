# SPDX-License-Identifier: Apache-2.0
"""Plans as pages to look at, as traces, and as the settings of other programs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from baechi import _core
from baechi.pipeline import plan_given


def _plan_to_show(plan: _core.Plan) -> _core.Plan:
    """Warn if `verify` objects to a plan that is shown or passed on, and return it."""
    wrong = _core.verify(plan_given(plan))
    if wrong:
        more = "" if len(wrong) == 1 else f" (and {len(wrong) - 1} more: verify lists them)"
        warnings.warn(f"the plan is wrong: {wrong[0]}{more}", stacklevel=3)
    return plan


def report(
    plan: _core.Plan,
    path: str | os.PathLike[str],
    *,
    other: _core.Plan | None = None,
    labels: Sequence[str] | None = None,
) -> Path:
    """Show a plan as one HTML page: timeline, memory, critical path, methods, bounds.

    Args:
        plan: What to show.
        path: The file to write, atomically; the page needs no other.
        other: A second plan of the same graph, to be shown beside the first.
        labels: What the page calls the plans; their methods unless given.

    Returns:
        The path.

    """
    plans = [_plan_to_show(plan)]
    if other is not None:
        plans.append(_plan_to_show(other))
    names = [each.method for each in plans] if labels is None else list(labels)
    _core.write_text(path, _core.html_report(plans, names))
    return Path(path)


def trace(plan: _core.Plan, path: str | os.PathLike[str]) -> Path:
    """Write a plan as a trace for Perfetto or chrome://tracing; return the path."""
    _core.write_text(path, _core.trace_events(_plan_to_show(plan)))
    return Path(path)


def export_plan(plan: _core.Plan, to: str, form: str = "") -> str:
    """Return a plan as the settings of another program; ``export_formats()`` names them.

    "torch-pipelining" has the forms "schedule" (by default), "split-spec" and "module-fqns".

    Raises:
        InputError: The format is unknown, or cannot say what the plan says: "vllm" and
            "llama-cpp", for example, are for plans that cut between layers.

    """
    return _core.export_plan(_plan_to_show(plan), to, form)


def export_onnx(
    plan: _core.Plan, model: str | os.PathLike[str], path: str | os.PathLike[str]
) -> Path:
    """Write an ONNX model with a device on every node; return the path.

    Args:
        plan: A plan of the graph that was read from `model`.
        model: The ONNX file. Weights in files of their own stay there: keep both in one folder.
        path: The file to write. Everything but devices is as in `model`.

    Raises:
        InputError: The model is none, or another graph's.

    """
    try:
        source = Path(model).read_bytes()
    except OSError as error:
        raise _core.InputError(f"{os.fspath(model)}: cannot open: {error.strerror}") from None
    try:
        placed = _core.placed_onnx(_plan_to_show(plan), source)
    except _core.InputError as error:  # which knows the bytes, not the file
        words = str(error).replace("<bytes>", os.fspath(model), 1)
        raise _core.InputError(words) from None
    _core.write_bytes(path, placed)
    return Path(path)
