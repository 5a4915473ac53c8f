# SPDX-License-Identifier: Apache-2.0
"""Every private name of PyTorch that baechi.torch uses, in one place, and a test of each."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import traceback
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint as checkpointing
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

FIRST_TESTED = (2, 9)
LAST_TESTED = (2, 13)

pop_function_mode = torch._C._pop_torch_function_stack
push_function_mode = torch._C._push_on_torch_function_stack
current_autograd_node = torch._C._current_autograd_node
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


def eager(model: nn.Module) -> Any:
    """Return a context in which compiled modules inside run their own code."""
    inside = any(is_compiled(module) or compiled_in_place(module) for module in model.modules())
    return torch.compiler.set_stance("force_eager") if inside else contextlib.nullcontext()


def next_sequence_number() -> int:
    """Return the number that the next autograd node of this thread gets."""
    return int(torch.autograd._get_sequence_nr())


def sequence_number(node: Any) -> int:
    """Return when an autograd node was made: they count up, but for the accumulation of leaves."""
    return int(node._sequence_nr())


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

    def _end(self, who: int) -> None:
        self._who.pop(who, None)
        if not self._who and getattr(self._taken, "here", False):
            torch._C._set_multithreading_enabled(True)
            self._taken.here = False


one_backward_thread = OneBackwardThread()


class AutogradCalls:
    """While anybody wants it: sees what autograd does with functions of Python.

    `torch.utils.checkpoint` keeps a function for the backward; what `resumed_later` returns is kept
    in its place, and is told by `begins` when the function is about to run in the forward. The call
    of an autograd function, which no function mode sees, is handed to `applied`.
    """

    def __init__(self) -> None:
        self._who: dict[int, weakref.ref[Any]] = {}
        self._before: tuple[Any, Any, Any] | None = None

    def begin(self, who: Any) -> None:
        """Let `who`, a function mode, see them until `end` or the end of `who`."""
        key = id(who)
        self._who[key] = weakref.ref(who, lambda _: self._forget(key))
        if self._before is not None:
            return
        module, function = checkpointing, checkpointing.CheckpointFunction
        generator, forward = module._checkpoint_without_reentrant_generator, function.forward
        apply = torch.autograd.Function.__dict__["apply"]
        self._before = generator, forward, apply

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

        def with_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            call = apply.__get__(None, cls)
            who = None if cls.__module__.startswith("torch.") else self._seeing()
            return call(*args, **kwargs) if who is None else who.applied(cls, call, args, kwargs)

        module._checkpoint_without_reentrant_generator = with_generator
        function.forward = staticmethod(with_forward)
        torch.autograd.Function.apply = classmethod(with_apply)

    def _seeing(self) -> Any:
        """Return who sees what runs in this thread now."""
        modes = _get_current_function_mode_stack()
        return modes[-1] if modes and id(modes[-1]) in self._who else None

    def _resumed(self, function: Any, *, runs_now: bool) -> Any:
        who = self._seeing()
        return function if who is None else who.resumed_later(function, runs_now=runs_now)

    def end(self, who: Any) -> None:
        """Let `who` see no more."""
        self._forget(id(who))

    def _forget(self, key: int) -> None:
        self._who.pop(key, None)
        if self._before is not None and not self._who:
            generator, forward, apply = self._before
            checkpointing._checkpoint_without_reentrant_generator = generator
            checkpointing.CheckpointFunction.forward = staticmethod(forward)
            torch.autograd.Function.apply = apply
            self._before = None


autograd_calls = AutogradCalls()


def called_by_checkpoint() -> bool:
    """Whether the torch function that a mode is handed was called by a checkpoint itself."""
    return sys._getframe(2).f_globals is vars(checkpointing)


def is_seeing(mode: TorchFunctionMode) -> bool:
    """Whether a function mode is on in this thread."""
    return mode in _get_current_function_mode_stack()


def has_global_module_hooks() -> bool:
    """Whether there are hooks that run at every call of every module."""
    return bool(nn.modules.module._has_any_global_hook())


def storage_address(tensor: torch.Tensor) -> int:
    """Return what identifies the storage of a tensor while the storage lives."""
    return int(tensor.untyped_storage()._cdata)


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def only_autograd_holds(tensor: torch.Tensor) -> bool:
    """Whether an argument of an operator that the engine calls is held by nothing else.

    Then the engine would have added to it in place, were it not watched by a dispatch mode.
    """
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._base is None and tensor._use_count() <= 4 and storage <= 2


def without_python(call: Any) -> Any:
    """Return an aten operator without the Python around it, anything else as it is."""
    return getattr(call, "_op", call) if isinstance(call, torch._ops.OpOverload) else call


def flop_formulas() -> dict[Any, Any]:
    """Return the functions that count the FLOPs of an aten operator, by overload packet."""
    return flop_counter.flop_registry


def refresh_flat_weights(module: nn.Module) -> None:
    """Make a recurrent module see parameters that were replaced by others."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


