# SPDX-License-Identifier: Apache-2.0
"""What baechi.torch uses of the private names of autograd and of its checkpoints."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import apis as transforms
from torch._functorch import eager_transforms
from torch.autograd.function import FunctionMeta
from torch.autograd.graph import get_gradient_edge
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint as checkpointing

current_autograd_node = torch._C._current_autograd_node
_HOOKED = "baechi: a hook may change this gradient"  # in the metadata of an autograd node
CHECKPOINT_NODE = "CheckpointFunctionBackward"  # of `checkpoint(..., use_reentrant=True)`


def next_sequence_number() -> int:
    """Return the number that the next autograd node of this thread gets."""
    return int(torch.autograd._get_sequence_nr())


def sequence_number(node: Any) -> int:
    """Return when an autograd node was made: they count up, but for the accumulation of leaves."""
    return int(node._sequence_nr())


def comes_to(leaf: torch.Tensor) -> bool | None:
    """Whether the backward that runs gives a leaf its gradient; None: it returns the gradient."""
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(leaf).node))
    except RuntimeError:  # so PyTorch says of the leaves that torch.autograd.grad was asked for
        return None


def run_first(node: Any) -> None:
    """Let an autograd node run as soon as its gradient is there, before all that waits already."""
    node._set_sequence_nr(2**64 - 1)


class OneBackwardThread:
    """While anybody wants it: the backward calls of a thread run in it, for all devices.

    Which a thread takes over when it calls `here`. What held before is put back in the thread that
    calls the last `end`, or that collects the last one who wanted it.
    """

    def __init__(self) -> None:
        self._who: dict[int, weakref.finalize[..., Any]] = {}
        self._taken = threading.local()

    def begin(self, who: Any) -> None:
        """Want it, until `end` or the end of `who`."""
        if id(who) not in self._who:
            gone = weakref.finalize(who, self._end, id(who))
            gone.atexit = False
            self._who[id(who)] = gone
        self.here()

    def here(self) -> None:
        """Let it hold in this thread."""
        if torch._C._is_multithreading_enabled():
            torch._C._set_multithreading_enabled(False)
            self._taken.here = True

    def end(self, who: Any) -> None:
        """Want it no more."""
        gone = self._who.get(id(who))
        if gone is not None:
            gone()

    @contextlib.contextmanager
    def wanted(self, who: Any) -> Iterator[None]:
        """Want it in a ``with`` block."""
        self.begin(who)
        try:
            yield
        finally:
            self.end(who)

    def _end(self, who: int) -> None:
        self._who.pop(who, None)
        if not self._who and getattr(self._taken, "here", False):
            torch._C._set_multithreading_enabled(True)
            self._taken.here = False


one_backward_thread = OneBackwardThread()


_CHECKPOINT = "_checkpoint_without_reentrant_generator"
if hasattr(checkpointing, f"{_CHECKPOINT}_impl"):  # 2.14 and 2.15 have it, 2.13 does not
    _CHECKPOINT += "_impl"


# What the functions of `torch.func` call, whoever has imported these, and where it is looked up.
_TRANSFORMS = {
    "vmap_impl": transforms,
    "grad_and_value_impl": eager_transforms,
    "_vjp_with_argnums": eager_transforms,
}


# What `torch.jit.script` makes of functions, and of methods.
_SCRIPTED = (torch._C.ScriptFunction, torch._C.ScriptMethod)


@contextlib.contextmanager
def without_saved_hooks(pack: Any) -> Iterator[None]:
    """Take hooks on saved tensors off, with which derivatives of `torch.func` do not run."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if top is None or top[0] != pack:
        yield
        return
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(*top)


def is_hooked(node: Any) -> bool:
    """Whether a hook was put on what an autograd node made while calls were seen."""
    return _HOOKED in node.metadata


