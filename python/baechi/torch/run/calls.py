# SPDX-License-Identifier: Apache-2.0
"""Calls of a placed model: forward and backward run as programs, behind dynamo's own guards.

What dynamo or AOTAutograd cannot take runs eagerly between programs, where the hooks have it: a
frame, or a graph.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi.brief_errors import kind_and_line
from baechi.torch.capture.joint import flags
from baechi.torch.private import call_compiled
from baechi.torch.run.backend import Backend, weakly
from baechi.torch.where.arrivals import Brought
from baechi.torch.where.drawn import Calls

_NUMBERS = itertools.count()
_log = logging.getLogger(__name__)
_DYNAMO = logging.getLogger("torch._dynamo.convert_frame")
_OURS = str(Path(__file__).parents[1])
_PLACE = re.compile(r'File "(.*)", line (\d+), in')  # of the user's code, in an error of dynamo's


def compile_calls(model: nn.Module, backend: Backend) -> None:
    """Have a model's calls run as programs.

    The hooks of the model are traced with it, so that what is compiled is its whole call. A
    function around it that is compiled, too, finds a boundary here.
    """

    def call(word: str, *args: Any, **kwargs: Any) -> Any:
        assert word  # which is then guarded
        return model._call_impl(*args, **kwargs)

    compiled, classes = (
        torch.compile(with_own_code(call), backend=weakly(backend.__call__)),
        Classes(model),
    )

    def begin() -> str:
        backend.begin()
        return classes.word()

    call_compiled(model, bounded(compiled, backend, begin))


class Classes:
    """The classes of a model, whose `forward` may be replaced: dynamo guards that of objects only.

    A word that changes with them is an argument of what is compiled, and so guarded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._forwards = {kind: _forward_of(kind) for kind in {type(m) for m in model.modules()}}
        self._changes = 0

    def word(self) -> str:
        """Return what stands for the classes as they are now."""
        for kind, forward in self._forwards.items():
            found = _forward_of(kind)
            if found is not forward:
                self._forwards[kind] = found
                self._changes += 1
        return str(self._changes)


def _forward_of(kind: type) -> Any:
    """Return what a class has as its `forward`, as it is: TorchScript's cannot be asked for."""
    return next((vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)), None)


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose code and globals are of this one alone.

    Dynamo limits the graphs of each code, and puts into its globals what graphs run: what it put
    into those of a module would stay when the model is gone. It knows code by its name, too, and
    has the sizes vary that were other ones in a model of the same.
    """
    assert isinstance(function, types.FunctionType)
    name = f"{function.__name__}_{next(_NUMBERS)}"
    return types.FunctionType(
        function.__code__.replace(co_name=name),
        dict(function.__globals__),
        name,
        function.__defaults__,
        function.__closure__,
    )


def bounded(
    compiled: Callable[..., Any], backend: Backend, begin: Callable[[], str]
) -> Callable[..., Any]:
    """Return a function that nobody compiles into a graph of theirs.

    A batch comes to its devices before the call; `begin` is told, and what it returns is the first
    argument.
    """
    calls, arrivals = Calls(backend.placement.accelerators), backend.placement.arrivals

    @torch.compiler.disable(  # type: ignore[untyped-decorator]
        recursive=False, reason="a placed model is compiled by itself"
    )
    def boundary(*args: Any, **kwargs: Any) -> Any:
        begun = calls.begin((args, kwargs))
        try:
            result = call(*args, **kwargs)
            calls.note(begun)
        finally:
            calls.end(begun)
        return result

    def call(*args: Any, **kwargs: Any) -> Any:
        word = begin()
        with torch._dynamo.config.patch(suppress_errors=True, **flags()):
            there = arrivals.of(args, kwargs)
            batch = Brought((args, kwargs), there[:2])
            try:
                with Listening(backend) as heard:
                    result = compiled(word, *there[0], **there[1])
            finally:
                batch.give_back()
        for why in heard.new:
            _log.warning("a part of the model runs eagerly, slower and right: %s", why)
        return result

    return boundary


class Listening(logging.Filter):
    """Hears of each frame that dynamo cannot compile, of which its log has pages."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._thread, self._said = threading.get_ident(), backend.uncompiled
        self.new: list[str] = []

    def __enter__(self) -> Listening:
        """Begin."""
        _DYNAMO.addFilter(self)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """End; behind an error, which is the model's own, nothing was left out."""
        _DYNAMO.removeFilter(self)
        if kind is None:
            self._said += self.new

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is none of ours; note what ours says."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or threading.get_ident() != self._thread:
            return True
        found = [place for place in _PLACE.findall(str(error)) if not place[0].startswith(_OURS)]
        why = kind_and_line(error) + "".join(f" ({file}:{line})" for file, line in found[-1:])
        if why not in (*self._said, *self.new):
            self.new.append(why)
        return False
