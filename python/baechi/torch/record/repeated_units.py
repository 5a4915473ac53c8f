# SPDX-License-Identifier: Apache-2.0
"""Records one of several equal modules, and takes the others to be like it (Paper 4.1).

For plans only: no value is computed, no backward recorded. The layers of a language model are
the same but for their weights, and a number that says which one it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.torch.base.nested import PLAIN, map_tensors, tensors_in
from baechi.torch.record.python_state import OWN
from baechi.torch.record.recorded_step import Op, Tensor
from baechi.torch.record.recorder import Recorder, recorder_of
from baechi.torch.record.scopes import Scope
from baechi.torch.record.units import unit_test


@dataclass
class _First:
    """What was recorded of the first of equal modules."""

    op: Op
    given: list[int]  # the storages of its arguments
    arguments: Any  # held, so that no other object is taken for one of them
    out: Any


@dataclass
class Repeated:
    """Modules that become one operator, as `unit_test` takes them; for `capture`."""

    units: Any


class RepeatingRecorder(Recorder):
    """A recorder that runs the first of equal units with equal arguments, and no other."""

    def __init__(self, model: nn.Module, is_unit: Callable[[str, nn.Module], bool]) -> None:
        super().__init__(model, is_unit)
        self._known: dict[Hashable, _First | None] = {}  # None: what it does cannot be repeated

    def run_unit(
        self, scope: Scope, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Record a unit as an operator."""
        if self._op is not None:
            return super().run_unit(scope, module, forward, args, kwargs)
        given = [self.tensor_of(t, None) for t in tensors_in((args, kwargs))]
        sharing = tuple(given.index(number) for number in given)
        likeness = (_likeness(scope.path, module), _form((args, kwargs)), sharing)
        first = self._known.get(likeness)
        if first is not None:
            return self._repeated(first, scope, module, given, args, kwargs)
        before = len(self.tensors)
        out = super().run_unit(scope, module, forward, args, kwargs)
        if likeness not in self._known:
            recorded = _First(self.ops[-1], given, (args, kwargs), out)
            self._known[likeness] = recorded if self._is_closed(recorded, before) else None
        return out

    def _is_closed(self, first: _First, before: int) -> bool:
        """Whether a unit makes what it returns, of its arguments, its weights and no more.

        Args:
            first: The unit.
            before: How many storages were known before it ran.

        """
        op = first.op
        made = [self.tensor_of(t, None) for t in tensors_in(first.out)]
        return (
            bool(made)
            and len(set(made)) == len(made)
            and set(made) <= set(op.made)
            and all(number in first.given or number >= before for number in op.reads)
            and all(name.startswith(f"{op.module}.") for name in op.weights)
            and not (op.changed or op.changes_weights)
        )

    def _repeated(
        self,
        first: _First,
        scope: Scope,
        module: nn.Module,
        given: list[int],
        args: Any,
        kwargs: Any,
    ) -> Any:
        kind, path = type(module).__name__, scope.path
        self.units.add(path)
        op = Op(scope.key or kind, kind, path)
        with self._running(op, args, kwargs):
            out = self._finish(map_tensors(_another, first.out), args, kwargs)
        like, index = first.op, len(self.ops) - 1
        for theirs, ours in zip(first.given, given, strict=True):
            if theirs in like.reads:
                writers = self.tensors[ours].writers
                op.reads[ours] = writers[-1] if writers else None
        returned = {self.tensor_of(tensor, None) for tensor in tensors_in(first.out)}
        for number in (made for made in like.made if made not in returned):  # gone again
            op.made.append(len(self.tensors))
            self.tensors.append(Tensor(self.tensors[number].bytes, index, writers=[index]))
        own = (path + name.removeprefix(like.module or "") for name in like.weights)
        op.weights = [self.aliases[name] for name in own]
        op.forward, op.random = dataclasses.replace(like.forward), like.random
        return out


@recorder_of.register
def _recorder_of_repeated(units: Repeated, model: nn.Module) -> Recorder:
    return RepeatingRecorder(model, unit_test(units.units))


def _another(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that looks the same, without reading this one."""
    size, stride = tensor.size(), tensor.stride()
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)


def _likeness(path: str, module: nn.Module) -> Hashable:
    """Return what decides what a module does, but for the values of its weights."""
    position = {int(part) for part in path.split(".") if part.isdecimal()}
    weights = [*module.named_parameters(), *module.named_buffers()]
    return (
        tuple((name, type(m), _settings(m, position)) for name, m in module.named_modules()),
        tuple((name, w.shape, w.dtype, w.requires_grad) for name, w in weights),
    )


def _settings(module: nn.Module, position: set[int]) -> Hashable:
    own = ((name, value) for name, value in vars(module).items() if name not in OWN)
    return (
        module.training,
        *((n, "its place" if _is_in(v, position) else _form(v)) for n, v in own),
    )


def _is_in(value: Any, numbers: set[int]) -> bool:
    return type(value) is int and value in numbers


def _form(value: Any) -> Hashable:
    """Return nested values, tensors by what they look like and other objects by themselves."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.requires_grad
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), *map(_form, value)
    if isinstance(value, dict):
        return dict, *((key, _form(item)) for key, item in value.items())
    return type(value), id(value)
