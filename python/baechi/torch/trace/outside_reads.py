# SPDX-License-Identifier: Apache-2.0
"""Notes what a model's code asks while it is traced: random numbers, clock, files, if it is traced.

Also whether a tensor requires a gradient, which no argument does while it is traced. A graph would
have what the trace was told, in every call. The interpreter says which functions the code calls;
what runs inside PyTorch is not looked at.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch.overrides import TorchFunctionMode

from baechi.torch.record.code_names import installed, of_library
from baechi.torch.trace.graph import NotExportedError

_ASKED_FOR_MESSAGES = frozenset(
    ["logging", "warnings", "linecache", "traceback", "inspect", "importlib", "tqdm", "baechi"]
)
_OPENED_FOR_THE_MODEL = "torch.serialization"  # what torch.load does
_WORLD = frozenset(["time", "_socket", "select", "_uuid", "_posixsubprocess", "_queue"])
_SAME_ALWAYS = frozenset(["fspath", "getpid", "cpu_count", "sched_getaffinity", "register_at_fork"])
_TODAY = frozenset(["now", "utcnow", "today"])
_ENVIRON = "os.environ"
_ENVIRONMENT: tuple[CodeType, ...] = tuple(
    getattr(type(os.environ), name).__code__ for name in ("__getitem__", "__iter__", "__len__")
)
# PyTorch's functions by which code asks whether it is traced. Whoever asks computes otherwise then.
# Of installed packages it is believed that what they compute is the same: transformers makes masks
# that it leaves out elsewhere.
_TRACED = frozenset(["is_compiling", "is_exporting"])
# Attributes of a tensor that have other values while it is traced, or change with no new graph.
_OF_GRADIENTS = frozenset(
    ["requires_grad", "is_leaf", "grad", "grad_fn", "retains_grad", "_version"]
)


def _asked(function: Any) -> str | None:
    """Return what a builtin function asks the world for, as its name; None if it does not."""
    owner = getattr(function, "__self__", None)
    name = function.__name__
    if isinstance(owner, ModuleType):
        module = owner.__name__
        if module in ("posix", "nt"):
            return None if name in _SAME_ALWAYS or name.startswith("_") else f"os.{name}"
        if module in ("io", "_io", "builtins"):
            return name if name in ("open", "open_code", "input") else None
        if module not in _WORLD or name == "sleep":  # which tells nothing
            return None
        return f"{module.lstrip('_')}.{name}"
    if isinstance(owner, random.Random):
        return f"random.{name}" if name in ("random", "getrandbits") else None
    if isinstance(owner, io.IOBase) or type(owner).__module__ in _WORLD:
        return (
            f"{type(owner).__name__}.{name}" if name.startswith(("read", "get", "recv")) else None
        )
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in _TODAY:
        return f"{owner.__name__}.{name}"
    return None


def _asked_if_traced(frame: FrameType) -> str | None:
    """Return the name of the function whose call has begun if it is one of `_TRACED`."""
    module = str(frame.f_globals.get("__name__", ""))
    name = frame.f_code.co_name
    return f"{module}.{name}" if module.partition(".")[0] == "torch" else None


def _line_of_model(frame: FrameType | None, *, trusted: bool) -> str | None:
    """Return the file and line of the user's that led to a frame; None if none did.

    Args:
        frame: What asks.
        trusted: Whether installed packages may ask that.

    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if not of_library(module):
            if trusted and installed(module):
                return None
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if top in _ASKED_FOR_MESSAGES or "importlib" in module:
            return None
        if top == "torch" and module != _OPENED_FOR_THE_MODEL:
            return None
        frame = frame.f_back
    return None


class _Functions(TorchFunctionMode):
    """Does not look into torch functions."""

    def __init__(self, reads: OutsideReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._reads.looked(func, sys._getframe(1))
        with self._reads.unwatched():
            return func(*args, **(kwargs or {}))


class OutsideReads:
    """Watches one trace."""

    def __init__(self) -> None:
        self.found: str | None = None  # the first, with where
        self._watching = False
        self.functions = _Functions(self)

    def _event(self, frame: FrameType, event: str, called: Any) -> None:
        if self.found is not None:
            return
        asked: str | None = None
        asking: FrameType | None = frame
        trusted = False
        if event == "c_call":
            asked = _asked(called)
        elif event == "call" and frame.f_code in _ENVIRONMENT:
            # What packages have in the environment are settings that no script changes in between.
            asked, trusted = _ENVIRON, True
        elif event == "call" and frame.f_code.co_name in _TRACED:
            asked, asking, trusted = _asked_if_traced(frame), frame.f_back, True
        line = asked and _line_of_model(asking, trusted=trusted)
        if line is not None:
            self.found = f"calls {asked} ({line})"

    def looked(self, func: Any, frame: FrameType | None) -> None:
        """Take note of a torch function that the code of a frame calls if it asks for gradients."""
        name = getattr(func, "__name__", "") == "__get__" and func.__self__.__name__
        if self.found is None and name in _OF_GRADIENTS:
            line = _line_of_model(frame, trusted=False)
            if line is not None:
                self.found = f"asks for {name} of a tensor ({line})"

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look at what runs."""
        other: Any = sys.getprofile()
        pause = getattr(other, "disable", None)
        if other is not None and pause is None and not callable(other):
            raise NotExportedError("a profiler is on, so what its forward reads cannot be seen")
        if pause is not None:
            pause()
        self._watching = True
        sys.setprofile(self._event)
        try:
            yield
        finally:
            self._watching = False
            sys.setprofile(None)
            if pause is not None:
                other.enable()
            elif other is not None:
                sys.setprofile(other)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Look away while PyTorch works."""
        if not self._watching:
            yield
            return
        self._watching = False
        sys.setprofile(None)
        try:
            yield
        finally:
            self._watching = True
            sys.setprofile(self._event)
