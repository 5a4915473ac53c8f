# SPDX-License-Identifier: Apache-2.0
"""Operators that run again in the backward, so that what they made need not be held.

What a backward would keep of such an operator is replaced by a note of where it comes from: an
output of the run, or what the run itself saved. Whoever asks for the first of them has the operator
run again, behind those that it reads from and that run again, too; its other inputs are held for
it. What the second run makes is held until the last who asked for it has let go.

Gradients and their history are those of the first run: only the values are made again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from baechi.torch.base import _private
from baechi.torch.base._private_autograd import saved_hooks
from baechi.torch.base.nested import tensors_in
from baechi.torch.base.plain_values import is_plain
from baechi.torch.base.runs_again import Operation, Output, Run, Runner, Saved, Source, View


class _Packing:
    """Packs what one operator saves."""

    def __init__(
        self,
        runner: Runner,
        run: Run | None,
        args: Any,
        sources: Mapping[int, Source],
        weights: Iterable[torch.Tensor],
    ) -> None:
        self._runner = runner
        self._run = run
        self._made: dict[int, tuple[Source, torch.Tensor]] = {}
        self._others: set[int] = set()
        for tensor in tensors_in(args):
            address = _private.storage_address(tensor)
            source = sources.get(id(tensor))
            if source is None:
                self._others.add(address)
            else:
                self._made[address] = source, tensor
        self._others.update(map(_private.storage_address, weights))

    def __call__(self, tensor: torch.Tensor) -> Any:
        if tensor.layout is not torch.strided:
            return self._kept(tensor)
        address = _private.storage_address(tensor)
        known = None if address in self._others else self._made.get(address)
        if known is not None:
            source, whole = known
            lazy = tensor.is_conj() != whole.is_conj() or tensor.is_neg() != whole.is_neg()
            if tensor.dtype == whole.dtype and not lazy:
                self._note(None)
                return View(source, tensor, whole)
            return self._kept(tensor)
        if self._run is None or address in self._others:
            return self._kept(tensor)
        saved = Saved(self._run, tensor)
        self._note(weakref.ref(saved))
        return saved

    def forget(self) -> None:
        """Let go of the arguments: what is saved holds its hooks."""
        self._made.clear()
        self._others.clear()

    def _kept(self, tensor: torch.Tensor) -> Any:
        self._note(None)
        return self._runner.keep(tensor)

    def _note(self, saved: Any) -> None:
        if self._run is not None:
            self._run.saved.append(saved)


def run_first(
    runner: Runner,
    operation: Operation,
    args: Any,
    kwargs: Any,
    device: Any,
    sources: Mapping[int, Source],
    *,
    again: bool,
) -> tuple[Any, Run | None]:
    """Run an operator for the first time; return what it makes, and its run if there is another.

    Args:
        runner: Runs it.
        operation: What it is.
        args: Its arguments, on its device.
        kwargs: Those with names.
        device: Where it runs.
        sources: What will make arguments again, by their ids.
        again: It runs again.

    """
    run = Run(operation, args, kwargs, sources, device, runner) if again else None
    if not torch.is_grad_enabled():
        return runner.compute(operation.call, args, kwargs, device), run
    given = (args, tuple(kwargs.values()))
    pack = _Packing(runner, run, given, sources, operation.read_weights())
    unpack = functools.partial(_unpacked, runner)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = runner.compute(operation.call, args, kwargs, device)
    pack.forget()
    return out, run


def run_block(
    runner: Runner,
    operation: Operation,
    taken: Sequence[Any],
    sources: Sequence[Source | None],
    device: Any,
    *,
    again: bool,
) -> tuple[Any, Sequence[Output | None]]:
    """Run calls as one for the first time; return what they make, and what makes it again.

    Args:
        runner: Runs them.
        operation: What they are.
        taken: Their arguments, on their device.
        sources: What will make each of these again; None: it is held.
        device: Where they run.
        again: They run again; else nothing makes again what they make.

    """
    pairs = zip(taken, sources, strict=True)
    known = {id(value): source for value, source in pairs if source is not None}
    made, run = run_first(runner, operation, tuple(taken), {}, device, known, again=again)
    return made, () if run is None else run.outputs_of(made)


def may_hook(runner: Runner) -> bool:
    """Whether no one else decides what autograd keeps."""
    enabled, top = saved_hooks()
    return enabled and (top is None or top[0] == runner.hooks)


def _unpacked(runner: Runner, packed: Any) -> torch.Tensor:
    if not isinstance(packed, (Saved, View)):
        return runner.give(packed)
    if packed.value is None:
        runner.behind(packed.fetch)
    value = packed.value
    assert value is not None
    return runner.read(value, packed.device)


class SecondRuns:
    """Has some operators run again in the backward."""

    def __init__(self, keys: Collection[str], runner: Runner) -> None:
        self._keys = frozenset(keys)
        self._runner = runner
        self._made: dict[int, tuple[Any, Output, Any]] = {}  # by id: reference, and where it is

    def forget(self) -> None:
        """Forget the tensors of a forward that is over: what others do with them is theirs."""
        self._made.clear()

    def run(
        self,
        operation: Operation,
        args: Any,
        kwargs: Any,
        device: Any,
    ) -> Any:
        """Run an operator of the forward on arguments that are on its device."""
        taken = list(tensors_in((args, tuple(kwargs.values()))))
        sources = self._sources(operation.given or [], taken, device)
        again = operation.repeats and operation.key in self._keys
        again = again and is_plain(args) and is_plain(kwargs)
        again = again and not any(tensor.is_inference() for tensor in taken)
        if not (again or sources) or not may_hook(self._runner):
            return self._runner.compute(operation.call, args, kwargs, device)
        out, run = run_first(self._runner, operation, args, kwargs, device, sources, again=again)
        if run is not None:
            self._note(run, out)
        return out

    def _sources(
        self, given: list[torch.Tensor], taken: list[torch.Tensor], device: Any
    ) -> dict[int, Source]:
        if not self._made or len(given) != len(taken):
            return {}
        sources: dict[int, Source] = {}
        for before, tensor in zip(given, taken, strict=True):
            known = self._made.get(id(before))
            if known is not None and known[0]() is before:
                at = known[2] if before is tensor else device
                sources[id(tensor)] = known[1].at(at)
        return sources

    def _note(self, run: Run, out: Any) -> None:
        made = self._made
        for position, tensor in enumerate(tensors_in(out)):
            output = run.output(position)
            key = id(tensor)

            def gone(reference: Any, key: int = key) -> None:
                if key in made and made[key][0] is reference:
                    del made[key]

            made[key] = weakref.ref(tensor, gone), output, run.device
