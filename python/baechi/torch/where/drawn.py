# SPDX-License-Identifier: Apache-2.0
"""Drawn numbers of modules: what a checkpoint runs again eagerly draws them once more.

PyTorch's checkpoint puts back the generators of the host and of the devices where its arguments
are. Its modules may be on others, and draw as they did from where they begin; so does the whole
model in a checkpoint of its caller's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from baechi._core import InputError
from baechi.torch.where.mode import in_backward
from baechi.torch.where.moving import listed, map_tensors

States = dict[torch.device, torch.Tensor]


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
            if differ(states, others):
                raise InputError(
                    "torch.utils.checkpoint: a module that was called several times, and drew "
                    "random numbers, runs again outside of graphs, and nothing tells which call "
                    "it is: give each call a checkpoint of its own"
                )
        for device, now in states_of(self.devices).items():
            if differ({device: now}, states):  # else a checkpoint has put it back itself
                self._now.setdefault(device, now)
                put_states({device: states[device]})

    def end(self) -> None:
        """Have what follows draw as if nothing had run again."""
        put_states(self._now)
        self._now = {}


class _Repeated(threading.local):
    """What runs again in this thread."""

    call = False  # a backward calls a whole model
    threads: Any = None  # of backwards, what switched them off


_repeated = _Repeated()


def in_one_thread() -> None:
    """Have backwards run in one thread.

    Two of PyTorch's, one for each device, may both run again what one checkpoint has, which is none
    of theirs, or two checkpoints that both put back generators.
    """
    if _repeated.threads is None:
        _repeated.threads = torch.autograd.set_multithreading_enabled(False)


def in_many_threads() -> None:
    """Undo `in_one_thread`."""
    if _repeated.threads is not None:
        torch.autograd.set_multithreading_enabled(_repeated.threads.prev)
        _repeated.threads = None


class _Token:
    """Is alive as long as the graph of a call."""


@dataclass(frozen=True)
class _Begun:
    """A call that has begun."""

    before: bool  # of `_repeated.call`
    known: Sequence[torch.device] = ()  # those whose generators a checkpoint puts back
    seen: int = 0  # of their states
    states: States = field(default_factory=dict)  # of the others
    now: States = field(default_factory=dict)  # of those in a call that is repeated


class Calls:
    """Calls of a whole model, which draws the same numbers when a checkpoint calls it again.

    A call is known by the states of the generators that a checkpoint puts back. One that has drawn
    from others alone draws once more from the batch's, so that no other call is alike.
    """

    MOST = 1000  # of those without gradients, whose end nothing tells

    def __init__(self, devices: Collection[torch.device]) -> None:
        self.devices = devices
        self._calls: dict[int, tuple[States, weakref.ref[_Token] | None]] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self, given: Any) -> _Begun:
        """Begin a call with its arguments; one that a checkpoint repeats draws as it did."""
        before, _repeated.call = _repeated.call, _repeated.call or in_backward()
        if len(self.devices) < 2:
            return _Begun(before)
        batch = [d for d in {t.device: None for t in listed(given)} if d in self.devices]
        others = [d for d in self.devices if d not in batch and d.type != "cpu"]
        known = [*batch, torch.device("cpu")]
        seen, states = _digest(known), states_of(others)
        first, graph = self._calls.get(seen, (states, None))
        if graph is not None and graph() is None:
            first = states
        again = differ(first, states)
        if again:
            put_states(first)
        return _Begun(before, known, seen, first, states if again else {})

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def note(self, begun: _Begun, result: Any) -> None:
        """Note what a call has drawn from, given its result."""
        if not begun.known:
            return
        after, more = _digest(begun.known), differ(begun.states, states_of(begun.states))
        if more and after == begun.seen:
            outside(torch.rand, (), device=begun.known[0])
        if more:
            self._keep(begun.seen, begun.states, _lifetime(result))
        if more or after != begun.seen:
            in_one_thread()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def end(self, begun: _Begun) -> None:
        """Have what follows draw as if a call had not been repeated."""
        put_states(begun.now)
        _repeated.call = begun.before

    def _keep(self, seen: int, states: States, graph: weakref.ref[_Token] | None) -> None:
        """Keep what a call began with, until its graph is gone."""
        if len(self._calls) >= 2 * self.MOST:
            endless = [seen for seen, (_, graph) in self._calls.items() if graph is None]
            gone = [seen for seen, (_, graph) in self._calls.items() if graph and graph() is None]
            for old in (*endless[: -self.MOST], *gone):
                del self._calls[old]
        self._calls[seen] = states, graph


def _digest(devices: Sequence[torch.device]) -> int:
    """Return what tells generators' states from others."""
    states = states_of(devices).items()
    return hash((*((device, state.numpy().tobytes()) for device, state in states),))


def _lifetime(result: Any) -> weakref.ref[_Token] | None:
    """Return what is alive as long as the graph behind a result; None where it has none."""
    for tensor in listed(result):
        if tensor.grad_fn is not None:
            return weakref.ref(tensor.grad_fn.metadata.setdefault(_Token, _Token()))
    return None


def outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in no dispatch mode: that of a selective checkpoint would see its tensors.

    Modes are of a thread, so another one is in none.
    """
    if not is_in_torch_dispatch_mode():
        return function(*args, **kwargs)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args, **kwargs).result()


def states_of(devices: Iterable[torch.device]) -> States:
    """Return the states of the generators of devices."""
    found: States = outside(lambda: {device: state_of(device) for device in devices})
    return found


def put_states(states: States) -> None:
    """Put back the states of generators."""

    def put() -> None:
        for device, state in states.items():
            set_state(device, state)

    if states:
        outside(put)


def differ(some: States, others: States) -> bool:
    """Tell whether generators would draw other numbers."""
    return any(state.numpy().tobytes() != others[d].numpy().tobytes() for d, state in some.items())


def state_of(device: torch.device) -> torch.Tensor:
    """Return the state of a device's generator."""
    if device.type == "cpu":
        return torch.get_rng_state()
    found: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return found


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Put back the state of a device's generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _memory_of(given: Any) -> list[Hashable]:
    """Return what tells the arguments of one call from those of another."""
    found: list[Hashable] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        try:
            address = tensor.data_ptr()
        except (RuntimeError, NotImplementedError):  # of what has none: sparse, inside torch.func
            address = id(tensor)
        found.append((address, tensor._version, tensor.shape))
        return tensor

    map_tensors(look, given)
    return found
