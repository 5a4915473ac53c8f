# SPDX-License-Identifier: Apache-2.0
"""A function mode that brings together what one function reads from several devices of a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils.checkpoint import checkpoint

from baechi.torch.capture.begun import SEED, marked
from baechi.torch.private import skip_code
from baechi.torch.where.functions import (
    CHANGED,
    FACTS,
    GRADIENTS,
    HOST,
    IN_PLACE,
    INPLACE,
    LEFT_ALONE,
    ONE_BY_ONE,
)
from baechi.torch.where.moving import map_tensors, moved, sent

_CPU = torch.device("cpu")


class _Programs(threading.local):
    """How many programs run in this thread, each inside the one before."""

    running = 0


_programs = _Programs()


class Aside:
    """A context in which the mode does nothing: what runs is a program, which sends by itself.

    Where dynamo ends a graph early, it runs the graph with the mode entered.
    """

    def __enter__(self) -> None:
        """Begin."""
        _programs.running += 1

    def __exit__(self, *error: object) -> None:
        """End."""
        _programs.running -= 1


class Together(TorchFunctionMode):
    """Functions read what they are given on one device.

    It is that of the tensor that they change, else of the first tensor that they read. What is on
    no device of the plan (the host, usually) stays there.
    """

    def __init__(
        self,
        devices: Collection[torch.device],
        *,
        away: bool = False,
        back: bool = False,
        inside: bool = False,
    ) -> None:
        super().__init__()
        # The mode of what a checkpoint runs, in which dynamo is to see no change in place.
        self.inside = None if inside else Together(devices, away=away, back=back, inside=True)
        self.devices = frozenset(devices)
        self.away = next(iter(devices)) if away else None  # where only what is away is read
        self.back = back  # whether it is that of a backward

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function with its tensors on one device."""
        kwargs = kwargs or {}
        if func is in_backward:
            return self.back
        if not torch.compiler.is_compiling() and _programs.running:
            return func(*args, **kwargs)
        begun = None if self.inside is None else marked(func, args, kwargs, SEED)
        if begun is not None:
            return begun
        if func is checkpoint and torch.compiler.is_compiling():  # what it runs is to have the mode
            given = dict(kwargs)
            function = args[0] if args else given.pop("function")
            if kwargs.get("use_reentrant") is not False and not any(map(wants_gradient, args[1:])):
                with torch.no_grad():  # as in PyTorch, whose graphs would give gradients
                    return function(*args[1:])

            def run(*args: Any, **kwargs: Any) -> Any:
                with mode:
                    return function(*args, **kwargs)

            mode = self.inside or self
            with mode:  # dynamo allows that inside of a checkpoint if it was done before
                pass
            return func(run, *args[1:], **given)
        found = devices_in((*args, *kwargs.values()), [])
        is_away = self.away is not None and _CPU in found
        if is_away and func not in LEFT_ALONE and func not in GRADIENTS:
            if self.changes_what_is_away(func, args, kwargs):
                result = func(*(here := moved((args, kwargs), _CPU, self.devices))[0], **here[1])
                if not torch.compiler.is_compiling():
                    give_back((args, kwargs), here)
                is_changed = any(result is value for value in (*args[:1], *kwargs.values()))
                return result if is_changed else moved(result, self.away, {_CPU})
            args, kwargs = self.with_weights(func, args, kwargs)
            found = devices_in((*args, *kwargs.values()), [])
        if func is torch.Tensor.to:
            args, kwargs = self.without_move(args, kwargs)
            return func(*args, **kwargs)
        if func in HOST and len(args) > 1 and getattr(args[1], "dtype", None) == torch.int64:
            args = (args[0], moved(args[1], _CPU, self.devices), *args[2:])
        if func is torch.Tensor.register_hook and not torch.compiler.is_compiling():
            return func(args[0], _Hook(self.devices, args[1] if args[1:] else kwargs["hook"]))
        if len([d for d in found if d in self.devices]) < 2 or func in LEFT_ALONE:
            return func(*args, **kwargs)
        if func in GRADIENTS:
            return func(*self.with_gradients(func, args, kwargs), **kwargs)
        device = self.device_for(func, args, kwargs)
        brought = (
            _on(args, device, self.devices),
            {name: _on(value, device, self.devices) for name, value in kwargs.items()},
        )
        result = func(*brought[0], **brought[1])
        if not torch.compiler.is_compiling():
            give_back((args, kwargs), brought)
        return result

    def with_weights(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return arguments with copies of what is away, on the device of the others.

        Beside tensors of a device that is all that is on the host, as buffers may be.
        """
        read = list(read_by(args, kwargs))
        here = [tensor for tensor in read if tensor.device == _CPU]
        there = [tensor.device for tensor in read if tensor.device in self.devices]
        if not here or (func in FACTS and not there):
            return args, kwargs
        weights = any(isinstance(tensor, nn.Parameter) for tensor in here)
        together = (there or weights) and func is not torch.Tensor.to
        device = there[0] if there else self.away

        def brought(tensor: torch.Tensor) -> torch.Tensor:
            is_weight = isinstance(tensor, nn.Parameter)
            comes = tensor.device == _CPU and (is_weight or (together and tensor.dim() > 0))
            return sent(tensor, device) if comes else tensor

        return map_tensors(brought, (args, kwargs))

    def changes_what_is_away(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Tell whether a function has to run on the host, since it changes a tensor there."""
        changed: list[Any] = [kwargs.get("out")]
        first = args[0] if args else next(iter(kwargs.values()), None)
        inplace = INPLACE.get(func)
        if func in ONE_BY_ONE or func in IN_PLACE:
            changed.append(first)
        elif inplace is not None:
            told = args[inplace] if len(args) > inplace else kwargs.get("inplace")
            changed += [first] if told else []
        elif func in (functional.embedding, functional.embedding_bag):
            # Such a table is changed itself, or has a gradient that does not come back from a copy.
            last = 3 if func is functional.embedding else 4
            for place, name in ((last, "max_norm"), (last + 3, "sparse")):
                told = args[place] if len(args) > place else kwargs.get(name)
                if told is not None and told is not False:
                    changed += [*args[1:2], kwargs.get("weight")]
        else:
            changed += self.changed_by(func, args, kwargs)
        return any(tensor.device == _CPU for tensor in read_by(changed, {}))

    def changed_by(self, func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """Return what a function changes that is not its first argument, or may change."""
        changed: list[Any] = [kwargs.get("out")]
        if func in CHANGED:
            position, name = CHANGED[func]
            changed.append(args[position] if len(args) > position else kwargs.get(name))
        elif isinstance(func, torch._ops.OpOverload):
            changed += [args[i] for i in written_by(func) if i < len(args)]
        return changed

    def device_for(self, func: Any, args: Any, kwargs: Any) -> torch.device | None:
        """Return the device of what a function changes, else of the first tensor that it reads."""
        for tensor in read_by([self.changed_by(func, args, kwargs), args], kwargs):
            if tensor.device in self.devices:
                return tensor.device
        return None

    def without_move(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of a `to` between devices of the plan with the tensor's own device.

        There it may be what it is on one device: the same tensor, which may be changed in place.
        """
        tensor, *rest = args
        name = next((n for n in ("device", "other") if n in kwargs), None)
        target = rest[0] if rest else kwargs.get(name or "")
        if tensor.device not in self.devices or isinstance(target, torch.dtype):
            return args, kwargs
        if isinstance(target, torch.Tensor):
            device, more = target.device, {"dtype": target.dtype}
            names: tuple[str, ...] = ("non_blocking", "copy")
        elif isinstance(target, (torch.device, str, int)):
            device, more, names = torch.device(target), {}, ("dtype", "non_blocking", "copy")
        else:
            return args, kwargs
        if device not in self.devices:
            return args, kwargs
        more |= dict(zip(names, rest[1:], strict=False)) | kwargs
        more.pop("other", None)
        return (tensor,), {**more, "device": tensor.device}

    def with_gradients(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return arguments whose gradients are where what they are the gradients of is.

        Those that are named are brought in `kwargs`.
        """
        position, name = GRADIENTS[func]
        of = args[0] if args else next(kwargs[n] for n in ("outputs", "tensors") if n in kwargs)
        given = args[position] if len(args) > position else kwargs.get(name)
        pair: list[Any] = [[v] if isinstance(v, torch.Tensor) else v for v in (of, given)]
        if all(isinstance(value, (list, tuple)) for value in pair):
            brought = [
                moved(b, a.device, self.devices) if isinstance(a, torch.Tensor) else b
                for a, b in zip(*pair, strict=True)
            ]
            given = brought[0] if isinstance(given, torch.Tensor) else brought
        if len(args) > position:
            return (*args[:position], given, *args[position + 1 :])
        if name in kwargs:
            kwargs[name] = given
        return tuple(args)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def written_by(func: torch._ops.OpOverload) -> list[int]:
    """Return the places of the arguments that an operator changes."""
    written = func._schema.arguments
    return [i for i, a in enumerate(written) if a.alias_info and a.alias_info.is_write]


def wants_gradient(value: Any) -> bool:
    """Tell whether a value is a tensor that requires a gradient."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def in_backward() -> bool:
    """Tell whether the mode of a backward has been entered: by asking it, if there is a mode."""
    return has_torch_function((None,)) and bool(handle_torch_function(in_backward, ()))


class _Hook:
    """A hook of a tensor, whose functions read what they are given on one device, too."""

    def __init__(
        self, devices: frozenset[torch.device], hook: Callable[[torch.Tensor], Any]
    ) -> None:
        self.devices = devices
        self.hook = hook

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        """Call the hook; what it returns is where the gradient is."""
        with Together(self.devices):
            found = self.hook(gradient)
        return found if gradient is None else moved(found, gradient.device, self.devices)


def give_back(given: tuple[Any, Any], brought: tuple[Any, Any]) -> None:
    """Copy what a function has changed on a copy to where it came from."""
    for a, b in zip(read_by(*given), read_by(*brought), strict=True):
        if a is not b and b._version:
            a.copy_(b)


def devices_in(values: Iterable[Any], found: list[torch.device]) -> list[torch.device]:
    """Add the devices of the tensors among values, and in lists and tuples among these."""
    for value in values:  # dynamo follows a loop sooner than generators
        if isinstance(value, torch.Tensor):
            if value.device not in found:
                found.append(value.device)
        elif isinstance(value, (list, tuple)):
            devices_in(value, found)
    return found


def _on(value: Any, device: torch.device | None, among: frozenset[torch.device]) -> Any:
    """Return what `moved` does; dynamo follows it sooner for what most functions are given."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device or value.device not in among else sent(value, device)
    if type(value) is list:
        return [_on(item, device, among) for item in value]
    if type(value) is tuple:
        return tuple([_on(item, device, among) for item in value])
    return moved(value, device, among)


def read_by(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, and in lists and tuples among these."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from read_by(value, {})


for _function in (
    Together.__torch_function__,
    Together.device_for,
    Together.with_weights,
    Together.changes_what_is_away,
    Together.changed_by,
    give_back,
    marked,
    sent,
):
    skip_code(_function.__code__)  # a graph has it inside, or none has it