def moves_in_place(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether `tensor.data` may be replaced by one that lives on `device`."""
    other = torch.empty(0, dtype=tensor.dtype, device=device)
    return bool(torch._has_compatible_shallow_copy_type(tensor, other))


def work_for(device: torch.device, seconds: float) -> Callable[[], None]:
    """Return what keeps the current stream of an accelerator busy for about so long."""
    module = getattr(torch, device.type)
    if hasattr(module, "work"):  # simulated devices

        def work() -> None:
            module.work(seconds, device)

    elif hasattr(module, "_sleep"):  # in cycles of a clock of 1 to 2 GHz

        def work() -> None:
            with module.device(device):
                module._sleep(round(2e9 * seconds))

    else:  # bytes that take so long at 1 TB/s
        idle = torch.empty(round(1e12 * seconds), dtype=torch.uint8, device=device)

        def work() -> None:
            idle.zero_()

    return work


def annotate(name: str, value: str) -> Any:
    """Return a context in which every call that is traced gets `value` in its node's metadata."""
    known = getattr(traceback, "annotate", None)
    return contextlib.nullcontext() if known is None else known({name: value})


@contextlib.contextmanager
def no_tracing() -> Iterator[None]:
    """Compute for real in the middle of a trace."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


@contextlib.contextmanager
def nothing_hidden(error: type[Exception]) -> Iterator[None]:
    """Raise `error` in this thread where a trace would follow what it then forgets."""
    thread = threading.get_ident()
    function, hooks = torch.autograd.Function, torch.autograd.graph.saved_tensors_hooks
    apply, enter = function.__dict__["apply"], hooks.__enter__

    def refuse_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        generated = cls.__name__.startswith("GeneratedBackwardFor_")  # of a custom operator
        if threading.get_ident() == thread and not generated:
            raise error(f"{cls.__name__} has a backward of its own")
        return apply.__get__(None, cls)(*args, **kwargs)

    def refuse_hooks(self: Any) -> None:
        if threading.get_ident() == thread:
            raise error("it has hooks on saved tensors, as activation checkpointing has")
        enter(self)

    function.apply = classmethod(refuse_apply)
    hooks.__enter__ = refuse_hooks
    try:
        yield
    finally:
        function.apply = apply
        hooks.__enter__ = enter


def export_program(module: nn.Module, args: Any, dynamic_shapes: Any) -> Any:
    """Return torch.export's program; the calls keep what they were annotated with."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        # What fails is said by the error; the graph up to there would be printed.
        with traceback.preserve_node_meta(), contextlib.redirect_stderr(io.StringIO()):
            return torch.export.export(module, args, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        logger.setLevel(level)


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


def _adds_in_place(function: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
    """Return what is believed of every sum that the engine takes of gradients."""
    seen: list[bool] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.add.Tensor and current_autograd_node() is not None:
                seen.append(any(map(only_autograd_holds, args)))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True) * 2
    with Watch():
        function(x).backward()
    return seen


class _Annotated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add a number that is computed while tracing."""
        with no_tracing():
            number = torch.ones(()).item()
        with annotate("baechi", "here"):
            return x + number


def _wrong_in_tracing() -> list[str]:
    wrong = []
    auto = torch.export.Dim.AUTO
    program = export_program(_Annotated(), (torch.ones(3),), {"x": {0: auto}})
    call = next(n for n in program.graph.nodes if n.op == "call_function" and "add" in n.name)
    if call.meta.get("custom", {}).get("baechi") != "here" or call.args[1] != 1.0:
        wrong.append("traced calls cannot be annotated")
    size = next(n for n in program.graph.nodes if n.op == "placeholder").meta["val"].shape[0]
    if range_of(program, size)[1] < 1 << 40:
        wrong.append("the range of a traced size is unknown")

    class Twice(torch.autograd.Function):
        """A function with a backward of its own."""

    try:
        with nothing_hidden(KeyError):
            Twice.apply(torch.ones(1))
    except KeyError:
        return wrong
    return [*wrong, "functions with a backward of their own are not noticed"]


def _wrong_in_autograd_calls() -> list[str]:
    class Who(TorchFunctionMode):
        seen = 0

        def resumed_later(self, function: Any, *, runs_now: bool) -> Any:
            self.seen += 1 + runs_now
            return self if not runs_now else function

        def begins(self) -> None:
            self.seen += 3

        def applied(self, cls: Any, call: Any, args: Any, kwargs: Any) -> Any:
            del cls, call, kwargs
            self.seen += 6
            return args

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    class Own(torch.autograd.Function):
        """A function with a backward of its own."""

    who = Who()
    autograd_calls.begin(who)
    with who:
        for reentrant in (False, True):
            x = torch.ones(2, requires_grad=True)
            checkpointing.checkpoint(torch.sin, x, use_reentrant=reentrant)
        Own.apply(x)
    autograd_calls.end(who)
    return [] if who.seen == 12 else ["functions of autograd are not seen"]


def self_test() -> list[str]:
    """Return what is not as expected in the PyTorch that is installed; empty when all is."""
    wrong = []

    class Counter(TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    counter = Counter()
    weight = torch.ones(2, requires_grad=True)
    with counter:
        mode = pop_function_mode()
        weight.add(1)
        push_function_mode(mode)
        if mode is not counter or counter.calls != 0:
            wrong.append("a function mode taken off the stack still sees calls")
        before = next_sequence_number()
        product = weight.mul(2)
        if counter.calls != 1:
            wrong.append("a function mode put back on the stack sees no calls")
    if sequence_number(product.grad_fn) != before:
        wrong.append("autograd nodes are numbered otherwise")
    seen: list[Any] = []
    product.register_hook(lambda _: seen.append(current_autograd_node()))
    product.sum().backward()
    if not seen or not hasattr(seen[0], "_sequence_nr"):
        wrong.append("the running autograd node is unknown")
    if storage_address(product) != storage_address(product.view(2, 1)):
        wrong.append("a view has another storage")
    if _adds_in_place(lambda x: (x * 3 + x * 4).sum()) != [True]:
        wrong.append("a gradient that only autograd holds is not known as such")
    if _adds_in_place(lambda x: (x + (x + 1)).sum()) != [False]:
        wrong.append("a gradient that is used twice is not known as such")
    order: list[str] = []
    early = weight * 2
    late = weight * 3
    early.register_hook(lambda _: order.append("early"))
    late.register_hook(lambda _: order.append("late"))
    run_first(early.grad_fn)
    (early + late).sum().backward()
    if order != ["early", "late"]:
        wrong.append("an autograd node cannot be made to run first")
    one_backward_thread.begin(counter)
    if torch._C._is_multithreading_enabled():
        wrong.append("the backward cannot be kept in one thread")
    one_backward_thread.end(counter)
    version = version_of(weight.detach())
    with torch.no_grad():
        weight.add_(1)
    if version_of(weight) != version + 1:
        wrong.append("in-place changes are not counted")
    if torch.ops.aten.mm not in flop_formulas():
        wrong.append("the FLOPs of a matrix product are unknown")
    cell = nn.LSTM(2, 2)
    cell.weight_ih_l0 = nn.Parameter(torch.zeros_like(cell.weight_ih_l0))
    refresh_flat_weights(cell)
    if cell._flat_weights[0] is not cell.weight_ih_l0:
        wrong.append("recurrent modules keep their weights elsewhere")
    wrong += _wrong_in_tracing()
    wrong += _wrong_in_autograd_calls()
    if not moves_in_place(weight, torch.device("cpu")):
        wrong.append("parameters cannot be moved in place")
    return wrong
