# SPDX-License-Identifier: Apache-2.0
"""Drawn numbers of modules: what a checkpoint runs again eagerly draws them once more.

PyTorch's checkpoint puts back the generators of the host and of the devices where its arguments
are. Its modules may be on others, and draw as they did from where they begin; so does the whole
model in a checkpoint of its caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from baechi._core import InputError
from baechi.torch.private import graph_task
from baechi.torch.where.moving import listed

States = dict[torch.device, bytes]


class Drawn:
    """The states of all generators when the modules of one call of a model began."""

    def __init__(self, devices: Collection[torch.device]) -> None:
        self.devices = devices
        self._begun: dict[Hashable, list[tuple[list[Hashable], States]]] = {}
        self._now: States = {}  # those to go back to, while a checkpoint runs again

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def note(self, module: Hashable, given: Any) -> None:
        """Note that a module begins."""
        self._begun.setdefault(module, []).append((_memory_of(given), states_of(self.devices)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def put_back(self, module: Hashable, given: Any) -> None:
        """Have a module that begins again draw what it drew."""
        if _repeated.call:  # whose numbers are put back already
            return
        begun = self._begun.get(module, [])
        if len(begun) > 1:
            memory = _memory_of(given)
            begun = [one for one in begun if one[0] == memory] or begun
        if not begun:
            return
        states = begun[0][1]
        for _, others in begun[1:]:
            if states != others:
                raise InputError(
                    "torch.utils.checkpoint: a module that was called several times, and drew "
                    "random numbers, runs again outside of graphs, and nothing tells which call "
                    "it is: give each call a checkpoint of its own"
                )
        for device, now in states_of(self.devices).items():
            if now != states[device]:  # else a checkpoint has put it back itself
                self._now.setdefault(device, now)
                put_states({device: states[device]})

    def end(self) -> None:
        """Have what follows draw as if nothing had run again."""
        put_states(self._now)
        self._now = {}


class _Repeated(threading.local):
    """What runs again in this thread."""

    call = False  # a backward calls a whole model
    by_program = False  # and it ran by programs, whatever its batch is now
    threads = False  # of backwards were switched off


_repeated = _Repeated()


def in_one_thread() -> None:
    """Have backwards run in one thread.

    Two of PyTorch's, one for each device, may both run again what one checkpoint has, which is none
    of theirs, or two checkpoints that both put back generators.
    """
    _repeated.threads |= torch.autograd.set_multithreading_enabled(False).prev


def in_many_threads() -> None:
    """Undo `in_one_thread`."""
    if _repeated.threads:
        torch.autograd.set_multithreading_enabled(True)
        _repeated.threads = False


def repeats_programs() -> bool:
    """Tell whether a call is repeated that has drawn in programs, not eagerly."""
    return _repeated.by_program


@dataclass
class _Call:
    """A call that drew random numbers."""

    known: Sequence[torch.device]  # those whose generators a checkpoint around it puts back
    states: States  # of the others
    by_program: bool  # its batch was no leaf that wants a gradient
    following: int | None = None  # what the next one is known by


@dataclass(frozen=True)
class _Begun:
    """A call that has begun."""

    before: tuple[bool, bool]  # of `_repeated`
    key: int = 0  # what it is known by
    seen: int = 0  # of the generators that a checkpoint puts back
    call: _Call | None = None
    now: States | None = None  # the states of the others before, if it is repeated


class Calls:
    """Calls of a whole model, which draws the same numbers when a checkpoint calls it again.

    A call is known by the states of the generators that a checkpoint puts back. One that has drawn
    from others alone draws once more from the batch's, so that no other call is alike.
    """

    MOST = 10_000  # so many are kept: nothing tells which ones a checkpoint still repeats

    def __init__(self, devices: Collection[torch.device]) -> None:
        self.devices = devices
        self._calls: dict[int, _Call] = {}
        self._newest: int | None = None
        self._last = (-1, 0)  # that was repeated: the backward, and what it is known by

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self, given: Any) -> _Begun:
        """Begin a call with its arguments; one that a checkpoint repeats draws as it did."""
        before = _repeated.call, _repeated.by_program
        _repeated.call |= graph_task() != -1
        if len(self.devices) < 2:
            return _Begun(before)
        tensors = listed(given)
        batch = [d for d in {t.device: None for t in tensors} if d in self.devices]
        others = [d for d in self.devices if d not in batch and d.type != "cpu"]
        known = [*batch, torch.device("cpu")]
        key = seen = _digest(known)
        now = None
        is_leaf = any(t.requires_grad and t.is_leaf for t in tensors)
        call = _Call(known, states_of(others), not is_leaf)
        if graph_task() != -1 and (found := self._found(key)) is not None:
            key, call = found
            now = states_of(call.states)
            put_states(call.states)
            _repeated.by_program, seen = call.by_program, _digest(call.known)
        return _Begun(before, key, seen, call, now)

    def _found(self, key: int) -> tuple[int, _Call] | None:
        """Return which call a backward repeats: one in which it begins alike, or the next."""
        task, last = self._last
        if key not in self._calls and task == graph_task() and last in self._calls:
            # Between calls in one checkpoint tensors stay where they are: the batch's device is one
            # that the checkpoint does not put back.
            key = self._calls[last].following or key
        return (key, self._calls[key]) if key in self._calls else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def note(self, begun: _Begun) -> None:
        """Note what a call has drawn from."""
        if (call := begun.call) is None:
            return
        others, alike = states_of(call.states) == call.states, _digest(call.known) == begun.seen
        if others and alike:
            return
        if alike:
            outside(torch.rand, (), device=call.known[0])
        in_one_thread()
        if graph_task() != -1:
            self._last = graph_task(), begun.key
            self._calls.setdefault(begun.key, call)
            return
        if self._newest in self._calls:
            self._calls[self._newest].following = begun.key
        self._calls.pop(begun.key, None)
        self._calls[begun.key] = call
        self._newest = begun.key
        if len(self._calls) > self.MOST:
            del self._calls[next(iter(self._calls))]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def end(self, begun: _Begun) -> None:
        """Have what follows draw as if a call had not been repeated."""
        put_states(begun.now or {})
        _repeated.call, _repeated.by_program = begun.before


def _digest(devices: Iterable[torch.device]) -> int:
    """Return what tells generators' states from others."""
    return hash((*states_of(devices).items(),))


def outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in no mode and no transform, which would see its tensors.

    Those of selective checkpoints and of torch.func are of a thread, so another one is in none.
    """
    if not is_in_torch_dispatch_mode():
        try:
            return function(*args, **kwargs)
        except RuntimeError:  # inside of torch.func
            pass
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args, **kwargs).result()


def states_of(devices: Iterable[torch.device]) -> States:
    """Return the states of the generators of devices."""
    return outside(lambda: {d: state_of(d).numpy().tobytes() for d in devices})


def put_states(states: States) -> None:
    """Put back the states of generators."""

    def put() -> None:
        for device, state in states.items():
            set_state(device, torch.frombuffer(bytearray(state), dtype=torch.uint8))

    if states:
        outside(put)


def state_of(device: torch.device) -> torch.Tensor:
    """Return the state of a device's generator."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Put back the state of a device's generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _memory_of(given: Any) -> list[Hashable]:
    """Return what tells the arguments of one call from those of another."""

    def address(tensor: torch.Tensor) -> int:
        try:
            return tensor.data_ptr()
        except (RuntimeError, NotImplementedError):  # of what has none: sparse, inside torch.func
            return id(tensor)

    return [(address(tensor), tensor._version, tensor.shape) for tensor in listed(given)]
