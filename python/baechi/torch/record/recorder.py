# SPDX-License-Identifier: Apache-2.0
"""Records a step of a PyTorch model while it runs (Paper 4.1).

It is watched from three sides: module calls and torch functions say what the operators are
(`interception`), the dispatcher says which storages each reads, writes and makes, and saved-tensor
hooks say what the backward keeps.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from baechi._core import InputError
from baechi.torch.base import _private, _private_autograd, _private_compile
from baechi.torch.base._private_autograd import saved_hooks
from baechi.torch.base.function_rules import (
    DIFFERENTIATES,
    TRANSFORMS,
    changed_arguments,
    with_host_arguments,
    with_near_arguments,
    without_device,
)
from baechi.torch.base.nested import dense_in, held_by, tensors_in
from baechi.torch.base.plain_values import is_plain
from baechi.torch.base.repeats import sent_bytes
from baechi.torch.base.runs_again import Operation
from baechi.torch.base.second_runs import SecondRuns
from baechi.torch.record import refusals
from baechi.torch.record.autograd_graph import NodeRecorder
from baechi.torch.record.inner_backwards import InnerBackwards
from baechi.torch.record.interception import Interceptor
from baechi.torch.record.operator_runs import OperatorRuns
from baechi.torch.record.products import Products
from baechi.torch.record.python_state import PythonState
from baechi.torch.record.recomputed import RecordedRuns, RunAgain
from baechi.torch.record.recorded_step import (
    KernelRun,
    Op,
    TensorObject,
    Weight,
    Work,
    rounded,
)
from baechi.torch.record.scopes import Scope
from baechi.torch.record.spilling import Spilling
from baechi.torch.record.storages import Storages
from baechi.torch.record.units import check_names, unit_test

# What is no kernel but runs several, whose temporary memory would not be seen.
_RUNS_OTHERS = frozenset(
    [torch.ops.aten.masked_scatter_backward.default, torch.ops.aten._euclidean_dist.default]
)


def _writes_out(func: Any, args: Any) -> bool:
    """Whether a kernel is a copy of numbers that are conjugated or negated by a bit."""
    return func is torch.ops.aten.clone.default and bool(args[0].is_conj() or args[0].is_neg())


def _placed_arguments(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return with_near_arguments(name, with_host_arguments(name, args, torch.Tensor.cpu))


class _ArgumentsPlaced(TorchFunctionMode):
    """Inside a unit: arguments are on the host, or on the device, where a function wants that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_placed_arguments(getattr(func, "__name__", ""), args), **(kwargs or {}))


