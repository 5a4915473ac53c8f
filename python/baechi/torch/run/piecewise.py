# SPDX-License-Identifier: Apache-2.0
"""Updates of weights that are away: piece by piece on their devices, by PyTorch's own optimizers.

Beyond the paper. Weight, gradient and state of a piece come to the device, the optimizer runs on
them there, and weight and state go back, while the next piece comes. Each is on a stream of its
own; the memory belongs to the stream that computes, which waits for a piece to be gone. PyTorch's
optimizers change weights and state in place and gradients not at all, and count steps by weight.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from baechi._core import InputError
from baechi.torch.graph.optimizers import BY_PIECES, updates_of
from baechi.torch.program.peaks import whole
from baechi.torch.where.pinned import pin

_WAY_OUT = "have it update them on the host, without placed.optimizer"
_PIECES = 16  # of what a device updates, at least: the first comes, and the last goes, alone

# What each device updates of what is on the host, and how many bytes are free there.
Room = Mapping[torch.device, tuple[int, Sequence[torch.Tensor]]]


def piecewise(
    kind: Any, params: Any, options: dict[str, Any], room: Callable[[], Room]
) -> Optimizer:
    """Make an optimizer that updates weights on devices that do not keep them.

    The ``kind`` is a class of `BY_PIECES`, with its arguments; ``room`` is asked in each step.
    """
    if kind not in BY_PIECES:
        given = kind if isinstance(kind, type) else type(kind)
        raise InputError(
            f"{given.__name__} is none of the optimizers that go by pieces "
            f"({', '.join(sorted(one.__name__ for one in BY_PIECES))}), of whose updates it is "
            f"known that they read one weight, its gradient and its state: {_WAY_OUT}"
        )
    optimizer: Optimizer = kind(params, **options)
    _check(optimizer)
    try:
        kept = updates_of(optimizer).kept
    except InputError:  # its step fails without values
        kept = updates_of("adam").kept
    about: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__, "kind": kind}
    about |= {"room": staticmethod(room), "kept": staticmethod(kept)}
    optimizer.__class__ = type(kind.__name__, (_Piecewise, kind), about)
    vars(optimizer).pop("_step_supports_amp_scaling", None)  # kernels of one device scale gradients
    optimizer.__setstate__({})  # its hooks run once in a step
    return optimizer


def kind_of(optimizer: Optimizer) -> type[Optimizer]:
    """Return the class that an optimizer was made by."""
    return optimizer.kind if isinstance(optimizer, _Piecewise) else type(optimizer)


def _check(optimizer: Optimizer) -> None:
    """Raise InputError for options by which a step stays where it began; groups may come later."""
    for group in optimizer.param_groups:
        for option in ("capturable", "differentiable"):
            if group.get(option):
                raise InputError(
                    f"{option}=True: updates by pieces are neither captured nor differentiated; "
                    f"{_WAY_OUT}"
                )


class _Piecewise(Optimizer):
    """What stands before an optimizer's class."""

    kind: type[Optimizer]
    room: Callable[[], Room]
    kept: Callable[[torch.Tensor], tuple[int, ...]]  # bytes beside a weight
    _refused = False  # to pin more

    def __reduce_ex__(self, _: Any) -> Any:
        """Elsewhere it is one of its own kind: no model is placed there."""
        return object.__new__, (self.kind,), self.__getstate__()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one update of all weights."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._update()
        return loss

    def _update(self) -> None:
        _check(self)
        run = _Run(self)
        memories = Counter(map(_memory, run.params))
        alone = {id(p) for p in run.params if _is_plain(p) and memories[_memory(p)] == 1}
        lanes = [
            _Lane(device, run, free, [p for p in those if id(p) in alone])
            for device, (free, those) in self.room().items()
        ]
        there = {id(p) for lane in lanes for piece in lane.pieces for p in piece.params}
        for lane in lanes:
            lane.take([p for p in run.params if p.device == lane.device])
        taken = there.union(*(lane.own for lane in lanes))
        try:
            for lane in lanes:
                lane.update()
            # On the host, meanwhile; there are those without a gradient, too.
            run(p for those in run.all for p in those if id(p) not in taken)
        finally:
            for lane in lanes:
                lane.end()
        if not self._refused:
            why = pin(one for p in run.params if id(p) in there for one in run.kept_of(p).values())
            self._refused = why is not None
            if why is not None:
                warnings.warn(
                    f"the optimizer's state on the host is not all in pinned memory: {why}",
                    stacklevel=4,
                )


