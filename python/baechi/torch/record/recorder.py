# SPDX-License-Identifier: Apache-2.0
"""Records a step of a PyTorch model while it runs (Paper 4.1).

It is watched from three sides: module calls and torch functions say what the operators are
(`interception`), the dispatcher says which storages each reads, writes and makes (`kernels`), and
saved-tensor hooks say what the backward keeps (`held_tensors`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from baechi._core import InputError
from baechi.torch.base import _private_autograd, _private_compile
from baechi.torch.base._private_autograd import saved_hooks
from baechi.torch.base.function_rules import (
    DIFFERENTIATES,
    TRANSFORMS,
    with_host_arguments,
    with_near_arguments,
    without_device,
)
from baechi.torch.base.nested import dense_in, held_by, tensors_in
from baechi.torch.base.plain_values import is_plain
from baechi.torch.base.runs_again import Operation
from baechi.torch.base.second_runs import SecondRuns
from baechi.torch.record import refusals
from baechi.torch.record.autograd_graph import NodeRecorder
from baechi.torch.record.held_tensors import SavedTensors, TensorObjects
from baechi.torch.record.inner_backwards import InnerBackwards
from baechi.torch.record.interception import Interceptor
from baechi.torch.record.kernels import Kernels
from baechi.torch.record.known_weights import KnownWeights
from baechi.torch.record.operator_runs import OperatorRuns
from baechi.torch.record.python_state import PythonState
from baechi.torch.record.recomputed import RecordedRuns, RunAgain
from baechi.torch.record.recorded_step import KernelRun, Op, rounded
from baechi.torch.record.scopes import Scope
from baechi.torch.record.spilling import Spilling
from baechi.torch.record.storages import Storages
from baechi.torch.record.units import check_names, unit_test


def _placed_arguments(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return with_near_arguments(name, with_host_arguments(name, args, torch.Tensor.cpu))


class _ArgumentsPlaced(TorchFunctionMode):
    """Inside a unit: arguments are on the host, or on the device, where a function wants that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_placed_arguments(getattr(func, "__name__", ""), args), **(kwargs or {}))