class DispatcherSide(TorchDispatchMode):
    """The dispatcher's side of the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RUNS_OTHERS:
            with self:
                return _private.as_its_parts(func, *args, **kwargs)
        out = func(*args, **kwargs)
        self._recorder.dispatched(func, args, kwargs, out)
        return out


class Recorder(Interceptor):
    """Records one step of a model."""

    sees_entries = True

    def __init__(self, model: nn.Module, is_unit: Callable[[str, nn.Module], bool]) -> None:
        super().__init__(model, is_unit)
        self._thread = threading.get_ident()
        self.weights: dict[str, Weight] = {}
        self.aliases: dict[str, str] = {}
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
            self._weight_name,
            self._known_storage,
            lambda: len(self.trace),
            self.node_begins,
        )
        self.again = RunAgain(self._weight_name, self.tensor_of)
        self.products = Products(self._weight_name)
        self._twins: list[torch.Tensor] = []
        self._origins: dict[int, tuple[Any, int, int]] = {}  # by id: reference, op, output
        self.seen: list[TensorObject] = []
        self.values: dict[int, list[tuple[int | None, int]]] = {}  # as in Capture
        self._seen: dict[int, tuple[Any, int, int]] = {}  # by id: reference, version, number
        self._end_number = 0
        self._checkpoints: dict[int, int] = {}  # the operator that made what each returns, by node
        self._failed: str | None = None
        self._formulas = _private.flop_formulas()
        self._weight_of: dict[int, str] = {}  # by storage address; weights outlive the recording
        self._kept: dict[int, Any] = {}  # references to what autograd keeps, by id
        self._kept_of: dict[tuple[int, int], int] = {}  # how many, by operator and storage
        self._inner = InnerBackwards(self._runs, self._storages, self.seen, self._see)
        self._forwarded = False
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
        named = [(n, p, p.requires_grad) for n, p in self.model.named_parameters()]
        named += [(n, b, False) for n, b in self.model.named_buffers()]
        for name, tensor, trained in named:
            self._twins.append(twin(tensor))  # held, so that no address is used again
            addresses = [_private.storage_address(t) for t in (tensor, self._twins[-1])]
            known = next((self._weight_of[a] for a in addresses if a in self._weight_of), name)
            self.aliases[name] = known
            size = rounded(self._bytes_of(tensor.untyped_storage()))
            self.weights.setdefault(known, Weight(known, size, False)).trained |= trained
            for address in addresses:
                self._weight_of[address] = known

    def _bytes_of(self, storage: Any) -> int:
        own = storage.nbytes() if self.spilling is None else self.spilling.bytes_of(storage)
        return int(own)

    # Module calls and functions

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
        found = []
        for tensor in tensors_in(out):
            origin = self._origins.get(id(tensor))
            known = origin is not None and origin[0]() is tensor
            found.append((origin[1], origin[2]) if origin is not None and known else None)
        self.exits[scope.key] = found

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
            number = self._see(tensor, None)
            if number is not None and number not in op.takes:
                op.takes.append(number)
            origin = self._origins.get(id(tensor))
            if origin is not None and origin[0]() is tensor:
                self.ops[origin[1]].feeds.setdefault(origin[2], []).append(index)
                node = tensor.grad_fn
                if type(node).__name__ == _private_autograd.CHECKPOINT_NODE:
                    self._checkpoints[_private_autograd.sequence_number(node)] = origin[1]
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

    def _see(self, tensor: torch.Tensor, maker: int | None) -> int | None:
        """Return the number of a tensor that the model's code holds; None for weights."""
        if _private.storage_address(tensor) in self._weight_of:
            return None
        version = _private.version_of(tensor)
        known = self._seen.get(id(tensor))
        given = [] if maker is None else [maker]
        if known is not None and known[0]() is tensor and known[1] == version:
            self.seen[known[2]].given += given
            return known[2]
        number = len(self.seen)
        seen = TensorObject(self.tensor_of(tensor, None), rounded(sent_bytes(tensor)), given)
        if tensor.grad_fn is not None:
            seen.node = _private_autograd.sequence_number(tensor.grad_fn), tensor.output_nr
        self.seen.append(seen)

        def gone(_: Any) -> None:
            seen.until = len(self.trace)

        self._seen[id(tensor)] = (weakref.ref(tensor, gone), version, number)
        return number

    def _finish(self, out: Any, args: Any, kwargs: Any) -> Any:
        op = self.ops[self._op] if self._op is not None else None
        if op is not None:
            op.shapes = ",".join(
                "x".join(map(str, t.shape)) for t in tensors_in((args, tuple(kwargs.values())))
            )
        for position, tensor in enumerate(tensors_in(out)):
            if self._op is not None:
                number = self._see(tensor, self._op)
                stored = self._weight_name(tensor) if number is None else self.seen[number].tensor
                self.ops[self._op].returned.append(stored)
                self._origins[id(tensor)] = (weakref.ref(tensor), self._op, position)
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
            known = self._seen.get(id(tensor))
            if known is not None and known[0]() is tensor:
                self.seen[known[2]].returned = True

    def forwarded(self) -> None:
        """Say that the forward is over: what the dispatcher sees now is the backward."""
        self._forwarded = True

    def finished(self) -> None:
        """Say that the step is over."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:  # a backward inside may have made it, unseen
                sizes = (t.numel() * t.element_size() for t in dense_in(parameter.grad))
                self.weights[self.aliases[name]].gradient = sum(map(rounded, sizes))
        running = self._storages.segment_op()
        if running is not None:
            self._storages.close_segment(self.ops[running].backward)
        self._storages.finished()

    def _backward_op(self) -> int | None:
        node = _private_autograd.current_autograd_node()
        return None if node is None else self._op_of_node(node)

    def _weight_name(self, tensor: torch.Tensor) -> str | None:
        return self._weight_of.get(_private.storage_address(tensor))

    def _known_storage(self, tensor: torch.Tensor) -> int | None:
        return self._storages.known(tensor)

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
        backward = self._forwarded
        index = self._backward_op() if backward else self._op
        if index is None:
            if backward:  # belongs to what ran last
                index = self._storages.segment_op()
            if index is None:
                return
        op = self.ops[index]
        running = self._storages.segment_op()
        if backward and running != index:
            if running is not None:
                self._storages.close_segment(self.ops[running].backward)
            self._storages.open_segment(index)
        if not backward:
            op.random = op.random or torch.Tag.nondeterministic_seeded in func.tags
            self._read(op, args, kwargs)
        adds = func is torch.ops.aten.add.Tensor
        sums = backward and self.autograd.between and (adds or _writes_out(func, args))
        if sums and adds and self.again.op is None:
            self._storages.added_in_place(args)
        first_made = len(self.tensors)
        outs = list(dense_in(out))
        for tensor in outs:
            if tensor.is_nested:
                raise InputError(refusals.NESTED)
            if _private.storage_address(tensor) in self._weight_of:
                continue
            number = self.tensor_of(tensor, index if not backward else None)
            if not backward and number >= first_made and number not in op.made:
                op.made.append(number)
        if not backward:
            self._written(op, index, func, args, kwargs)
        inside = None  # memory that the kernel had for itself
        if self.spilling is not None and self.spilling.inside > 0:
            inside = self._storages.add(self.spilling.inside, index if not backward else None)
        made = tuple(range(first_made, len(self.tensors)))
        reads = self._storages.bytes_read(self._arguments(args, kwargs))
        known = tuple((t, size) for t, size in sorted(reads.items()) if t < first_made)
        again = self.again.op if backward else None
        runs = index if again is None else again
        self.trace.append(KernelRun(runs, backward, known, made, sums, again is not None))
        if inside is not None:
            self._storages.free(inside)
        if func.is_view or (len(self.tensors) == first_made and not func._schema.is_mutable):
            return
        touched = [*outs, *self._arguments(args, kwargs)]
        work = Work(bytes=sum(t.numel() * t.element_size() for t in touched), kernels=1)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            work.flops = int(formula(*args, **kwargs, out_val=out))
        (op.backward if backward else op.forward).add(work)
        if backward:
            self.products.add(index, func, args, out, work)

    @staticmethod
    def _arguments(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
        return dense_in((args, tuple(kwargs.values())))

    def _read(self, op: Op, args: Any, kwargs: Any) -> None:
        for tensor in self._arguments(args, kwargs):
            weight = self._weight_of.get(_private.storage_address(tensor))
            if weight is not None:
                if weight not in op.weights:
                    op.weights.append(weight)
                continue
            number = self.tensor_of(tensor, None)
            known = self.tensors[number]
            if tensor.requires_grad:
                known.requires_grad = True
            if number not in op.reads and number not in op.made:
                op.reads[number] = known.writers[-1] if known.writers else None

    def _written(self, op: Op, index: int, func: Any, args: Any, kwargs: Any) -> None:
        for tensor in changed_arguments(func, args, kwargs):
            op.changes_weights |= _private.storage_address(tensor) in self._weight_of
            number = self._storages.known(tensor)
            if number is None or number in op.made:
                continue
            if number not in op.changed:
                op.changed.append(number)
                self.tensors[number].writers.append(index)

    # Saved tensors

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that the running operator keeps `tensor` for its backward."""
        if self._op is None and not self._forwarded:
            return tensor  # what goes into a checkpoint lives as long as that
        if self._op is not None and not self._forwarded:
            op = self.ops[self._op]
            if _private.storage_address(tensor) not in self._weight_of:
                number = self.tensor_of(tensor, None)
                if number not in op.saved:
                    op.saved.append(number)
                for held in (tensor, tensor._base):
                    known = self._seen.get(id(held))
                    if known is not None and known[0]() is held:
                        self.seen[known[2]].kept.append(self._op)
                return self._watched(op, number, tensor.data)
        # The tensor itself would be a cycle when it is an output and no backward runs; a view of it
        # would keep it from being let go of.
        return tensor.data

    def _watched(self, op: Op, number: int, kept: torch.Tensor) -> torch.Tensor:
        """Note when autograd has let go of all that an operator keeps of a storage."""
        key = id(kept)
        self._kept_of[id(op), number] = self._kept_of.get((id(op), number), 0) + 1

        def gone(_: Any) -> None:
            del self._kept[key]
            self._kept_of[id(op), number] -= 1
            if self._kept_of[id(op), number] == 0:
                op.released[number] = len(self.trace)

        op.released.pop(number, None)
        self._kept[key] = weakref.ref(kept, gone)
        return kept

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
