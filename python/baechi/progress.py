# SPDX-License-Identifier: Apache-2.0
"""What `place` says while it works: a line on stderr for each stage that takes over a second."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import html
import importlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from baechi.tables import in_time

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 1.0  # seconds that a stage may take without a word


def _write(text: str, stream: Any) -> None:
    """Write to a stream if it is one; what it makes of that is no concern of the caller."""
    if stream is None:  # stderr in a process of Windows without a console
        return
    with contextlib.suppress(Exception):  # a broken pipe, a closed file, letters it does not have
        stream.write(text)
        stream.flush()


def _stream() -> Any:
    """Return where progress is told: on stderr, or below the cell of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return Cell() if hasattr(shell, "kernel") else sys.stderr


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", bool)())


def _in_words(result: object) -> str:
    try:
        return str(result)
    except Exception as error:
        return f"baechi: no summary of the result: {error!r}"


class Cell:
    """Below a notebook's cell, what a terminal would show: its last line may change and go away."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._lines = [""]
        self._shown: Any = None

    def isatty(self) -> bool:
        """Tell that lines can change."""
        return True

    def write(self, text: str) -> None:
        """Take in text with the terminal's signs."""
        for line in text.replace("\033[K", "").splitlines(keepends=True):
            if line[-1] == "\r":
                self._lines[-1] = ""
                continue
            self._lines[-1] += line.rstrip("\n")
            if line[-1] == "\n":
                self._lines.append("")

    def flush(self) -> None:
        """Show what there is."""
        display = importlib.import_module("IPython.display").display
        text = html.escape("\n".join(self._lines).strip())
        shown = {"text/html": f"<pre>{text}</pre>" if text else ""}
        if self._shown is None:
            self._shown = display(shown, raw=True, display_id=True)
        else:
            self._shown.update(shown, raw=True)


class Progress:
    """Tells of stages that last. Those inside another are part of it."""

    def __init__(self, patience: float) -> None:
        """Take over how many seconds pass without a word."""
        self._patience = patience
        self._stream = _stream()  # as it is now: tracing keeps PyTorch's words off it meanwhile
        self._inside = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Tell of a stage: its name once it lasts, and what it took when it ends."""
        if self._inside:
            yield
            return
        said = False
        ended = False

        def say() -> None:
            nonlocal said
            with self._lock:
                if not ended:
                    _write(f"baechi: {name} ...", self._stream)
                    said = True

        # A notebook finds a thread's cell by its context.
        timer = threading.Timer(self._patience, contextvars.copy_context().run, (say,))
        timer.daemon = True
        start = time.monotonic()
        self._inside = True
        if self._patience > 0:
            timer.start()
        else:
            say()
        try:
            yield
        finally:
            self._inside = False
            timer.cancel()
            with self._lock:
                ended = True
            if said:
                _write(f" {time.monotonic() - start:.1f} s\n", self._stream)

    def remark(self, text: str) -> None:
        """Say something on a line of its own."""
        _write(f"baechi: {text}\n", self._stream)


_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextlib.contextmanager
def searching(what: str, verbose: bool | None) -> Iterator[Callable[[str], None] | None]:
    """Return what tells of a search that lasts, or None where nobody is told.

    On a terminal and in a notebook it is one line that changes and goes away; elsewhere, with
    ``verbose=True``, a line for each new best. Within `told` it is a stage's business.
    """
    stream = _stream()
    terminal = _is_terminal(stream)
    if not (terminal and _CURRENT.get() is None if verbose is None else verbose):
        yield None
        return
    start = time.monotonic()
    said = ""

    def tell(news: str) -> None:
        nonlocal said
        if not terminal and (not news or news == said):
            return
        line = f"baechi: {what} ({time.monotonic() - start:.0f} s)" + (f": {news}" if news else "")
        _write(f"\r{line}\033[K" if terminal else f"{line}\n", stream)
        said = news or " "

    try:
        yield tell
    finally:
        if said and terminal:
            _write("\r\033[K", stream)


def stage(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a stage of whatever calls it within `told`."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            progress = _CURRENT.get()
            if progress is None:
                return function(*args, **kwargs)
            with progress.stage(name):
                return function(*args, **kwargs)

        return run

    return decorated


def remark(text: str) -> None:
    """Say something within `told`; nothing elsewhere."""
    if (progress := _CURRENT.get()) is not None:
        progress.remark(text)


def warn(message: str) -> None:
    """Warn at the user's line that led here, past all calls of this package and of PyTorch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level + 1)


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in ("baechi", "torch")  # whose modules call ours


def told(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function with an argument `verbose` tell of its stages and print what it returns.

    ``verbose=True`` tells always, ``verbose=False`` never, and None on a terminal and in a
    notebook, whose cell shows the result itself. Elsewhere None prints one line of a placed model.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        verbose: Any = kwargs.get("verbose")
        if not (_is_terminal(_stream()) if verbose is None else verbose):
            result = function(*args, **kwargs)
            plan = getattr(result, "plan", None)
            if verbose is None and plan is not None and getattr(result, "rank", 0) == 0:
                step = in_time(plan.makespan_ns)
                _write(f"baechi: placed; a step is predicted to take {step}\n", sys.stderr)
            return result
        token = _CURRENT.set(Progress(PATIENCE))
        try:
            result = function(*args, **kwargs)
        finally:
            _CURRENT.reset(token)
        if not isinstance(_stream(), Cell):
            _write(f"{_in_words(result)}\n", sys.stderr)
        return result

    return run
