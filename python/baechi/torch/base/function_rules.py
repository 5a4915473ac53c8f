# SPDX-License-Identifier: Apache-2.0
"""What is known of functions: which stay where they are, which change an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi.torch.base.nested import tensors_in

# Of `torch.func`: they read what their function names, beside its arguments.
TRANSFORMS = frozenset(["vmap", "grad_and_value", "_vjp_with_argnums", "vjp_fn"])

# What Python's own `min`, `int` or `not` of a size are while a model is traced.
_OF_SIZES = ("float", "int", "ite", "max", "min", "not", "sqrt", "sum")

# What only looks at a tensor, or is a view by attribute: never an operator of its own.
OBSERVERS = frozenset(
    [
        *(f"sym_{name}" for name in _OF_SIZES),
        "__get__",
        "__set__",
        "__delete__",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_tensor",
        "__len__",
        "type",
        "element_size",
        "untyped_storage",
        "data_ptr",
        "get_device",
        "is_same_size",
        "has_names",
        "is_pinned",
        "is_inference",
        "requires_grad_",
        "retain_grad",
        "register_hook",
        "backward",
        "__hash__",
        "__repr__",
        "__format__",
        "is_conj",
        "is_neg",
        "register_post_accumulate_grad_hook",
        "record_stream",
        "device",
        "_set_grad_enabled",
        "_set_multithreading_enabled",
        "get_rng_state",  # a checkpoint's, of the devices that its arguments are on
        "set_rng_state",
        "lift_fresh.default",  # of `from_numpy`, and seen only while a dispatch mode is on
    ]
)

# Of these: what reads the values of a tensor, or hands out its address to who will.
READERS = frozenset(["__repr__", "__format__", "data_ptr", "untyped_storage", "type"])

# Attributes of a tensor that are views of it.
VIEWS = frozenset(["T", "mT", "H", "mH", "real", "imag", "data"])

# Functions whose result the caller wants elsewhere, or as a Python value: they run where their
# argument is.
STAY = frozenset(
    [
        "to",
        "cpu",
        "cuda",
        "numpy",
        "tolist",
        "item",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "detach_",
        "set_",
        "_to_copy",
    ]
)
# As what a conversion to another type runs that says nothing of a device: where it is planned.
CONVERSION = "type"
# `torch.autograd.grad`: a copy of what it differentiates by is not what was computed from.
DIFFERENTIATES = "grad"
# Functions with arguments that may be on the host whatever the device.
HOST_ARGUMENTS = frozenset(
    [
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "pack_padded_sequence",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    ]
)
# Functions that change arguments behind the first, and do not count that as a change.
UNCOUNTED_CHANGES = frozenset(["batch_norm", "instance_norm"])
_IN_PLACE = frozenset(
    [
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__idiv__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
    ]
)


def changes_argument(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a torch function changes its first argument."""
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in _IN_PLACE
        or bool(kwargs.get("inplace"))
    )


# Functions with an argument that has to be on the host, by its position.
_ONLY_ON_HOST = {"_pack_padded_sequence": 1, "numpy": 0, "__array__": 0}


def with_host_arguments(
    name: str, args: tuple[Any, ...], to_host: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[Any, ...]:
    """Return the arguments of a torch function, on the host what PyTorch wants there."""
    position = _ONLY_ON_HOST.get(name)
    if position is None or len(args) <= position or not isinstance(args[position], torch.Tensor):
        return args
    return (*args[:position], to_host(args[position]), *args[position + 1 :])


# Arguments that may be on the host beside a device's, but not while calls are dispatched to Python.
_FROM_ANYWHERE = {"ctc_loss": (2, 3)}


def with_near_arguments(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a torch function, beside the first one what may be anywhere."""
    given = list(args)
    for position in _FROM_ANYWHERE.get(name, ()):
        if position < len(given) and isinstance(given[position], torch.Tensor):
            given[position] = given[position].to(given[0].device)
    return tuple(given)


def only_looks(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function only looks at a tensor; `x.type(dtype)` computes another one."""
    if name != CONVERSION:
        return name in OBSERVERS
    wanted = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    return not isinstance(wanted, torch.dtype) or wanted == args[0].dtype


def asked_device(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the device that a torch function is told to take its result to: as it is given."""
    if name == "cpu":
        return "cpu"
    given = kwargs.get("device")
    if given is None and name == "to":
        given = kwargs.get("other", args[1] if len(args) > 1 else None)
        given = given.device if isinstance(given, torch.Tensor) else given
    return given if isinstance(given, (str, torch.device)) else None


def is_host(device: Any) -> bool:
    """Whether a device, as it is given to PyTorch, is the CPU."""
    return device is not None and torch.device(device).type == "cpu"


def on_host_by_intent(asked: Any, home: torch.device | None) -> bool:
    """Whether a model names the CPU itself, and not the device of what it was called with."""
    if not is_host(asked):
        return False
    return isinstance(asked, str) or home is None or home.type != "cpu"


def changed_arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the arguments that an aten operator changes."""
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = kwargs.get(argument.name, args[position] if position < len(args) else None)
        yield from tensors_in(value)


def without_device(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_ours: Callable[[torch.Tensor], bool],
    is_near: Callable[[torch.Tensor | torch.device], bool],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a function; those of `x.to(y)` and `x.to(y.device)` name no device.

    Without a placement `x` is where `y` is, and what is returned is `x` unless its type changes.

    Args:
        name: Of the function.
        args: Of its call.
        kwargs: Of its call.
        is_ours: Whether a tensor is on one of the devices that take part of the model.
        is_near: Whether a tensor, or a device, is so, or is where the model is called. By its name
            the CPU is obeyed: a model that writes it may want a tensor there.

    """
    if name != "to" or not args or not is_ours(args[0]):
        return args, kwargs
    given, rest = args[1] if len(args) > 1 else None, args[2:]
    if isinstance(given, torch.Tensor) and is_near(given):
        return (args[0], given.dtype, *rest), kwargs
    asked = asked_device(name, args, kwargs)
    by_name = isinstance(asked, str) and is_host(asked)
    if asked is None or by_name or not is_near(torch.device(asked)):
        return args, kwargs
    named = {key: value for key, value in kwargs.items() if key != "device"}
    rest = args[1:] if given is not None and "device" in kwargs else rest
    if (rest and rest[0] is None) or not (rest or "dtype" in named):
        rest = (args[0].dtype, *rest[1:])
    return (args[0], *rest), named


def converts(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function only makes numbers of another type: `x.to(dtype)`, if it does not yet."""
    if name != "to" or not args or not isinstance(args[0], torch.Tensor):
        return False
    given = [*args[1:2], *(kwargs.get(key) for key in ("device", "other", "dtype"))]
    wanted = [one for one in given if one is not None]
    return len(wanted) == 1 and isinstance(wanted[0], torch.dtype) and wanted[0] != args[0].dtype
