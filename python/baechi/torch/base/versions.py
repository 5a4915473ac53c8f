# SPDX-License-Identifier: Apache-2.0
"""Which versions of PyTorch were tested, and a test of what `_private` needs for others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpointing
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.progress import warn
from baechi.torch.base import _private, _private_autograd, _private_compile, _private_export

FIRST_TESTED = (2, 13)
LAST_TESTED = (2, 14)


def _adds_in_place(function: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
    """Return what is believed of every sum that the engine takes of gradients."""
    seen: list[bool] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if (
                func is torch.ops.aten.add.Tensor
                and _private_autograd.current_autograd_node() is not None
            ):
                seen.append(any(map(_private.only_autograd_holds, args)))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True) * 2
    with Watch():
        function(x).backward()
    return seen


class _Annotated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add a number that is computed while tracing."""
        with _private_export.no_tracing():
            number = torch.ones(()).item()
        with _private_export.annotate("baechi", "here"):
            return x + number


def _followers() -> list[str | None]:
    found: list[str | None] = []

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Ask what follows this call."""
            found.append(_private.follower())
            return x + 1

    model, x = Asking(), torch.ones(3)
    torch.func.vjp(model, x)
    _private_export.export_program(model, (x,), None)
    model(x)
    return found


def _wrong_in_tracing() -> list[str]:
    wrong = []
    auto = torch.export.Dim.AUTO
    program = _private_export.export_program(_Annotated(), (torch.ones(3),), {"x": {0: auto}})
    call = next(n for n in program.graph.nodes if n.op == "call_function" and "add" in n.name)
    if call.meta.get("custom", {}).get("baechi") != "here" or call.args[1] != 1.0:
        wrong.append("traced calls cannot be annotated")
    if _followers() != ["a transform of torch.func", "torch.export", None]:
        wrong.append("what follows a call is unknown")
    size = next(n for n in program.graph.nodes if n.op == "placeholder").meta["val"].shape[0]
    if _private_export.range_of(program, size)[1] < 1 << 40:
        wrong.append("the range of a traced size is unknown")

    class Twice(torch.autograd.Function):
        """A function with a backward of its own."""

    try:
        with _private_export.nothing_hidden(KeyError):
            Twice.apply(torch.ones(1))
    except KeyError:
        return wrong
    return [*wrong, "functions with a backward of their own are not noticed"]


def _wrong_in_backwards() -> list[str]:
    found: list[Any] = []
    kept: list[torch.Tensor] = []

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            found.append(_private_autograd.current_backward() >= 0)
            _private_autograd.call_after_backward(
                lambda: found.append(_private.references(kept[0]))
            )
            kept.append(gradients[0])
            return gradients[0] * 2

    x = torch.ones(2, requires_grad=True)
    (Seeing.apply(x * 1) * 3).sum().backward()
    found += [_private_autograd.current_backward() >= 0, _private.references(kept[0].detach())]
    if found != [True, (1, 1), False, (1, 2)]:
        return ["gradients that nobody else holds are not known as such"]
    return []


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

        def scripted(self, script: Any, call: Any, args: Any, kwargs: Any) -> Any:
            del script, call, kwargs
            self.seen += 12
            return args

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    class Own(torch.autograd.Function):
        """A function with a backward of its own."""

    who = Who()
    _private_autograd.autograd_calls.begin(who)
    with who:
        for reentrant in (False, True):
            x = torch.ones(2, requires_grad=True)
            checkpointing.checkpoint(torch.sin, x, use_reentrant=reentrant)
        Own.apply(x)
        torch.jit.CompilationUnit("def same(x):\n    return x\n").same(x)
    _private_autograd.autograd_calls.end(who)
    return [] if who.seen == 24 else ["functions of autograd and of TorchScript are not seen"]


def _wrong_in_compiling() -> list[str]:
    graphs: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        graphs.append(module)
        return module

    function = torch.compile(lambda x: x + 1, backend=backend)
    with _private_compile.eager():
        function(torch.ones(2))
    if graphs:
        return ["what torch.compile returned cannot run its own code"]
    with _private_compile.eager(), _private_compile.compiling():
        function(torch.ones(2))
    return [] if graphs else ["what torch.compile returned cannot run compiled"]


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
        mode = _private.pop_function_mode()
        weight.add(1)
        _private.push_function_mode(mode)
        if mode is not counter or counter.calls != 0:
            wrong.append("a function mode taken off the stack still sees calls")
        before = _private_autograd.next_sequence_number()
        product = weight.mul(2)
        if counter.calls != 1:
            wrong.append("a function mode put back on the stack sees no calls")
    if _private_autograd.sequence_number(product.grad_fn) != before:
        wrong.append("autograd nodes are numbered otherwise")
    seen: list[Any] = []
    product.register_hook(lambda _: seen.append(_private_autograd.current_autograd_node()))
    product.sum().backward()
    if not seen or not hasattr(seen[0], "_sequence_nr"):
        wrong.append("the running autograd node is unknown")
    if _private.storage_address(product) != _private.storage_address(product.view(2, 1)):
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
    _private_autograd.run_first(early.grad_fn)
    (early + late).sum().backward()
    if order != ["early", "late"]:
        wrong.append("an autograd node cannot be made to run first")
    _private_autograd.one_backward_thread.begin(counter)
    if torch._C._is_multithreading_enabled():
        wrong.append("the backward cannot be kept in one thread")
    _private_autograd.one_backward_thread.end(counter)
    version = _private.version_of(weight.detach())
    with torch.no_grad():
        with _private.same_versions([weight]):
            weight.add_(1)
        weight.add_(1)
    if _private.version_of(weight) != version + 1:
        wrong.append("in-place changes are not counted")
    if torch.ops.aten.mm not in _private.flop_formulas():
        wrong.append("the FLOPs of a matrix product are unknown")
    cell = nn.LSTM(2, 2)
    cell.weight_ih_l0 = nn.Parameter(torch.zeros_like(cell.weight_ih_l0))
    _private.refresh_flat_weights(cell)
    if cell._flat_weights[0] is not cell.weight_ih_l0:
        wrong.append("recurrent modules keep their weights elsewhere")
    wrong += _wrong_in_tracing()
    wrong += _wrong_in_autograd_calls()
    wrong += _wrong_in_backwards()
    wrong += _wrong_in_compiling()
    if not _private.moves_in_place(weight, torch.device("cpu")):
        wrong.append("parameters cannot be moved in place")
    return wrong


@functools.cache
def check_version() -> None:
    """Warn once where a PyTorch newer than the last tested does not do what we need."""
    if FIRST_TESTED <= _private.version() <= LAST_TESTED:
        return
    first, last = (".".join(map(str, v)) for v in (FIRST_TESTED, LAST_TESTED))
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            wrong = self_test()
    except Exception as error:  # whatever a name that is gone, or does something else, leads to
        wrong = [f"{type(error).__name__}: {error}"]
    if wrong:
        warn(
            f"baechi.torch was tested with PyTorch {first} to {last}; in {torch.__version__} "
            + "; ".join(wrong)
        )
