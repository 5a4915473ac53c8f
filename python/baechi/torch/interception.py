# SPDX-License-Identifier: Apache-2.0
"""Sees every module call and every plain torch function of a model's forward.

The model's code is not changed: each module gets a `forward` of its own in its instance, which is
taken away again by `remove`, and a function mode is on while the model runs. A *unit* is a module
whose inside is not looked at. Everything seen has a key that is the same in every step: the path of
the modules around it, a number where a module is called again, and for a function how many came
before it in the same module call.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from baechi._core import InputError
from baechi.torch import _private

# What only looks at a tensor, or is a view by attribute: never an operator of its own.
OBSERVERS = frozenset(
    [
        "__get__",
        "__set__",
        "__delete__",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_tensor",
        "__len__",
        "type",
        "element_size",
        "untyped_storage",
        "data_ptr",
        "get_device",
        "is_same_size",
        "has_names",
        "is_pinned",
        "is_inference",
        "requires_grad_",
        "retain_grad",
        "register_hook",
        "backward",
        "__hash__",
        "__repr__",
        "__format__",
        "is_conj",
        "is_neg",
        "register_post_accumulate_grad_hook",
        "record_stream",
        "device",
        "_set_grad_enabled",
        "_set_multithreading_enabled",
        "get_rng_state",  # a checkpoint's, of the devices that its arguments are on
        "set_rng_state",
        "lift_fresh.default",  # of `from_numpy`, and seen only while a dispatch mode is on
    ]
)


class Scope:
    """One call of a module, the same object in every step. Counts what happens inside the call."""

    __slots__ = ("_calls", "children", "functions", "key", "path", "planned", "target")

    def __init__(self, key: str, path: str) -> None:
        self.key = key
        self.path = path
        self.children: dict[tuple[str, int], Scope] = {}
        self.functions = 0
        self.planned: dict[int, Any] = {}  # for an assigner: what is known of function n
        self.target: Any = None  # for an assigner: what is known of this call
        self._calls: dict[str, int] = {}

    def begin(self) -> None:
        """Forget what an earlier step counted."""
        self.functions = 0
        self._calls.clear()

    def call(self, path: str) -> Scope:
        """Return the scope of the next call of the module at `path` from inside this one."""
        count = self._calls.get(path, 0)
        self._calls[path] = count + 1
        scope = self.children.get((path, count))
        if scope is None:
            scope = self.children[path, count] = Scope(self._key_of(path, count), path)
        scope.begin()
        return scope

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return how far the call is, for `go_back`."""
        return self.functions, dict(self._calls)

    def go_back(self, mark: tuple[int, dict[str, int]]) -> None:
        """Count from where the call was at a mark."""
        self.functions = mark[0]
        self._calls = dict(mark[1])

    def _key_of(self, path: str, count: int) -> str:
        if not self.key:
            key = path
        elif not self.path or path.startswith(self.path + "."):
            key = f"{self.key}.{path[len(self.path) + 1 :] if self.path else path}"
        else:
            key = f"{self.key}>{path}"
        return f"{key}#{count}" if count else key

    def function_key(self, index: int, name: str) -> str:
        """Return the key of function `index` called directly inside this module call."""
        return f"{self.key}/{name}@{index}" if self.key else f"{name}@{index}"


class _State(threading.local):
    scope: Scope | None = None
    paused = False
    resumed = False  # what runs was run before and is computed again

    def __init__(self) -> None:
        self.root = Scope("", "")  # each thread counts its own calls


def is_unit_by_default(module: nn.Module) -> bool:
    """Whether a module has no inside worth a look: leaves, and what computes its own weights."""
    return (
        next(module.children(), None) is None
        or isinstance(module, nn.MultiheadAttention)
        or hasattr(module, "parametrizations")
        or _private.is_compiled(module)
    )


class _Wrapper(functools.partial[Any]):
    """A module's forward while it is seen; a copy of it would run the module it was made for."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled with the module."""
        raise InputError(
            "a placed model cannot be copied or pickled: restore() it first, or take its state_dict"
        )

    @property
    def __globals__(self) -> Any:
        """Refuse to be scripted: torch.jit.script looks here first."""
        raise AttributeError("torch.jit.script cannot take a placed model: restore() it first")


