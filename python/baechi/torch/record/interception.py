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

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from baechi._core import InputError
from baechi.torch.base import _private, _private_autograd, _private_compile
from baechi.torch.base.function_rules import READERS, VIEWS, only_looks
from baechi.torch.base.nested import tensors_in
from baechi.torch.record.scopes import Scope
from baechi.torch.record.wrapped_forward import WrappedForward, of_own_thread


class _State(threading.local):
    scope: Scope | None = None
    paused = False
    inside = False  # a unit or a function runs: what it calls is a part of it
    resumed = False  # what runs was run before and is computed again

    def __init__(self) -> None:
        self.root = Scope("", "")  # each thread counts its own calls


def _runs_its_parts(unit: nn.Module) -> bool:
    """Whether a unit calls the modules inside it as Python does: compiled ones do not."""
    compiled = _private_compile.is_compiled(unit) or _private_compile.compiled_in_place(unit)
    return not compiled and not isinstance(unit, torch.jit.ScriptModule)


def _has_its_inputs(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether what a module is given is where its weights are: not what a caller has elsewhere."""
    weight = next(module.parameters(), None)
    return weight is None or all(t.device == weight.device for t in tensors_in((args, kwargs)))


def _is_own(weight: torch.Tensor | None) -> bool:
    """Whether it is a weight, not what `torch.func.functional_call` put in the place of one."""
    return weight is None or isinstance(weight, nn.Parameter)


def as_compiled(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a module that torch.compile returned runs so, if it may.

    PyTorch's compiler takes our waiting for nothing, so it must not see what intercepts calls.
    """
    if not _private_compile.is_compiled(module) or _private.seen_by(__package__.partition(".")[0]):
        return contextlib.nullcontext()
    return _private_compile.compiling()


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


class Interceptor(TorchFunctionMode):
    """Calls run_root, run_unit and run_function for what the model does; subclasses decide."""

    sees_entries = False  # whether `entered` and `left` are called
    sees_parts = False  # whether modules inside units are seen where they are called alone

    def __init__(self, model: nn.Module, is_unit: Callable[[str, nn.Module], bool]) -> None:
        super().__init__()
        self.model = model
        self._is_unit = is_unit
        self._state = _State()
        self._parts: set[str] = set()  # the paths of modules inside units, where these are seen
        self._wrapped: list[tuple[nn.Module, Any, Any]] = []  # own forward before, forward

    @property
    def root(self) -> Scope:
        """The call of the model as a whole."""
        return self._state.root

    @property
    def is_running(self) -> bool:
        """Whether a call of the model, or of a part of it, goes on in this thread."""
        return self._state.scope is not None

    def is_part(self, path: str) -> bool:
        """Whether a module is inside a unit, and seen where it is called alone."""
        return path in self._parts

    def check_free(self) -> None:
        """Raise InputError if the model has wrappers already."""
        for path, module in self.model.named_modules():
            if isinstance(module.__dict__.get("forward"), WrappedForward):
                raise InputError(
                    f"{path!r} is part of a model that is placed already: restore() that first, or "
                    "place one module that holds both models"
                    if path
                    else "the model is placed already: restore() it first"
                )

    def install(self) -> None:
        """Put the wrappers in place."""
        self.check_free()
        _private_autograd.autograd_calls.begin(self)
        unit: tuple[str, nn.Module] | None = None  # the last one: what is inside comes behind it
        compiles = any(map(_private_compile.is_compiled, self.model.modules()))
        closed = ""  # the last part that torch.compile returned: it is not to find wrappers
        for path, module in self.model.named_modules():
            if unit is not None and unit[0] and not path.startswith(unit[0] + "."):
                unit = None
            inside = unit is not None
            if unit is not None and not (self.sees_parts and _runs_its_parts(unit[1])):
                continue
            if closed and path.startswith(closed + "."):
                continue
            closed = path if inside and _private_compile.is_compiled(module) else ""
            if getattr(module.forward, "__func__", None) is nn.Module.forward:
                continue  # a container that is never called
            wrap = self._wrap_part if inside else self._wrap_interior
            if inside:
                self._parts.add(path)
            if not inside and self._is_unit(path, module):
                unit, wrap = (path, module), self._wrap_unit
            before = module.__dict__.get("forward")
            forward = module.forward
            call = wrap(path, module, forward)
            if not path or compiles or _private_compile.compiled_in_place(module):
                call = _private_compile.not_compiled(call)
            wrapper = functools.update_wrapper(WrappedForward(call), forward)
            module.__dict__["forward"] = wrapper
            self._wrapped.append((module, before, forward))

    def remove(self) -> None:
        """Take the wrappers away; the modules are as before `install`."""
        _private_autograd.autograd_calls.end(self)
        for module, before, _ in reversed(self._wrapped):
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before
        self._wrapped.clear()
        self._parts.clear()

    @contextlib.contextmanager
    def set_aside(self, running: threading.RLock) -> Iterator[None]:
        """Let the modules run as if nothing were installed, in this thread.

        Args:
            running: Held by this thread. Others that call a module wait for it, then call again.

        """
        wrappers = [module.__dict__["forward"] for module, _, _ in self._wrapped]  # or the user's
        _private_autograd.autograd_calls.end(self)
        for module, _, forward in self._wrapped:
            module.__dict__["forward"] = of_own_thread(module, forward, running)
        try:
            yield
        finally:
            for (module, _, _), wrapper in zip(self._wrapped, wrappers, strict=True):
                module.__dict__["forward"] = wrapper
            _private_autograd.autograd_calls.begin(self)

    # What subclasses decide. In all but run_function the mode is on unless said otherwise.

    def run_call(self, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        """Run what was called while the model as a whole is not running; the mode is off.

        Args:
            path: Of the module; empty for the model.
            run: Runs it, seen.
            args: Of the call.
            kwargs: Of the call.

        """
        return run(*args, **kwargs)

    def sees_calls(self) -> bool:
        """Whether what this thread calls from outside is seen; else it runs as before `install`."""
        return True

    def run_again(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function that ran in a forward once more, in the backward."""
        return run(*args, **kwargs)

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
        opened = self._wrap_interior(path, module, forward)
        holders = [part for part in module.modules() if part._parameters] if path else []

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            around = state.scope
            if around is None and self.sees_calls():
                return self._outside(path, wrapped, args, kwargs)
            if around is None or state.paused or state.inside:
                return forward(*args, **kwargs)
            foreign = any(not _is_own(w) for part in holders for w in part._parameters.values())
            if foreign and self.opens(path):
                return opened(*args, **kwargs)  # its weights come from elsewhere, maybe abroad
            return self._as_unit(path, module, forward, args, kwargs)

        return wrapped

    def _as_unit(
        self, path: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        state = self._state
        scope = state.scope.call(path) if path and state.scope is not None else self.root
        mode = _private.pop_function_mode()
        if mode is self:
            state.inside = True
            try:
                return self.run_unit(scope, module, forward, args, kwargs)
            finally:
                state.inside = False
                _private.push_function_mode(mode)
        _private.push_function_mode(mode)
        state.paused = True  # another mode is on top: it goes on seeing what happens
        try:
            return self.run_unit(scope, module, forward, args, kwargs)
        finally:
            state.paused = False

    def _wrap_part(self, path: str, module: nn.Module, forward: Callable[..., Any]) -> Any:
        """Wrap a module inside a unit: it is one itself where it is called alone."""
        state = self._state
        compiled = _private_compile.is_compiled(module)

        def alone(*args: Any, **kwargs: Any) -> Any:
            return self._as_unit(path, module, forward, args, kwargs)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            in_backward = _private_autograd.current_autograd_node() is not None
            again = in_backward and _has_its_inputs(module, args, kwargs)
            if state.scope is not None or again or not self.sees_calls():
                if not compiled:
                    return forward(*args, **kwargs)
                with as_compiled(module):
                    return forward(*args, **kwargs)
            return self._outside(path, alone, args, kwargs)

        return wrapped

    def _wrap_interior(self, path: str, _: nn.Module, forward: Callable[..., Any]) -> Any:
        state = self._state

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            around = state.scope
            if around is None and self.sees_calls():
                return self._outside(path, wrapped if path else forward, args, kwargs)
            if around is None or state.paused or state.inside:
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
        run = functools.partial(self._run_seen, path, forward)
        return self.run_call(path, run, args, kwargs)

    def _run_seen(
        self, path: str, forward: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the model, or one of its modules: that one counts as called for the first time."""
        self.root.begin()
        scope = self.root
        prefix = ""
        for name in path.split(".")[:-1]:
            prefix = f"{prefix}.{name}" if prefix else name
            known = scope.children.get((prefix, 0))
            if known is not None:
                known.begin()
                scope = known
        if path:
            return self.session(scope, forward, args, kwargs)
        return self.session(scope, self.run_root, (forward, args, kwargs), {})

    def opens(self, path: str) -> bool:  # noqa: ARG002
        """Whether a unit that was given other weights runs function by function."""
        return True

    def hooked(self, tensor: torch.Tensor, hook: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return what to keep in the place of a hook on the gradient of a tensor."""
        return hook

    def viewed(self, tensor: torch.Tensor, view: torch.Tensor) -> None:
        """Take note of an attribute of a tensor that is a view of it, such as `x.T`."""

    def read_aside(self, tensor: torch.Tensor) -> None:
        """Take note that the values of a tensor are read by what is no operator."""

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
        run = functools.partial(self._run_seen_again, scope, mark, function)
        return self.run_again(run, args, kwargs)

    def _run_seen_again(
        self, scope: Scope, mark: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        state = self._state
        before = scope.mark()
        scope.go_back(mark)
        was = state.scope, state.paused, state.inside, state.resumed
        state.scope, state.paused, state.inside, state.resumed = scope, False, False, True
        try:
            with contextlib.nullcontext() if _private.is_seeing(self) else self:
                return function(*args, **kwargs)
        finally:
            state.scope, state.paused, state.inside, state.resumed = was
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
        return self._as_function(cls.__name__, call, args, kwargs)

    def passed_by(self, cls: type) -> None:
        """Refuse the call of an autograd function that is not seen, where it would have to be.

        Raises:
            InputError: It is called by what was `cls.apply` before; so it is since PyTorch 2.14.

        """
        state = self._state
        if state.scope is None or state.paused or state.inside:
            return
        name, where = cls.__name__, state.scope.path or "the model"
        raise InputError(
            f"{where} calls {name}.apply by another name (`f = {name}.apply`), which PyTorch "
            f"{torch.__version__} hides: call {name}.apply itself"
        )

    def scripted(self, script: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Hand the call of a function of TorchScript to run_function."""
        # By its bare name it could be taken for a function of PyTorch's.
        return self._as_function(f"{script.name}.torchscript", call, args, kwargs)

    def transformed(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Hand the call of a function of `torch.func`, and all that it calls, to run_function."""
        state = self._state

        def paused(*args: Any, **kwargs: Any) -> Any:
            before, state.paused = state.paused, True
            try:
                return call(*args, **kwargs)
            finally:
                state.paused = before

        return self._as_function(call.__name__.removesuffix("_impl"), paused, args, kwargs)

    def _as_function(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        state = self._state
        scope = state.scope
        if scope is None or state.paused or state.inside:
            return call(*args, **kwargs)
        index = scope.functions
        scope.functions = index + 1
        mode = _private.pop_function_mode()
        state.inside = True
        try:
            return self.run_function(scope, index, name, call, args, kwargs)
        finally:
            state.inside = False
            _private.push_function_mode(mode)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Hand a torch function to run_function, unless it only looks at a tensor."""
        state = self._state
        scope = state.scope
        name = getattr(func, "__name__", "")
        if scope is None or state.paused or only_looks(name, args, kwargs or {}):
            if name in READERS and scope is not None and not state.paused:
                self.read_aside(args[0])
            if name == "register_hook" and scope is not None and len(args) == 2:
                args = (args[0], self.hooked(*args))
            found = func(*args, **(kwargs or {}))
            if name == "__get__" and getattr(func.__self__, "__name__", "") in VIEWS and scope:
                self.viewed(args[0], found)
            return found
        if state.resumed and name == "detach" and _private_autograd.called_by_checkpoint():
            return func(*args, **(kwargs or {}))  # of what is kept: not so in the forward
        index = scope.functions
        scope.functions = index + 1
        return self.run_function(scope, index, name, func, args, kwargs or {})