class Recorder(Interceptor):
    """Records one step of a model."""

    sees_entries = True

    def __init__(self, model: nn.Module, is_unit: Callable[[str, nn.Module], bool]) -> None:
        super().__init__(model, is_unit)
        self._thread = threading.get_ident()
        self._weights = KnownWeights(model, self._bytes_of)
        self.weights = self._weights.weights
        self.aliases = self._weights.aliases
        self.units: set[str] = set()
        self.entries: dict[str, set[int]] = {}
        self.exits: dict[str, list[tuple[int, int] | None]] = {}
        self.trace: list[KernelRun | int] = []
        self.spilling: Spilling | None = None  # where the model has no room
        self._storages = Storages(self.trace, self._bytes_of)
        self.tensors = self._storages.tensors
        self._runs = OperatorRuns(self._storages, self.trace)
        self.ops = self._runs.ops
        self.autograd = NodeRecorder(
            self._op_of_node,
            self._runs.nodes.before,
            self._weights.name_of,
            self._storages.known,
            lambda: len(self.trace),
            self.node_begins,
        )
        self.again = RunAgain(self._weights.name_of, self.tensor_of)
        self._kernels = Kernels(
            self.trace, self._runs, self._storages, self._weights, self.autograd, self.again
        )
        self.products = self._kernels.products
        self._objects = TensorObjects(self.trace, self.tensor_of, self._weights.__contains__)
        self.seen = self._objects.seen
        self._saved = SavedTensors(self.trace)
        self.values: dict[int, list[tuple[int | None, int]]] = {}  # as in Capture
        self._end_number = 0
        self._checkpoints: dict[int, int] = {}  # the operator that made what each returns, by node
        self._failed: str | None = None
        self._inner = InnerBackwards(self._runs, self._storages, self._objects)
        self.in_loss = False  # the forward has returned, and the loss is computed
        self.second: SecondRuns | None = None

    def repeat(self, keys: Collection[str]) -> None:
        """Have operators run again in the backward, as a plan says."""
        self.second = SecondRuns(keys, RecordedRuns(self)) if keys else None

    def _outside(self, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            # Placed, it would wait for the call of the model, which would wait for it.
            raise InputError(
                f"{path or 'the model'} is called by another thread while a step is recorded: a "
                "model whose forward has threads of its own cannot be placed"
            )
        return super()._outside(path, forward, args, kwargs)

    # Weights

    def know_weights(self, twin: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take in parameters and buffers; `twin` is what the dispatcher sees in their place."""
        self._weights.know(twin)

    def _bytes_of(self, storage: Any) -> int:
        own = storage.nbytes() if self.spilling is None else self.spilling.bytes_of(storage)
        return int(own)

    # Module calls and functions

    @property
    def _forwarded(self) -> bool:
        """Whether the forward is over: what the dispatcher sees now is the backward."""
        return self._kernels.backward is not None

    @property
    def _op(self) -> int | None:
        """The operator of the forward that runs."""
        return self._runs.now

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Record a unit as an operator."""
        kind = type(module).__name__
        if self._state.resumed:
            return self.again.run(scope.key or kind, forward, args, kwargs)
        self.units.add(scope.path)
        known = type(module).__module__.startswith("torch.nn.")
        inside = _ArgumentsPlaced() if not known or kind == "CTCLoss" else contextlib.nullcontext()
        reads = (args, list(held_by(module).values()))  # which hooks may have computed
        op = Op(scope.key or kind, kind, scope.path)
        with self._running(op, reads, kwargs), inside:
            op.repeats = not (held_by(module) or _private_compile.is_compiled(module))
            return self._operated(op, module, forward, args, kwargs)

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Record a torch function as an operator."""
        if self._state.resumed:
            return self.again.run(scope.function_key(index, name), call, args, kwargs)
        op = Op(scope.function_key(index, name), name, None, scope.path)
        op.told = kwargs.get("device") is not None
        args = _placed_arguments(name, args)
        if name == "to":
            near = args[0].device

            def is_near(what: torch.Tensor | torch.device) -> bool:
                return getattr(what, "device", None) == near  # a device may mean the host

            args, kwargs = without_device(name, args, kwargs, is_near, is_near)
        with self._running(op, args, kwargs), contextlib.ExitStack() as stack:
            if name in TRANSFORMS:
                stack.enter_context(_private_autograd.without_saved_hooks(self.pack))
            if name == DIFFERENTIATES and self._op is not None:
                call = functools.partial(self._inner.run, self._op, call)
            of = getattr(call, "__self__", None)
            own = isinstance(of, type) and issubclass(of, torch.autograd.Function)
            op.repeats = not (own or name in TRANSFORMS or name == DIFFERENTIATES)
            return self._operated(op, None, call, args, kwargs)

    def _operated(
        self, op: Op, module: nn.Module | None, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run an operator, and note whether it can run again."""
        foreign = module is not None and not type(module).__module__.startswith("torch.nn.")
        op.repeats &= is_plain(args) and is_plain(kwargs)
        op.repeats &= saved_hooks()[1] in (None, (self.pack, self.unpack))
        before = None
        if foreign and op.repeats and module is not None:
            before = PythonState(module, (args, kwargs), restorable=False)
        if self.second is None:
            out = call(*args, **kwargs)
        else:
            given = list(tensors_in((args, tuple(kwargs.values()))))
            run = Operation(op.key, call, given, module, op.repeats)
            out = self.second.run(run, args, kwargs, None)
        op.repeats &= is_plain(out) and (before is None or before.change() is None)
        return self._finish(out, args, kwargs)

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the model and note its inputs."""
        self.entered(self.root, args, kwargs)
        return forward(*args, **kwargs)

    def resume(
        self, scope: Scope, mark: Any, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Compute activations again, for the backward, where they were computed."""
        with self.again.computing(self.ops, self.trace):
            out = super().resume(scope, mark, function, args, kwargs)
        for tensor in tensors_in(out):
            self.autograd.watch(tensor, inner=True)  # its backward may run inside this one
        return out

    def entered(self, scope: Scope, args: Any, kwargs: Any) -> None:
        """Note what came in by arguments."""
        if self._forwarded:
            return
        known = self.entries.setdefault(scope.path, set())
        known.update(self.tensor_of(t, None) for t in tensors_in((args, kwargs)))

    def left(self, scope: Scope, out: Any) -> None:
        """Note whose outputs a module returns as they are."""
        if self._forwarded:
            return
        self.exits[scope.key] = [self._objects.origin_of(tensor) for tensor in tensors_in(out)]

    def sentence_of(self, error: Exception) -> str:
        """Say where the step failed."""
        name = type(self.model).__name__
        what = refusals.cause_of(error)
        if self._forwarded:
            return f"{name} cannot be recorded: its backward failed: {what}"
        if self.in_loss:
            return f"loss: it failed with what {name} returns: {what}"
        after = f"after {self.ops[-1].key!r}" if self.ops else "before its first operator"
        if self._failed is not None:
            after = f"in {self._failed!r}"
        return f"{name} cannot be recorded: it failed {after}: {what}"

    @contextlib.contextmanager
    def _running(self, op: Op, args: Any, kwargs: Any) -> Iterator[None]:
        # A unit called by a function, as autograd functions do, or by the backward of one.
        if self._op is not None or self._forwarded:
            yield
            return
        index = self._runs.begin(op)
        op.arrives = self._storages.bytes_read(tensors_in((args, kwargs)))
        for tensor in tensors_in((args, kwargs)):
            number = self._objects.see(tensor, None)
            if number is not None and number not in op.takes:
                op.takes.append(number)
            origin = self._objects.origin_of(tensor)
            if origin is not None:
                maker, output = origin
                self.ops[maker].feeds.setdefault(output, []).append(index)
                node = tensor.grad_fn
                if type(node).__name__ == _private_autograd.CHECKPOINT_NODE:
                    self._checkpoints[_private_autograd.sequence_number(node)] = maker
        self._runs.measure()
        try:
            with self._present(op, args, kwargs):
                yield
        except Exception:
            self._failed = op.key
            raise
        finally:
            self._runs.end()

    def _present(self, op: Op, args: Any, kwargs: Any) -> contextlib.AbstractContextManager[None]:
        """Have what an operator reads on the device while it runs."""
        if self.spilling is None:
            return contextlib.nullcontext()
        inside = None if op.module is None else self.model.get_submodule(op.module)
        weights = [] if inside is None else [*inside.parameters(), *inside.buffers()]
        return self.spilling.unit(args, kwargs, weights)

    def _finish(self, out: Any, args: Any, kwargs: Any) -> Any:
        op = self.ops[self._op] if self._op is not None else None
        if op is not None:
            op.shapes = ",".join(
                "x".join(map(str, t.shape)) for t in tensors_in((args, tuple(kwargs.values())))
            )
        for position, tensor in enumerate(tensors_in(out)):
            if self._op is not None:
                number = self._objects.see(tensor, self._op)
                name = self._weights.name_of(tensor)
                self.ops[self._op].returned.append(
                    name if number is None else self.seen[number].tensor
                )
                self._objects.returned(tensor, self._op, position)
            if not tensor.requires_grad:
                continue
            if op is not None:
                op.grads = True
            known = self._storages.known(tensor)
            if known is not None:
                self.tensors[known].requires_grad = True
        return out

    # Storages

    def tensor_of(self, tensor: torch.Tensor, producer: int | None) -> int:
        """Return the graph's tensor that `tensor` is, or is a view of."""
        return self._storages.tensor_of(tensor, producer)

    def returns(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note of what the model returns."""
        for tensor in tensors:
            self.tensors[self.tensor_of(tensor, None)].returned = True
            known = self._objects.known(tensor)
            if known is not None:
                known.returned = True

    def forwarded(self) -> None:
        """Say that the forward is over."""
        self._kernels.backward = self._backward_op

    def finished(self) -> None:
        """Say that the step is over."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:  # a backward inside may have made it, unseen
                sizes = (t.numel() * t.element_size() for t in dense_in(parameter.grad))
                self.weights[self.aliases[name]].gradient = sum(map(rounded, sizes))
        self._kernels.close()
        self._storages.finished()

    def _backward_op(self) -> int | None:
        node = _private_autograd.current_autograd_node()
        return None if node is None else self._op_of_node(node)

    def _op_of_node(self, node: Any) -> int | None:
        number = _private_autograd.sequence_number(node)
        if number >= self._end_number:
            return self.again.nodes.maker(node)
        known = self._checkpoints.get(number)
        return self._runs.nodes.maker(node) if known is None else known

    def number_end(self) -> None:
        """Take note of where the autograd nodes of the forward end."""
        self._end_number = _private_autograd.next_sequence_number()

    # The dispatcher

    def dispatched(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Take in one aten operator."""
        if self.again.handing and self.again.op is None:
            return
        inside = 0 if self.spilling is None else self.spilling.inside
        self._kernels.add(func, args, kwargs, out, inside)

    # Saved tensors

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that the running operator keeps `tensor` for its backward."""
        if self._op is None and not self._forwarded:
            return tensor  # what goes into a checkpoint lives as long as that
        if self._op is not None and not self._forwarded:
            op = self.ops[self._op]
            if tensor not in self._weights:
                number = self.tensor_of(tensor, None)
                if number not in op.saved:
                    op.saved.append(number)
                for held in (tensor, tensor._base):
                    known = self._objects.known(held)
                    if known is not None:
                        known.kept.append(self._op)
                return self._saved.watched(op, number, tensor.data)
        # The tensor itself would be a cycle when it is an output and no backward runs; a view of it
        # would keep it from being let go of.
        return tensor.data

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hand a node of the backward what it kept."""
        return tensor if self.spilling is None else self.spilling.unpacked(tensor)

    def node_begins(self, gradients: Any) -> None:
        """Take note that a node of the backward is about to run."""
        if self.spilling is not None:
            self.spilling.node(gradients)


@functools.singledispatch
def recorder_of(units: Any, model: nn.Module) -> Recorder:
    """Return what records a step of a model whose operators `units` names.

    What names operators in its own way registers what records these.
    """
    test = unit_test(units)
    check_names(units, model)
    return Recorder(model, test)