class _Resumed:
    """A function that is run again in the backward, as it was run in the forward."""

    def __init__(
        self, by: Interceptor, function: Callable[..., Any], scope: Scope, runs_now: bool
    ) -> None:
        self._by = by
        self._function = function
        self._scope = scope
        self._mark = scope.mark()
        self._runs_now = runs_now  # the next call is still that of the forward

    def begins(self) -> None:
        """Take note of where the forward is."""
        self._mark = self._scope.mark()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        if self._runs_now:
            self._runs_now = False
            self._mark = self._scope.mark()
            return self._function(*args, **kwargs)
        return self._by.resume(self._scope, self._mark, self._function, args, kwargs)


def _own_thread(module: nn.Module, forward: Any, running: threading.RLock) -> Callable[..., Any]:
    thread = threading.get_ident()

    @functools.wraps(forward)
    def run_or_wait(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            return forward(*args, **kwargs)
        with running:
            pass
        return module.forward(*args, **kwargs)

    return run_or_wait


class Interceptor(TorchFunctionMode):
    """Calls run_root, run_unit and run_function for what the model does; subclasses decide."""

    sees_entries = False  # whether `entered` and `left` are called

    def __init__(self, model: nn.Module, is_unit: Callable[[str, nn.Module], bool]) -> None:
        super().__init__()
        self.model = model
        self._is_unit = is_unit
        self._state = _State()
        self._wrapped: list[tuple[nn.Module, Any, Any]] = []  # own forward before, forward

    @property
    def root(self) -> Scope:
        """The call of the model as a whole."""
        return self._state.root

    def check_free(self) -> None:
        """Raise InputError if the model has wrappers already."""
        if any(isinstance(m.__dict__.get("forward"), _Wrapper) for m in self.model.modules()):
            raise InputError("the model is placed already: restore() it first")

    def install(self) -> None:
        """Put the wrappers in place."""
        self.check_free()
        _private.autograd_calls.begin(self)
        units: list[str] = []
        for path, module in self.model.named_modules():
            if units and path.startswith(units[-1] + "."):
                continue
            if getattr(module.forward, "__func__", None) is nn.Module.forward:
                continue  # a container that is never called
            if units == [""]:
                break
            unit = self._is_unit(path, module)
            if unit:
                units.append(path)
            before = module.__dict__.get("forward")
            wrap = self._wrap_unit if unit else self._wrap_interior
            forward = module.forward
            call = wrap(path, module, forward)
            if not path or _private.compiled_in_place(module):
                call = _private.not_compiled(call)
            wrapper = functools.update_wrapper(_Wrapper(call), forward)
            module.__dict__["forward"] = wrapper
            self._wrapped.append((module, before, forward))

    def remove(self) -> None:
        """Take the wrappers away; the modules are as before `install`."""
        _private.autograd_calls.end(self)
        for module, before, _ in reversed(self._wrapped):
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before
        self._wrapped.clear()

    @contextlib.contextmanager
    def set_aside(self, running: threading.RLock) -> Iterator[None]:
        """Let the modules run as if nothing were installed, in this thread.

        Args:
            running: Held by this thread. Others that call a module wait for it, then call again.

        """
        wrappers = [module.__dict__["forward"] for module, _, _ in self._wrapped]  # or the user's
        _private.autograd_calls.end(self)
        for module, _, forward in self._wrapped:
            module.__dict__["forward"] = _own_thread(module, forward, running)
        try:
            yield
        finally:
            for (module, _, _), wrapper in zip(self._wrapped, wrappers, strict=True):
                module.__dict__["forward"] = wrapper
            _private.autograd_calls.begin(self)

    # What subclasses decide. In all but run_function the mode is on unless said otherwise.

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the whole model."""
        return forward(*args, **kwargs)

    def entered(self, scope: Scope, args: Any, kwargs: Any) -> None:
        """Take note of the call of a module that is no unit."""

    def left(self, scope: Scope, out: Any) -> None:
        """Take note of what a module that is no unit returns."""

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a unit; the mode is off."""
        raise NotImplementedError

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a torch function; the mode is off."""
        raise NotImplementedError

    def _wrap_unit(self, path: str, module: nn.Module, forward: Callable[..., Any]) -> Any:
        state = self._state

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            around = state.scope
            if around is None:
                return self._outside(path, wrapped, args, kwargs)
            if state.paused:
                return forward(*args, **kwargs)
            scope = around.call(path) if path else self.root
            mode = _private.pop_function_mode()
            if mode is self:
                try:
                    return self.run_unit(scope, module, forward, args, kwargs)
                finally:
                    _private.push_function_mode(mode)
            _private.push_function_mode(mode)
            state.paused = True  # another mode is on top: it goes on seeing what happens
            try:
                return self.run_unit(scope, module, forward, args, kwargs)
            finally:
                state.paused = False

        return wrapped

    def _wrap_interior(self, path: str, _: nn.Module, forward: Callable[..., Any]) -> Any:
        state = self._state

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            around = state.scope
            if around is None:
                return self._outside(path, wrapped if path else forward, args, kwargs)
            if state.paused:
                return forward(*args, **kwargs)
            state.scope = scope = around.call(path)
            try:
                if not self.sees_entries:
                    return forward(*args, **kwargs)
                self.entered(scope, args, kwargs)
                out = forward(*args, **kwargs)
                self.left(scope, out)
                return out
            finally:
                state.scope = around

        return wrapped

    def _outside(self, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run what was called while the model as a whole is not running.

        The model itself, or one of its modules: that one counts as called for the first time.
        """
        self.root.begin()
        scope = self.root
        prefix = ""
        for name in path.split(".")[:-1]:
            prefix = f"{prefix}.{name}" if prefix else name
            known = scope.children.get((prefix, 0))
            if known is not None:
                known.begin()
                scope = known
        return self.session(scope, self._start(path, forward), args, kwargs)

    def _start(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        if path:
            return self.part(forward)
        return lambda *args, **kwargs: self.run_root(forward, args, kwargs)

    def part(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a part of the model while the model as a whole is not running."""
        return forward

    # Activations that are computed again in the backward

    def resumed_later(self, function: Callable[..., Any], *, runs_now: bool) -> Callable[..., Any]:
        """Return what to keep in the place of a function that will run again in the backward."""
        state = self._state
        if state.scope is None or state.paused:
            return function
        return _Resumed(self, function, state.scope, runs_now)

    def resume(
        self, scope: Scope, mark: Any, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a function again, seen and counted as it was when `scope` was at `mark`."""
        if not self._wrapped:
            return function(*args, **kwargs)
        state = self._state
        before = scope.mark()
        scope.go_back(mark)
        was = state.scope, state.paused, state.resumed
        state.scope, state.paused, state.resumed = scope, False, True
        try:
            with contextlib.nullcontext() if _private.is_seeing(self) else self:
                return self.part(function)(*args, **kwargs)
        finally:
            state.scope, state.paused, state.resumed = was
            scope.go_back(before)

    def session(self, scope: Scope, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run `call` inside `scope` with the mode on."""
        state = self._state
        state.scope = scope
        try:
            with self:
                return call(*args, **kwargs)
        finally:
            state.scope = None

    def applied(self, cls: type, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Hand the call of an autograd function to run_function: its inside is not looked at."""
        state = self._state
        scope = state.scope
        if scope is None or state.paused:
            return call(*args, **kwargs)
        index = scope.functions
        scope.functions = index + 1
        mode = _private.pop_function_mode()
        try:
            return self.run_function(scope, index, cls.__name__, call, args, kwargs)
        finally:
            _private.push_function_mode(mode)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Hand a torch function to run_function, unless it only looks at a tensor."""
        state = self._state
        scope = state.scope
        name = getattr(func, "__name__", "")
        if scope is None or state.paused or name in OBSERVERS:
            return func(*args, **(kwargs or {}))
        if state.resumed and name == "detach" and _private.called_by_checkpoint():
            return func(*args, **(kwargs or {}))  # of what is kept: not so in the forward
        index = scope.functions
        scope.functions = index + 1
        return self.run_function(scope, index, name, func, args, kwargs or {})
