# SPDX-License-Identifier: Apache-2.0
"""A model as one graph of aten calls, by torch.export (Paper 3.2, for tier 2 of the Assigner).

The model is traced with shapes only, on the host, wherever its weights are; the size of a batch
stays open. What a graph would silently leave out is looked for, and such a model is refused: a
backward of its own, hooks, recomputed activations, attributes that count calls.

Every call of the graph knows the module call or torch function of the recorded step that it is a
part of, since the same interception sees both.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private_compile, _private_export
from baechi.torch.base.nested import map_tensors, once, renewed, tensors_in
from baechi.torch.record import function_caches
from baechi.torch.record.capture import call_arguments
from baechi.torch.record.code_names import of_library
from baechi.torch.record.interception import Interceptor
from baechi.torch.record.python_state import PythonState
from baechi.torch.record.scopes import Scope
from baechi.torch.record.units import unit_test
from baechi.torch.trace.autocast import traced_under
from baechi.torch.trace.call_structure import Call, modes_of, structure_of
from baechi.torch.trace.graph import (
    ANNOTATION,
    ExportedGraph,
    NotExportedError,
    graph_of_export,
)
from baechi.torch.trace.output_form import output_form
from baechi.torch.trace.outside_reads import OutsideReads
from baechi.torch.trace.reasons import check_constants, check_layouts, reason_of
from baechi.torch.trace.stand_ins import weights_on_host

_PREFIX = "model."
_HOOKS = frozenset(
    ["register_hook", "retain_grad", "backward", "register_post_accumulate_grad_hook"]
)
_VALUES = frozenset(
    ["__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose"]
)
_LARGEST_CONSTANT = 1 << 20  # elements of a tensor that is computed while tracing
_one_trace = threading.RLock()  # a trace replaces functions of PyTorch, and puts them back


@dataclass
class Exported:
    """What a model does with arguments of one structure, in one mode."""

    graph: ExportedGraph
    structure: Any  # of the arguments
    shapes: list[tuple[Any, ...]]  # of its tensors: numbers, or a symbol's name
    ranges: dict[str, tuple[int, int]]
    guards: Callable[[list[torch.Tensor]], bool]
    rebuild: Callable[[list[torch.Tensor]], Any]  # what the model returns, from the outputs
    modes: tuple[Any, ...]  # that it was traced in, as `modes_of` tells them
    example: list[tuple[int, ...]]  # the shapes that it was traced with
    variant: int = 0  # which of the settings that a placed model had
    _accepted: set[Any] = field(default_factory=set)

    @property
    def autocast(self) -> torch.dtype | None:
        """What autocast around the model casts to; None: it is off."""
        dtype: torch.dtype | None = self.modes[2]
        return dtype

    def accepts(self, tensors: list[torch.Tensor]) -> bool:
        """Whether the graph is right for tensors of these shapes."""
        sizes = tuple(t.shape for t in tensors)
        if sizes in self._accepted:
            return True
        found: dict[str, int] = {}
        for shape, size in zip(self.shapes, sizes, strict=True):
            for known, number in zip(shape, size, strict=True):
                if not isinstance(known, str):
                    if known != number:
                        return False
                elif found.setdefault(known, number) != number:
                    return False
        for name, number in found.items():
            low, high = self.ranges[name]
            if not low <= number <= high:
                return False
        if not self.guards(tensors):
            return False
        self._accepted.add(sizes)
        return True


class _Tracer(Interceptor):
    """Names the recorded operator of every call that is traced, and knows what is constant."""

    def __init__(
        self, model: nn.Module, is_unit: Callable[[str, nn.Module], bool], reads: OutsideReads
    ) -> None:
        super().__init__(model, is_unit)
        self._thread = threading.get_ident()
        self._reads = reads
        self.failed: str | None = None  # the innermost call that raised an error
        self.last: str | None = None  # call that was traced
        self._values: dict[int, tuple[Any, torch.Tensor]] = {}  # by id: the traced, the real one

    def sees_calls(self) -> bool:
        """Whether they are part of what is traced: those of other threads are not."""
        return threading.get_ident() == self._thread

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Trace a unit under its name."""
        key = scope.key or type(module).__name__
        inside: Any = self._reads.functions
        if of_library(type(module).__module__):
            inside = self._reads.unwatched()
        with self._named(key), _private_export.annotate(ANNOTATION, key), inside:
            return forward(*args, **kwargs)

    @contextlib.contextmanager
    def _named(self, key: str) -> Iterator[None]:
        self.last = key
        try:
            yield
        except Exception:
            self.failed = self.failed or key
            raise

    def run_function(
        self, scope: Scope, index: int, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Trace a function under its name; compute what follows from no input and no weight."""
        with self._reads.unwatched():
            return self._function(scope.function_key(index, name), name, call, args, kwargs)

    def _function(
        self, key: str, name: str, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        traced = list(tensors_in((args, tuple(kwargs.values()))))
        constant = all(self._known(t) for t in traced)
        if constant and name in _VALUES and traced:
            with self._named(key), _private_export.no_tracing():
                return call(*self._real(args), **self._real(kwargs))
        with self._named(key), _private_export.annotate(ANNOTATION, key):
            out = call(*args, **kwargs)
        if constant:
            self._compute(name, call, args, kwargs, out)
        return out

    def _known(self, tensor: torch.Tensor) -> bool:
        known = self._values.get(id(tensor))
        return known is not None and known[0]() is tensor

    def _real(self, value: Any) -> Any:
        return map_tensors(lambda t: self._values[id(t)][1], value)

    def _compute(self, name: str, call: Any, args: Any, kwargs: Any, out: Any) -> None:
        outs = list(tensors_in(out))
        sizes = [n for t in outs for n in t.shape]
        if not outs or "empty" in name or not all(type(n) is int for n in sizes):
            return
        if sum(t.numel() for t in outs) > _LARGEST_CONSTANT:
            return
        try:
            with _private_export.no_tracing():
                before = torch.get_rng_state()
                found = list(tensors_in(call(*self._real(args), **self._real(kwargs))))
                if not torch.equal(before, torch.get_rng_state()):
                    torch.set_rng_state(before)
                    return
        except Exception:  # a call that needs the traced values after all
            return
        if [t.shape for t in found] == [t.shape for t in outs]:
            for traced, real in zip(outs, found, strict=True):
                self._values[id(traced)] = (weakref.ref(traced), real)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse what would be lost."""
        name = getattr(func, "__name__", "")
        if name in _HOOKS:
            raise NotExportedError(f"it calls {name} in its forward")
        self._reads.looked(func, sys._getframe(1))
        return super().__torch_function__(func, types, args, kwargs)


class _Flat(nn.Module):
    """Takes and returns the tensors of nested arguments and outputs."""

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        reads: OutsideReads,
        returned: Callable[[Any], None],
        left: Callable[[str | None], None],
    ) -> None:
        super().__init__()
        self.model = model
        self._call = call
        self._reads = reads
        self._returned = returned
        self._left = left  # told what the forward changed; attributes are put back by torch.export

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model."""
        given = iter(tensors)
        arguments = renewed((self._call.args, self._call.kwargs))
        args, kwargs = map_tensors(once(lambda _: next(given)), arguments)
        before = PythonState(self.model, (args, kwargs), restorable=False)
        with self._reads.watched():
            out = self.model.forward(*args, **kwargs)
        if self._reads.found is not None:
            raise NotExportedError(f"its forward {self._reads.found}")
        self._left(before.change())
        outputs, rebuild = output_form(out)
        self._returned(rebuild)
        return tuple(outputs)


def _host_twin(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor.detach()
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)


def _dynamic(tensors: list[torch.Tensor], earlier: list[tuple[int, ...]] | None) -> Any:
    """Leave the first size of every tensor open, and those that were another one before."""
    auto = torch.export.Dim.AUTO
    result = []
    for i, tensor in enumerate(tensors):
        dims = {0} if tensor.dim() else set()
        if earlier is not None:
            dims |= {d for d, size in enumerate(tensor.shape) if size != earlier[i][d]}
        result.append(dict.fromkeys(sorted(dims), auto) or None)
    return (tuple(result),)


def _shapes(program: Any) -> tuple[list[tuple[Any, ...]], dict[str, tuple[int, int]]]:
    """Return the shapes that the inputs of a program may have."""
    inputs = {s.arg.name for s in program.graph_signature.input_specs if s.target is None}
    ranges: dict[str, tuple[int, int]] = {}
    shapes: list[tuple[Any, ...]] = []
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in inputs:
            continue
        shape: list[Any] = []
        for size in node.meta["val"].shape:
            if isinstance(size, int):
                shape.append(size)
                continue
            low, high = _private_export.range_of(program, size)
            ranges[str(size)] = (low, high)
            shape.append(str(size))
        shapes.append(tuple(shape))
    return shapes, ranges


def _check_settled(
    flat: _Flat, graph: ExportedGraph, arguments: Any, changes: list[str | None]
) -> None:
    """Raise NotExportedError unless what a forward changed only notes what it would do anyway.

    As a configuration where the kind of a problem is put down at the first call: then the next
    trace changes nothing, and is the same.
    """
    first = NotExportedError(f"its forward {changes[-1]}")
    try:
        again = graph_of_export(_private_export.export_program(flat, *arguments), _PREFIX)
    except Exception:  # it met what the first trace left, which has no values
        raise first from None
    if changes[-1] is not None or not again.computes_as(graph):
        raise first


def _refuse(why: str) -> None:
    raise NotExportedError(why)


def export(
    model: nn.Module,
    example_inputs: Any,
    *,
    units: Any = "leaf",
    earlier: list[tuple[int, ...]] | None = None,
    autocast: torch.dtype | None = None,
) -> Exported:
    """Return the graph of `model` in its present mode.

    Args:
        model: Any module that is not placed; it is as before afterwards.
        example_inputs: As for `capture`; a pair (args, kwargs) of a call is given as `Call`.
        units: As for `capture`, so that both name the same operators.
        earlier: Shapes that inputs had before; sizes that differ are left open.
        autocast: What autocast around the model casts to, whatever is on now; None: it is off.

    Raises:
        NotExportedError: With what stands in the way.

    """
    model = _private_compile.uncompiled(model)
    call = example_inputs
    if not isinstance(call, Call):
        call = Call(*call_arguments(example_inputs))
    given: list[torch.Tensor] = []
    structure = structure_of((call.args, call.kwargs), given)
    if any(tensor.is_meta for tensor in given):
        raise NotExportedError("its arguments are on the meta device")
    returned: list[Any] = []
    reads = OutsideReads()
    changes: list[str | None] = []
    parameters = dict(model.named_parameters())
    flat = _Flat(model, call, reads, returned.append, changes.append)
    tracer = _Tracer(model, unit_test(units), reads)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_trace)
        stack.callback(PythonState(model).put_back)  # it would be without values
        stack.enter_context(_private_compile.eager())
        stack.enter_context(traced_under(autocast))
        stack.enter_context(weights_on_host(model))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        tracer.install()
        stack.callback(tracer.remove)
        stack.enter_context(_private_export.nothing_hidden(NotExportedError))
        stack.enter_context(function_caches.filled_with_values(model, _refuse))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        twins = [_host_twin(t) for t in given]
        try:
            dynamic = _dynamic(given, earlier)
            program = _private_export.export_program(flat, tuple(twins), dynamic)
            check_layouts(program.graph, given)
            check_constants(program.constants, model, parameters)
            shapes, ranges = _shapes(program)
            graph = graph_of_export(program, _PREFIX)
            if changes[-1] is not None:
                _check_settled(flat, graph, (tuple(twins), dynamic), changes)
        except NotExportedError:
            raise
        except Exception as error:
            raise reason_of(error, tracer.failed, tracer.last) from error
    calls = [node for node in graph.nodes if node.kind == "call"]
    if calls and all(node.owner is None for node in calls):
        raise NotExportedError("this PyTorch does not keep the names of traced calls")
    guards = _private_export.shape_guards(program, "tensors")
    modes = modes_of(list(model.modules()), autocast)
    example = [tuple(t.shape) for t in given]
    return Exported(graph, structure, shapes, ranges, guards, returned[-1], modes, example)
