# SPDX-License-Identifier: Apache-2.0
"""Every private name of PyTorch that baechi.torch uses, in one place; `versions` tests each."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._functorch import apis as transforms
from torch._functorch import eager_transforms
from torch.fx import traceback
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint as checkpointing
from torch.utils import flop_counter


def version() -> tuple[int, ...]:
    """Return PyTorch's version, major and minor."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


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


def seen_by(package: str) -> bool:
    """Whether function modes of a package see the calls of this thread."""
    modes = _get_current_function_mode_stack()
    return any(type(mode).__module__.partition(".")[0] == package for mode in modes)


def follower() -> str | None:
    """Return what turns the calls of this thread into something else; None where nothing does."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func"
    modes = torch._C._TorchDispatchModeKey
    if any(torch._C._get_dispatch_mode(mode) is not None for mode in (modes.FAKE, modes.PROXY)):
        return "torch.export"
    return None


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for several, or for a derivative, inside a function of torch.func."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


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


class on_stream:  # noqa: N801
    """Makes a stream the current one of its device, and that device the current one.

    PyTorch's streams are such contexts themselves, but keep what was before in the stream: 2.9
    cannot enter one that is entered already, and threads find what another thread left.
    """

    __slots__ = ("_before", "_device", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream
        self._device = torch._C._accelerator_getDeviceIndex()
        self._before = torch._C._accelerator_getStream(stream.device_index)
        torch._C._accelerator_setStream(stream)

    def __exit__(self, *_: object) -> None:
        torch._C._accelerator_setStream(self._before)
        torch._C._accelerator_setDeviceIndex(self._device)


def out_of_memory(error: BaseException) -> bool:
    """Whether a device had too little memory; what CUDA's libraries say has no class of its own."""
    said = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)


_CHECKPOINT = "_checkpoint_without_reentrant_generator"
if hasattr(checkpointing, f"{_CHECKPOINT}_impl"):  # 2.14 and 2.15 have it, 2.13 does not
    _CHECKPOINT += "_impl"


# What the functions of `torch.func` call, whoever has imported these, and where it is looked up.
_TRANSFORMS = {
    "vmap_impl": transforms,
    "grad_and_value_impl": eager_transforms,
    "_vjp_with_argnums": eager_transforms,
}


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


class AutogradCalls:
    """While anybody wants it: sees what autograd does with functions of Python.

    `torch.utils.checkpoint` keeps a function for the backward; what `resumed_later` returns is kept
    in its place, and is told by `begins` when the function is about to run in the forward. The call
    of an autograd function, which no function mode sees, is handed to `applied`, what a function of
    `torch.func` calls to `transformed`.
    """

    def __init__(self) -> None:
        self._who: dict[int, weakref.ref[Any]] = {}
        self._before: tuple[Any, Any, Any, dict[str, Any]] | None = None

    def begin(self, who: Any) -> None:
        """Let `who`, a function mode, see them until `end` or the end of `who`."""
        key = id(who)
        self._who[key] = weakref.ref(who, lambda _: self._forget(key))
        if self._before is not None:
            return
        module, function = checkpointing, checkpointing.CheckpointFunction
        generator, forward = getattr(module, _CHECKPOINT), function.forward
        apply = torch.autograd.Function.__dict__["apply"]
        impls = {name: getattr(of, name) for name, of in _TRANSFORMS.items()}
        self._before = generator, forward, apply, impls

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

        setattr(module, _CHECKPOINT, with_generator)
        function.forward = staticmethod(with_forward)
        for name, run in impls.items():
            setattr(_TRANSFORMS[name], name, functools.partial(self._transform, run))
        torch.autograd.Function.apply = classmethod(with_apply)

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

    def end(self, who: Any) -> None:
        """Let `who` see no more."""
        self._forget(id(who))

    def _forget(self, key: int) -> None:
        self._who.pop(key, None)
        if self._before is not None and not self._who:
            generator, forward, apply, impls = self._before
            for name, run in impls.items():
                setattr(_TRANSFORMS[name], name, run)
            setattr(checkpointing, _CHECKPOINT, generator)
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


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """Return how many refer to a tensor, and to its storage; all of Python's count as one."""
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count(), storage - 1  # which Python has just been given


current_backward = torch._C._current_graph_task_id  # its number; negative where none runs


def call_after_backward(call: Callable[[], None]) -> None:
    """Have `call` run when the backward that runs is over, if it does not fail."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def without_python(call: Any) -> Any:
    """Return an aten operator without the Python around it, anything else as it is."""
    return getattr(call, "_op", call) if isinstance(call, torch._ops.OpOverload) else call


def as_its_parts(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an aten operator that is the same calls of others on every device."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


class MemoryInside:
    """What runs in a ``with`` block had this much more memory of a device than before and after.

    The device's statistics of peaks begin anew. Where its allocator has none, nothing is seen.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device.index
        self._statistics = getattr(torch._C, "_accelerator_getDeviceStats", None)
        self._before = 0
        self.bytes = 0

    def __enter__(self) -> MemoryInside:
        if self._statistics is None:
            return self
        try:
            torch._C._accelerator_resetPeakStats(self._device)
            self._before = self._statistics(self._device)["allocated_bytes"]["all"]["current"]
        except RuntimeError:  # an allocator of the user's
            self._statistics = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._statistics is not None:
            found = self._statistics(self._device)["allocated_bytes"]["all"]
            self.bytes = found["peak"] - max(found["current"], self._before)


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


@contextlib.contextmanager
def nothing_hidden(error: type[Exception]) -> Iterator[None]:
    """Raise `error` in this thread where a trace would follow what it then forgets."""
    thread = threading.get_ident()
    function, hooks = torch.autograd.Function, torch.autograd.graph.saved_tensors_hooks
    apply, enter = function.__dict__["apply"], hooks.__enter__
    recomputed = "it has hooks on saved tensors, as activation checkpointing has"

    def refuse_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        generated = cls.__name__.startswith("GeneratedBackwardFor_")  # of a custom operator
        if threading.get_ident() == thread and cls.__name__ == "_NoopSaveInputs":
            raise error(recomputed)  # PyTorch 2.9 begins a checkpoint with it
        if threading.get_ident() == thread and not generated:
            raise error(f"{cls.__name__} has a backward of its own")
        return apply.__get__(None, cls)(*args, **kwargs)

    def refuse_hooks(self: Any) -> None:
        if threading.get_ident() == thread:
            raise error(recomputed)
        enter(self)

    function.apply = classmethod(refuse_apply)
    hooks.__enter__ = refuse_hooks
    try:
        yield
    finally:
        function.apply = apply
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


def expect_gradients_of_other_streams() -> None:
    """Keep PyTorch from warning that a weight's gradient comes from a stream not its own.

    That is meant where a weight is read on other devices; the engine orders the two streams.
    """
    change = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if change is not None:  # PyTorch 2.10 and newer
        change(False)
