# SPDX-License-Identifier: Apache-2.0
"""Forward hooks by which placed modules bring what they read to their devices.

Paper 4.3.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.utils.hooks import RemovableHandle

from baechi.torch.capture.recorder import behind
from baechi.torch.private import skip_code
from baechi.torch.where.drawn import Drawn, in_many_threads, in_one_thread
from baechi.torch.where.homes import Homes
from baechi.torch.where.mode import Together, in_backward
from baechi.torch.where.moving import listed, map_tensors, moved, sent

_CPU = torch.device("cpu")


class _Entered(threading.local):
    """What has entered the function mode in this thread: the outermost placed module of a call."""

    def __init__(self) -> None:
        self.by: Enter | None = None
        self.again = 0  # how often that module was entered since
        self.device: torch.device | None = None  # where it was called
        self.behind: list[Any] = []  # the nodes of autograd that gave it what it reads
        self.is_again = False  # a checkpoint runs it again: its caller is inside of a call
        self.drawn: Drawn | None = None  # of the call, or of that whose backward runs


_entered = _Entered()


class Enter:
    """A forward pre-hook: the outermost placed module of a call enters the function mode."""

    def __init__(self, devices: Sequence[torch.device], *, away: bool = False) -> None:
        self.mode = Together(devices, away=away)
        self.back = Together(devices, away=away, back=True)
        self.first = devices[0]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Enter the mode unless it has been."""
        if _entered.by is None:
            _entered.by = self
            _entered.device = first_device((args, kwargs), self.mode.devices)
            if not torch.compiler.is_compiling():
                _entered.behind = nodes_of((args, kwargs))
                _entered.is_again = in_backward()
                self.draw((args, kwargs))
            self.mode.__enter__()
            return
        if _entered.by is self:
            _entered.again += 1
        if not torch.compiler.is_compiling() and _entered.drawn and not _entered.is_again:
            _entered.drawn.note(self, (args, kwargs))

    def draw(self, given: Any) -> None:
        """Note generators' states, or put back those that are noted."""
        if _entered.is_again:
            if _entered.drawn is not None:
                _entered.drawn.put_back(self, given)
            return
        if _entered.drawn is not None:
            _entered.drawn.end()  # of a backward that was broken off
        if len(self.mode.devices) > 1 and torch.is_grad_enabled():
            _entered.drawn = Drawn(self.mode.devices)
            _entered.drawn.note(self, given)
        else:
            _entered.drawn = None


class Leave:
    """A forward hook, called always: who has entered the mode leaves it, and its output comes back.

    It comes to the device of the first tensor of the call; where the batch was on the host, to the
    first of the plan's. Of an output that begins with a scalar, its loss, only scalars come.
    """

    def __init__(self, enter: Enter) -> None:
        self.enter = enter

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        """Leave the mode if this module has entered it."""
        if _entered.by is not self.enter:
            return output
        if _entered.again > 0:
            _entered.again -= 1
            return output
        self.enter.mode.__exit__(None, None, None)
        device = _entered.device or self.enter.first
        _entered.by = _entered.device = None
        if not torch.compiler.is_compiling():
            drawn = None if _entered.is_again else _entered.drawn
            follow_backward(self.enter.back, nodes_of(output), _entered.behind, drawn)
            _entered.behind = []
            if _entered.is_again:
                return output
        return returned(output, device, self.enter.mode.devices)


class Bring:
    """A forward pre-hook: the arguments of a module come to a device.

    A module of the user's own may change its arguments in place, which must not be lost on a copy:
    they stay where they are, and the mode brings together what each function reads.
    """

    def __init__(self, device: torch.device | None, devices: Iterable[torch.device]) -> None:
        self.device = device
        # What is on the host is never of use to a module with weights elsewhere.
        self.devices = frozenset(devices) | (frozenset() if device is None else {_CPU})

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        """Return the arguments where the module runs."""
        device = self.device
        if device is None:
            device = first_device((args, kwargs), self.devices)
        return moved((args, kwargs), device, self.devices)


class BringBatch:
    """The model's own forward pre-hook: a batch that is all on the host comes to a device."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = list(devices)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        """Return the arguments, on a device of the plan where none of them was."""
        return batch_on((args, kwargs), self.devices)


def batch_on(batch: Any, devices: Sequence[torch.device]) -> Any:
    """Return a batch that is all on the host on the first device; another one as it is."""
    if first_device(batch, devices) is not None:
        return batch
    return moved(batch, devices[0], {_CPU})


def returned(output: Any, device: torch.device, among: frozenset[torch.device]) -> Any:
    """Return an output on a device; of one that begins with a scalar, its loss, the scalars.

    What a loss was made of, such as logits, is large, and hardly anybody reads it.
    """
    is_loss = [tensor.dim() for tensor in listed(output)][:1] == [0]

    def move(tensor: torch.Tensor) -> torch.Tensor:
        stays = tensor.device == device or tensor.device not in among
        return tensor if stays or (is_loss and tensor.dim() > 0) else sent(tensor, device)

    return map_tensors(move, output)


for _hook in (Enter, Leave, Bring, BringBatch):
    skip_code(_hook.__call__.__code__)  # a graph has it inside, or none has it


def first_device(value: Any, among: Iterable[torch.device]) -> torch.device | None:
    """Return the device of the first tensor that is on one of some devices."""
    for tensor in listed(value):
        if tensor.device in among:
            return tensor.device
    return None


def nodes_of(value: Any) -> list[Any]:
    """Return the nodes of autograd that gave the tensors of a value."""
    return [tensor.grad_fn for tensor in listed(value)]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def follow_backward(
    mode: Together, first: Iterable[Any], ends: Iterable[Any], drawn: Drawn | None
) -> None:
    """Have what Python runs in a backward read on one device, too.

    That is the backward of a function that has its own, and what a checkpoint computes again. One
    thread runs such a backward.
    """
    if len(mode.devices) > 1:
        in_one_thread()

    def enter(_: Any) -> None:
        _entered.drawn = drawn or _entered.drawn
        mode.__enter__()

    def leave(*_: Any) -> None:
        mode.__exit__(None, None, None)
        if drawn is not None:
            drawn.end()

    for node in behind(first, ends):
        if isinstance(node, FunctionCtx) or not hasattr(node, "variable"):  # no gradient's sum
            node.register_prehook(enter)
            node.register_hook(leave)


def is_torchs_own(module: nn.Module) -> bool:
    """Tell whether a module's class is PyTorch's, which changes no argument of one with weights."""
    return type(module).__module__.startswith("torch.nn.")


class Installed:
    """A model whose hooks are in place and whose weights are on their devices, until `remove`."""

    def __init__(self, homes: Homes, handles: list[RemovableHandle]) -> None:
        self.homes = homes
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks away and bring the weights back to where they were."""
        in_many_threads()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.homes.move_back()


def install(model: nn.Module, homes: Homes, devices: Sequence[torch.device]) -> Installed:
    """Bring a model's weights to their devices, and hook its modules."""
    homes.move()
    handles: list[RemovableHandle] = []
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        leaf = next(module.children(), None) is None
        home = homes.of_module(module, path)
        if is_torchs_own(module) and (home is not None or leaf):
            handles.append(_before(module, Bring(home, devices)))
        if module is model:
            handles.append(_before(module, BringBatch(devices)))
        if module is model or home is not None or not leaf:
            enter = Enter(devices, away=bool(homes.runs_on))
            handles.append(_before(module, enter))
            handles.append(module.register_forward_hook(Leave(enter), always_call=True))
    return Installed(homes, handles)


def _before(module: nn.Module, hook: Any) -> RemovableHandle:
    return module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