class _Run:
    """One step: runs an optimizer's own update of some weights, in all groups."""

    def __init__(self, optimizer: _Piecewise) -> None:
        self.optimizer, self.groups = optimizer, optimizer.param_groups
        self.all = [group["params"] for group in self.groups]
        self.params = [p for those in self.all for p in those if p.grad is not None]
        self._step: Any = optimizer.kind.step.__wrapped__
        self._fused = {
            id(p) for group in self.groups if group.get("fused") for p in group["params"]
        }

    def __call__(self, params: Iterable[torch.Tensor]) -> None:
        """Update weights, each with its gradient and state where it is now."""
        chosen = {id(p) for p in params}
        if not chosen and self.params:
            return
        for group, every in zip(self.groups, self.all, strict=True):
            group["params"] = [p for p in every if id(p) in chosen]
        try:
            self._step(self.optimizer)
        finally:
            for group, every in zip(self.groups, self.all, strict=True):
                group["params"] = every

    @property
    def state(self) -> dict[Any, Any]:
        """What the optimizer keeps beside weights."""
        return self.optimizer.state

    def kept_of(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a weight that updates read where the weight is.

        As for `load_state_dict` that is all but the number of steps, unless a kernel counts it.
        """
        found = self.state.get(p, {}).items()
        tensors = {key: one for key, one in found if isinstance(one, torch.Tensor)}
        if id(p) not in self._fused:
            tensors.pop("step", None)
        return tensors

    def has_state(self, p: torch.Tensor) -> bool:
        """Tell whether an update makes no new state."""
        return bool(self.state.get(p)) or not self.optimizer.kept(p)

    def bytes_of(self, p: torch.Tensor) -> int:
        """Return what an update of a weight takes on a device."""
        kept = [one.nbytes for one in self.kept_of(p).values()]
        own = whole(p.nbytes)  # beside it its gradient, and what updates make on their way
        return 4 * own + sum(map(whole, kept or self.optimizer.kept(p)))


class _Piece:
    """Weights that are updated together."""

    def __init__(self) -> None:
        self.params: list[torch.Tensor] = []
        self.bytes = 0
        self.there: list[_There] = []
        self.event: torch.Event | None = None  # it has come, or gone


@dataclass
class _There:
    """What is on a device of one weight."""

    weight: torch.Tensor
    gradient: torch.Tensor
    state: dict[str, Any]


class _Lane:
    """The pieces of one device."""

    def __init__(
        self, device: torch.device, run: _Run, free: int, params: Sequence[torch.Tensor]
    ) -> None:
        self.device, self._run, self._free = device, run, free
        costs = [run.bytes_of(p) for p in params]
        most = min(free // 4, -(-sum(costs) // _PIECES))
        self.pieces: list[_Piece] = []
        for p, cost in zip(params, costs, strict=True):
            if cost > free:
                continue  # the host updates it
            if not self.pieces or self.pieces[-1].bytes + cost > most:
                self.pieces.append(_Piece())
            self.pieces[-1].params.append(p)
            self.pieces[-1].bytes += cost
        self._between: deque[Sequence[torch.Tensor]] = deque()
        self._here: deque[_Piece] = deque()
        self._leaving: deque[_Piece] = deque()
        self._comes, self._goes = torch.Stream(device), torch.Stream(device)

    def take(self, params: Sequence[torch.Tensor]) -> None:
        """Have weights that the device keeps updated between pieces, if there is room for it."""
        if not self.pieces or not all(self._run.has_state(p) for p in params):
            return
        parts = [params[i :: len(self.pieces)] for i in range(len(self.pieces))]
        need = max(sum(2 * whole(p.nbytes) for p in part) for part in parts)  # on their way
        if max(piece.bytes for piece in self.pieces) <= self._free - need:
            self._free -= need
            self._between.extend(parts)

    @property
    def own(self) -> set[int]:
        """Which weights those are."""
        return {id(p) for params in self._between for p in params}

    def update(self) -> None:
        """Ask for all of it, never for more than is free."""
        if not self.pieces:
            return
        with torch.accelerator.device_index(self.device.index):
            for piece in self.pieces:
                while self._free < piece.bytes:
                    self._work() if self._here and not self._leaving else self._let_go()
                self._fetch(piece)
                if len(self._here) > 1:
                    self._work()
                if len(self._leaving) > 1:
                    self._let_go()
            while self._here:
                self._work()
            while self._leaving:
                self._let_go()

    def end(self) -> None:
        """Wait until everything is on the host."""
        if self.pieces:
            self._comes.synchronize()
            self._goes.synchronize()

    def _fetch(self, piece: _Piece) -> None:
        self._free -= piece.bytes
        brought: list[tuple[torch.Tensor, torch.Tensor]] = []

        def room(host: torch.Tensor) -> torch.Tensor:
            made = torch.empty_like(host, device=self.device)
            brought.append((made, host))
            return made

        for p in piece.params:
            assert p.grad is not None
            state = {key: room(one) for key, one in self._run.kept_of(p).items()}
            state = {**self._run.state.get(p, {}), **state}
            piece.there.append(_There(room(p.data), room(p.grad), state))
        # Who had this memory before has been asked for by now.
        self._comes.wait_event(self._computing().record_event())
        with self._comes:
            for made, host in brought:
                made.copy_(host, non_blocking=True)
        piece.event = self._comes.record_event()
        self._here.append(piece)

    def _work(self) -> None:
        piece = self._here.popleft()
        computing = self._computing()
        computing.wait_event(piece.event)
        homes = [(p.data, p.grad, self._run.state.get(p, {})) for p in piece.params]
        for p, there in zip(piece.params, piece.there, strict=True):
            _set(p, there.weight, there.gradient)
            self._run.state[p] = there.state
        try:
            self._run(piece.params)
        finally:
            for p, (weight, gradient, state) in zip(piece.params, homes, strict=True):
                _set(p, weight, gradient)
                self._run.state[p] = state
        self._goes.wait_event(computing.record_event())
        with self._goes:
            for there, (weight, _, state) in zip(piece.there, homes, strict=True):
                weight.copy_(there.weight, non_blocking=True)
                for key, value in there.state.items():
                    if not isinstance(value, torch.Tensor) or value.device != self.device:
                        state[key] = value
                        continue
                    if key not in state:
                        state[key] = torch.empty_like(value, device="cpu")
                    state[key].copy_(value, non_blocking=True)
        piece.event = self._goes.record_event()
        self._leaving.append(piece)
        if self._between:
            self._run(self._between.popleft())

    def _let_go(self) -> None:
        piece = self._leaving.popleft()
        self._computing().wait_event(piece.event)
        piece.there.clear()
        self._free += piece.bytes

    def _computing(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)


def _set(p: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Have a weight show other memory, and its gradient with it; it stays the same object."""
    p.grad = None
    p.data = weight
    p.grad = gradient


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if _is_plain(tensor) else id(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a weight on the host, and its gradient, are ordinary tensors."""
    both = tensor, tensor.grad
    return all(
        one is not None and one.device.type == "cpu" and one.layout == torch.strided for one in both
    ) and type(tensor) in (torch.Tensor, torch.nn.Parameter)
