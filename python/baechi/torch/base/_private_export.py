# SPDX-License-Identifier: Apache-2.0
"""What baechi.torch uses of the private names of tracing and torch.export."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import traceback

from baechi.torch.base import _private_autograd
from baechi.torch.base._private import version


def annotate(name: str, value: str) -> Any:
    """Return a context in which every call that is traced gets `value` in its node's metadata."""
    known = getattr(traceback, "annotate", None)  # since PyTorch 2.10
    return _annotated(name, value) if known is None else known({name: value})


@contextlib.contextmanager
def _annotated(name: str, value: str) -> Iterator[None]:
    """Set what PyTorch 2.9 copies from the current metadata to every node."""
    meta = traceback.current_meta
    before = meta.get("custom")
    meta["custom"] = {**(before or {}), name: value}
    try:
        yield
    finally:
        if before is None:
            del meta["custom"]
        else:
            meta["custom"] = before


@contextlib.contextmanager
def no_tracing() -> Iterator[None]:
    """Compute for real in the middle of a trace."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


def is_without_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape only."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


@contextlib.contextmanager
def nothing_hidden(error: type[Exception]) -> Iterator[None]:
    """Raise `error` in this thread where a trace would follow what it then forgets."""
    thread = threading.get_ident()
    hooks = torch.autograd.graph.saved_tensors_hooks
    enter = hooks.__enter__
    recomputed = "it has hooks on saved tensors, as activation checkpointing has"

    def refuse(cls: type) -> None:
        if cls.__name__ == "_NoopSaveInputs":
            raise error(recomputed)  # PyTorch 2.9 begins a checkpoint with it
        if not cls.__name__.startswith("GeneratedBackwardFor_"):  # of a custom operator
            raise error(f"{cls.__name__} has a backward of its own")

    def refuse_hooks(self: Any) -> None:
        if threading.get_ident() == thread:
            raise error(recomputed)
        enter(self)

    hooks.__enter__ = refuse_hooks
    try:
        with _private_autograd.autograd_calls.told(refuse):
            yield
    finally:
        hooks.__enter__ = enter


@contextlib.contextmanager
def _lstm_states_as_computed() -> Iterator[None]:
    """Give an LSTM's last states their dimensions: PyTorch before 2.13 traces one too many."""
    from torch._decomp import decompositions

    layer = decompositions.one_layer_lstm

    def traced(*args: Any, **kwargs: Any) -> Any:
        out, states = layer(*args, **kwargs)
        return out, tuple(state.squeeze(0) if state.dim() == 3 else state for state in states)

    decompositions.one_layer_lstm = traced
    try:
        yield
    finally:
        decompositions.one_layer_lstm = layer


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Let these loggers say nothing."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _other_threads_untraced() -> Iterator[None]:
    """Let the modules of other threads be: an export replaces how all modules are called."""
    from torch.fx.experimental.proxy_tensor import _ModuleStackTracer as Tracer

    thread = threading.get_ident()
    call, attribute = Tracer.call_module, Tracer.getattr

    def call_module(self: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return forward(*args, **kwargs)
        return call(self, module, forward, args, kwargs)

    def getattr_(self: Any, name: str, value: Any, proxies: Any) -> Any:
        if threading.get_ident() != thread:
            return value
        return attribute(self, name, value, proxies)

    Tracer.call_module, Tracer.getattr = call_module, getattr_
    try:
        yield
    finally:
        Tracer.call_module, Tracer.getattr = call, attribute


def export_program(module: nn.Module, args: Any, dynamic_shapes: Any) -> Any:
    """Return torch.export's program; the calls keep what they were annotated with."""
    mended = _lstm_states_as_computed if version() < (2, 13) else contextlib.nullcontext
    # What fails is said by the error; the graph up to there would be printed. Sizes that turn out
    # to be fixed are found again in the program.
    quiet = _quiet("torch.fx.experimental.symbolic_shapes", "torch._export.non_strict_utils")
    with (
        quiet,
        traceback.preserve_node_meta(),
        contextlib.redirect_stderr(io.StringIO()),
        mended(),
        _other_threads_untraced(),
    ):
        return torch.export.export(module, args, dynamic_shapes=dynamic_shapes, strict=False)


def range_of(program: Any, size: Any) -> tuple[int, int]:
    """Return the least and the largest value of a symbolic size."""
    found = program.range_constraints.get(size.node.expr)
    if found is None:
        return (hint := int(size)), hint
    largest = 2**63 - 1
    high = found.upper
    return int(found.lower), largest if not high.is_finite or high > largest else int(high)


def shape_guards(program: Any, name: str) -> Callable[[list[torch.Tensor]], bool]:
    """Return what checks the conditions between sizes under which a program was traced."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    codes = getattr(program, "_guards_code", None) or []
    compiled = [compile(code, "<guards>", "eval") for code in codes]

    def hold(tensors: list[torch.Tensor]) -> bool:
        known = {**SYMPY_INTERP, "L": {name: tensors}}
        return all(eval(code, known) for code in compiled)

    return hold