class _Apply:
    """`torch.autograd.Function.apply`: what it is, replaced, and put back.

    Up to 2.13 it is a function of Python. Its code is replaced, so that also who holds `Kind.apply`
    since before calls what takes its place. Since 2.14 it is one of C, and replaced by name.
    `passed_by` is told of a class whose `apply` was held since before and is called now.
    """

    _called = threading.local()

    def __init__(self) -> None:
        self._held = torch.autograd.Function.__dict__["apply"]
        self._function = getattr(self._held, "__func__", None)
        if self._function is not None:
            self._code, self._real = self._function.__code__, _twin(self._function)

    def of(self, cls: type) -> Callable[..., Any]:
        """Return what `cls.apply` was before."""
        if self._function is not None:
            return types.MethodType(self._real, cls)
        apply, called = self._held.__get__(None, cls), self._called

        def call(*args: Any, **kwargs: Any) -> Any:
            before = getattr(called, "cls", None)
            called.cls = cls
            try:
                return apply(*args, **kwargs)
            finally:
                called.cls = before

        return call

    def replace(self, by: Callable[..., Any], passed_by: Callable[[type], None]) -> None:
        """Have `by` called with the class and the arguments."""
        if self._function is not None:
            self._function.__code__ = _calling(by)
            return
        called = self._called

        def found(cls: Any, name: str) -> Any:
            if name == "forward":  # the first call that C makes
                if getattr(called, "cls", None) is not cls:
                    passed_by(cls)
                called.cls = None
            return type.__getattribute__(cls, name)

        torch.autograd.Function.apply = classmethod(by)
        FunctionMeta.__getattribute__ = found

    def put_back(self) -> None:
        """Have it as it was."""
        if self._function is not None:
            self._function.__code__ = self._code
            return
        torch.autograd.Function.apply = self._held
        del FunctionMeta.__getattribute__


