# SPDX-License-Identifier: Apache-2.0
"""What a user can mend is said at the user's own line, not at the end of this package's frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from baechi._core import InputError
from baechi.pipeline import DoesNotFit

P = ParamSpec("P")
R = TypeVar("R")

INNER = ("baechi", "torch", "tensorflow", "keras")  # packages whose frames say nothing to a user


def briefly(function: Callable[P, R]) -> Callable[P, R]:
    """Make a public function leave its inner frames out of `InputError` and `DoesNotFit`.

    Frames of the user's code stay, such as that of a model's forward, and so does the whole cause
    of an error. All other exceptions keep every frame.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (InputError, DoesNotFit) as error:
            shown = _without_inner(error.__traceback__)
            raise error.with_traceback(shown) from error.__cause__

    return run


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0]


def kind_and_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {first_line(error)}"


def _without_inner(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package and of the frameworks."""
    kept = []
    while frames is not None:
        module = str(frames.tb_frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in INNER:
            kept.append(frames)
        frames = frames.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown
