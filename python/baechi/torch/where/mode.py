# SPDX-License-Identifier: Apache-2.0
"""A function mode that brings together what one function reads from several devices of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from baechi.torch.private import skip_code
from baechi.torch.where.moving import map_tensors, moved, sent

_CPU = torch.device("cpu")

# What reads tensors of several devices on purpose: it asks about them, or says where one goes.
_LEFT_ALONE = {
    torch.broadcast_tensors,  # views of each, where it is
    torch.atleast_1d,
    torch.atleast_2d,
    torch.atleast_3d,
    torch.Tensor.type_as,
    torch.Tensor.copy_,
    torch.Tensor.set_,
    torch.Tensor.data.__set__,
    torch.Tensor.grad.__set__,
}


# What asks about a weight, or changes it where it is.
_FACTS = {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.stride,
    torch.Tensor.is_contiguous,
    torch.Tensor.element_size,
    torch.Tensor.data_ptr,
    torch.Tensor.detach,
    torch.Tensor.requires_grad_,
    torch.Tensor.register_hook,
}

# Functions of lists, each of whose tensors is changed where it is.
_ONE_BY_ONE = frozenset(f for name, f in vars(torch).items() if name.startswith("_foreach_"))

# Functions that read an argument on the host, which came to a device with its batch.
_HOST = {torch._VF._pack_padded_sequence: 1}

# Functions that are given gradients: each goes where what it is the gradient of is.
_GRADIENTS = {
    torch.autograd.grad: (2, "grad_outputs"),
    torch.autograd.backward: (1, "grad_tensors"),
    torch.Tensor.backward: (1, "gradient"),
}

# Functions that change an argument which is not their first, or may: where that argument is.
_CHANGED = {
    functional.batch_norm: (1, "running_mean"),
    functional.instance_norm: (1, "running_mean"),
    functional.embedding: (1, "weight"),
    functional.embedding_bag: (1, "weight"),
    torch.batch_norm: (3, "running_mean"),
    torch.instance_norm: (3, "running_mean"),
    torch.native_batch_norm: (3, "running_mean"),
    torch.batch_norm_update_stats: (1, "running_mean"),
}


class Together(TorchFunctionMode):
    """Functions read what they are given on one device.

    It is that of the tensor that they change, else of the first tensor that they read. What is on
    no device of the plan (the host, usually) stays there.
    """

    def __init__(self, devices: Iterable[torch.device], *, away: bool = False) -> None:
        super().__init__()
        self.devices = frozenset(devices)
        self.away = next(iter(devices)) if away else None  # where only what is away is read

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function with its tensors on one device."""
        kwargs = kwargs or {}
        if self.away is not None and func not in _LEFT_ALONE and func not in _FACTS:
            args, kwargs = self.with_weights(func, args, kwargs)
        if func is torch.Tensor.to:
            args, kwargs = self.without_move(args, kwargs)
            return func(*args, **kwargs)
        if func in _HOST:
            at = _HOST[func]
            args = (*args[:at], moved(args[at], _CPU, self.devices), *args[at + 1 :])
        if func is torch.Tensor.register_hook and not torch.compiler.is_compiling():
            return func(args[0], _Hook(self.devices, args[1] if args[1:] else kwargs["hook"]))
        if not self.is_apart(args, kwargs) or func in _LEFT_ALONE:
            return func(*args, **kwargs)
        if func in _ONE_BY_ONE:
            first, *others = args
            args = (first, *(self.beside(first, other) for other in others))
            return func(*args, **kwargs)
        if func in _GRADIENTS:
            return func(*self.with_gradients(func, args, kwargs), **kwargs)
        device = self.device_for(func, args, kwargs)
        brought = moved((args, kwargs), device, self.devices)
        result = func(*brought[0], **brought[1])
        if not torch.compiler.is_compiling():
            give_back((args, kwargs), brought)
        return result

    def with_weights(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return arguments with copies of what is away, on the device of the others.

        Beside tensors of a device that is all that is on the host, as buffers may be.
        """
        read = list(read_by(args, kwargs))
        if not any(tensor.device == _CPU for tensor in read):
            return args, kwargs
        there = [tensor.device for tensor in read if tensor.device in self.devices]
        together = there and func is not torch.Tensor.to
        device = there[0] if there else self.away

        def brought(tensor: torch.Tensor) -> torch.Tensor:
            is_weight = isinstance(tensor, torch.nn.Parameter)
            comes = tensor.device == _CPU and (is_weight or (together and tensor.dim() > 0))
            return sent(tensor, device) if comes else tensor

        found: tuple[Any, dict[str, Any]] = map_tensors(brought, (args, kwargs))
        return found

    def is_apart(self, args: Any, kwargs: Any) -> bool:
        """Tell whether tensors are on several devices of the plan."""
        first: torch.device | None = None
        for tensor in read_by(args, kwargs):
            device = tensor.device
            if device in self.devices:
                if first is None:
                    first = device
                elif device != first:
                    return True
        return False

    def device_for(self, func: Any, args: Any, kwargs: Any) -> torch.device | None:
        """Return the device of what a function changes, else of the first tensor that it reads."""
        candidates = [kwargs.get("out")]
        if func in _CHANGED:
            position, name = _CHANGED[func]
            candidates.append(args[position] if len(args) > position else kwargs.get(name))
        elif isinstance(func, torch._ops.OpOverload):
            written = func._schema.arguments
            changed = [i for i, a in enumerate(written) if a.alias_info and a.alias_info.is_write]
            candidates += [args[i] for i in changed if i < len(args)]
        for tensor in read_by(candidates, {}):
            if tensor.device in self.devices:
                return tensor.device
        return next((t.device for t in read_by(args, kwargs) if t.device in self.devices), None)

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
        position, name = _GRADIENTS[func]
        of = args[0] if args else next(kwargs[n] for n in ("outputs", "tensors") if n in kwargs)
        given = args[position] if len(args) > position else kwargs.get(name)
        alone = isinstance(of, torch.Tensor), isinstance(given, torch.Tensor)
        brought: Any = self.beside([of] if alone[0] else of, [given] if alone[1] else given)
        brought = brought[0] if alone[1] else brought
        if len(args) > position:
            return (*args[:position], brought, *args[position + 1 :])
        if name in kwargs:
            kwargs[name] = brought
        return tuple(args)

    def beside(self, first: Any, other: Any) -> Any:
        """Return a list whose tensors are where those of another list are, one by one."""
        if not isinstance(other, (list, tuple)) or not isinstance(first, (list, tuple)):
            return other
        pairs = zip(first, other, strict=True)
        return [
            moved(b, a.device, self.devices) if isinstance(a, torch.Tensor) else b for a, b in pairs
        ]


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


def read_by(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, and in lists and tuples among these."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from read_by(value, {})


for _function in (
    Together.__torch_function__,
    Together.is_apart,
    Together.device_for,
    Together.with_weights,
    give_back,
):
    skip_code(_function.__code__)  # a graph has it inside, or none has it