def _twin(function: types.FunctionType) -> types.FunctionType:
    """Return a function that does what another one does now, whatever that will do."""
    known = function.__code__, function.__globals__, function.__name__
    twin = types.FunctionType(*known, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _calling(function: Callable[..., Any]) -> types.CodeType:
    """Return code for a method with one free variable, as `super` makes, that calls `function`."""

    def made(__class__: Any) -> Any:
        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            _ = __class__
            call: Any = "function"
            return call(cls, *args, **kwargs)

        return apply

    code = made(None).__code__
    consts = (function if const == "function" else const for const in code.co_consts)
    found: types.CodeType = code.replace(co_consts=tuple(consts))
    return found


class AutogradCalls:
    """While anybody wants it: sees what autograd does with functions of Python.

    `torch.utils.checkpoint` keeps a function for the backward; what `resumed_later` returns is kept
    in its place, and is told by `begins` when the function is about to run in the forward. No
    function mode sees calls of an autograd function, of a function of TorchScript, and what a
    function of `torch.func` calls: they are handed to `applied`, `scripted` and `transformed`.
    Nor does one see a hook that is put on a tensor inside a unit: `is_hooked` tells of it.
    """

    def __init__(self) -> None:
        self._who: dict[int, weakref.ref[Any]] = {}
        self._before: tuple[Any, Any, Any, Any, dict[str, Any], list[Any]] | None = None
        self._told: dict[int, Callable[[type], None]] = {}  # by thread
        self._changing = threading.RLock()  # else two threads might each replace the other's

    def begin(self, who: Any) -> None:
        """Let `who`, a function mode, see them until `end` or the end of `who`."""
        key = id(who)
        with self._changing:
            self._who[key] = weakref.ref(who, lambda _: self._forget(key))
            if self._before is None:
                self._replace()

    def _replace(self) -> None:
        module, function = checkpointing, checkpointing.CheckpointFunction
        generator, forward = getattr(module, _CHECKPOINT), function.forward
        apply = _Apply()
        register = torch.Tensor.register_hook
        impls = {name: getattr(of, name) for name, of in _TRANSFORMS.items()}
        scripts = [kind.__dict__["__call__"] for kind in _SCRIPTED]
        self._before = generator, forward, apply, register, impls, scripts

        def with_generator(kept: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
            resumed = self._resumed(kept, runs_now=False)
            inner = generator(resumed, *args, **kwargs)
            next(inner)
            if resumed is not kept:
                resumed.begins()  # behind what the checkpoint itself calls
            try:
                yield
            except BaseException as error:
                inner.throw(error)
                raise
            next(inner, None)

        def with_forward(ctx: Any, kept: Any, *args: Any) -> Any:
            return forward(ctx, self._resumed(kept, runs_now=True), *args)

        def tell(cls: type) -> None:
            told = self._told.get(threading.get_ident())
            if told is not None:
                told(cls)

        def passed_by(cls: type) -> None:
            tell(cls)
            who = None if cls.__module__.startswith("torch.") else self._seeing()
            if who is not None:
                who.passed_by(cls)

        def with_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            tell(cls)
            call = apply.of(cls)
            who = None if cls.__module__.startswith("torch.") else self._seeing()
            return call(*args, **kwargs) if who is None else who.applied(cls, call, args, kwargs)

        @functools.wraps(register)
        def with_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if tensor.grad_fn is not None:
                tensor.grad_fn.metadata[_HOOKED] = True
            return register(tensor, hook)

        torch.Tensor.register_hook = with_hook
        setattr(module, _CHECKPOINT, with_generator)
        function.forward = staticmethod(with_forward)
        for name, run in impls.items():
            setattr(_TRANSFORMS[name], name, functools.partial(self._transform, run))
        apply.replace(with_apply, passed_by)
        for kind, run in zip(_SCRIPTED, scripts, strict=True):
            kind.__call__ = self._with_script(run)

    def _with_script(self, run: Any) -> Any:
        def with_script(script: Any, *args: Any, **kwargs: Any) -> Any:
            call = run.__get__(script)
            who = self._seeing()
            return (
                call(*args, **kwargs) if who is None else who.scripted(script, call, args, kwargs)
            )

        return with_script

    def _transform(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        who = self._seeing()
        if who is None:
            return run(*args, **kwargs)
        out = who.transformed(run, args, kwargs)
        if run.__name__ != "_vjp_with_argnums":
            return out
        values, pull, *more = out
        pull.__name__ = "vjp_fn"
        return (values, functools.partial(self._transform, pull), *more)

    def _seeing(self) -> Any:
        """Return who sees what runs in this thread now."""
        modes = _get_current_function_mode_stack()
        return modes[-1] if modes and id(modes[-1]) in self._who else None

    def _resumed(self, function: Any, *, runs_now: bool) -> Any:
        who = self._seeing()
        return function if who is None else who.resumed_later(function, runs_now=runs_now)

    @contextlib.contextmanager
    def told(self, tell: Callable[[type], None]) -> Iterator[None]:
        """Tell `tell` of the class of each autograd function that this thread is about to call."""
        thread = threading.get_ident()
        self.begin(tell)
        self._told[thread] = tell
        try:
            yield
        finally:
            del self._told[thread]
            self.end(tell)

    def end(self, who: Any) -> None:
        """Let `who` see no more."""
        self._forget(id(who))

    def _forget(self, key: int) -> None:
        with self._changing:
            self._who.pop(key, None)
            if self._before is not None and not self._who:
                self._put_back(*self._before)
                self._before = None

    def _put_back(
        self,
        generator: Any,
        forward: Any,
        apply: _Apply,
        register: Any,
        impls: dict[str, Any],
        scripts: list[Any],
    ) -> None:
        torch.Tensor.register_hook = register
        for name, run in impls.items():
            setattr(_TRANSFORMS[name], name, run)
        setattr(checkpointing, _CHECKPOINT, generator)
        checkpointing.CheckpointFunction.forward = staticmethod(forward)
        apply.put_back()
        for kind, run in zip(_SCRIPTED, scripts, strict=True):
            kind.__call__ = run


autograd_calls = AutogradCalls()


def called_by_checkpoint() -> bool:
    """Whether the torch function that a mode is handed was called by a checkpoint itself."""
    return sys._getframe(2).f_globals is vars(checkpointing)


current_backward = torch._C._current_graph_task_id  # its number; negative where none runs


def call_after_backward(call: Callable[[], None]) -> None:
    """Have `call` run when the backward that runs is over, if it does not fail."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def expect_gradients_of_other_streams() -> None:
    """Keep PyTorch from warning that a weight's gradient comes from a stream not its own.

    That is meant where a weight is read on other devices; the engine orders the two streams.
    """
    change = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if change is not None:  # PyTorch 2.10 and newer
        change(False)


def saved_hooks() -> tuple[bool, Any]:
    """Return whether tensors that autograd saves may have hooks, and those that they get now."""
    enabled = bool(torch._C._autograd._saved_tensors_hooks_is_enabled())
    return enabled, torch._C._autograd._top_saved_tensors_default_hooks(False) if enabled else None
