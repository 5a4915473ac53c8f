# SPDX-License-Identifier: Apache-2.0
"""What baechi.torch uses of torch.compile's private names."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

not_compiled = torch._disable_dynamo  # what torch.compile is not to look into


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile returned for another one."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile was given; others are their own."""
    return module._orig_mod if is_compiled(module) else module


def compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


class _OwnCode(threading.local):
    runs = False  # what torch.compile returned runs its own code in this thread


_own_code = _OwnCode()


class _StanceOfThread:
    """The stance of torch.compile that was set last, but where a thread wants its own code run.

    PyTorch has one stance for all threads, and reads it when something compiled is called.
    """

    def __init__(self, set_last: Any) -> None:
        self._set_last = set_last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._set_last, name)

    @property
    def stance(self) -> str:
        return "force_eager" if _own_code.runs else str(self._set_last.stance)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Let what torch.compile returned run its own code, in this thread."""
    if "torch._dynamo" not in sys.modules:
        yield  # nothing was compiled
        return
    from torch._dynamo import eval_frame  # only here: importing it takes a second

    if torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False):
        raise RuntimeError(
            "torch.compile cannot look into a part of a placed model that it sees called: compile "
            "the placed model, or call the part in a function that torch.compiler.disable returned"
        )
    if not isinstance(eval_frame._stance, _StanceOfThread):
        eval_frame._stance = _StanceOfThread(eval_frame._stance)
    before, _own_code.runs = _own_code.runs, True
    try:
        yield
    finally:
        _own_code.runs = before


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let what torch.compile returned run as compiled, whatever is around it."""
    before, _own_code.runs = _own_code.runs, False
    try:
        yield
    finally:
        _own_code.runs = before
