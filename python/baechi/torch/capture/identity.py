# SPDX-License-Identifier: Apache-2.0
"""Identity of a step: what its graph follows from, as one number."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi._core import version

_DEPTH = 4  # of objects in attributes


def identity_of(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[..., torch.Tensor] | None,
    targets: Any,
    device: torch.device | str | None,
) -> str:
    """Return a number for the model's structure and code, shapes, settings and versions."""
    words = hashlib.sha256()
    for word in (
        version(),
        _own_code(),
        torch.__version__,
        str(device),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cuda.flash_sdp_enabled(),
    ):
        words.update(f"{word}\n".encode())
    memo: _Seen = {}
    for part in (example_inputs, targets, loss):
        for word in _words(part, memo, 0):
            words.update(f"{word}\n".encode())
    for name, module in model.named_modules(remove_duplicate=False):
        words.update(f"{name}\n".encode())
        for word in _module(module, memo):
            words.update(f"{word}\n".encode())
    return words.hexdigest()[:32]


# The number of every object that was seen, by its id; they stay, so that no other gets that.
_Seen = dict[int, tuple[int, Any]]


@functools.cache
def _own_code() -> str:
    """Return a digest of this package's room, whose rules a stored step follows."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _code(cls: type) -> str:
    """Return what stands for a class and the file that it stands in."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    try:
        facts = Path(file).stat() if file else None
    except OSError:
        facts = None
    changed = f"{facts.st_size} {facts.st_mtime_ns}" if facts else ""
    return f"{cls.__module__}.{cls.__qualname__} {changed}"


def _module(module: nn.Module, memo: _Seen) -> Iterator[str]:
    if id(module) in memo:
        yield f"the {memo[id(module)][0]}th again"
        return
    memo[id(module)] = len(memo), module
    yield from _class(type(module), memo)
    for name, value in vars(module).items():
        if name in ("_modules", "_forward_hooks_with_kwargs"):
            continue
        yield name
        yield from _words(value, memo, 0)


def _words(value: Any, memo: _Seen, depth: int) -> Iterator[str]:
    """Yield words that are the same in each process for what a graph may depend on."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield repr(value)
        return
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.Size)):
        yield str(value)
        return
    if id(value) in memo:
        yield f"the {memo[id(value)][0]}th again"
        return
    memo[id(value)] = len(memo), value
    if isinstance(value, torch.Tensor):
        yield f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
        yield f"{tuple(value.stride()) if value.layout == torch.strided else value.layout}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _words(key, memo, depth)
            yield from _words(item, memo, depth)
    elif isinstance(value, (list, tuple)):
        yield type(value).__name__
        for item in value:
            yield from _words(item, memo, depth)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(word for item in value for word in _words(item, memo, depth))
    elif isinstance(value, nn.Module):
        yield from _module(value, memo)
    else:
        yield from _object(value, memo, depth)


def _object(value: Any, memo: _Seen, depth: int) -> Iterator[str]:
    function = inspect.unwrap(value) if callable(value) else value
    if isinstance(function, types.MethodType):
        yield from _words(function.__self__, memo, depth + 1)
        function = function.__func__
    if isinstance(function, types.FunctionType):
        code = function.__code__
        yield f"{function.__module__}.{function.__qualname__}"
        yield from _instructions(code)
        if depth < _DEPTH:
            closed = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
            yield from _words([closed, function.__defaults__], memo, depth + 1)
    elif isinstance(value, type):
        yield _code(value)
    else:
        yield from _class(type(value), memo)
        if depth < _DEPTH and hasattr(value, "__dict__"):
            # A hash differs from process to process, and says nothing that the rest does not.
            facts = {k: v for k, v in vars(value).items() if not k.endswith("_hash")}
            yield from _words(facts, memo, depth + 1)


def _instructions(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)
        else:
            yield (
                repr(constant)
                if not isinstance(constant, frozenset)
                else repr(sorted(map(repr, constant)))
            )


def _class(cls: type, memo: _Seen) -> Iterator[str]:
    """Yield the code of a class, which may have been made by a function, in several ways."""
    yield _code(cls)
    if id(cls) in memo:
        return
    memo[id(cls)] = len(memo), cls
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] not in ("torch", "builtins"):
            yield _code(base)
            for name, value in vars(base).items():
                if isinstance(value, types.FunctionType):
                    yield name
                    yield from _object(value, memo, _DEPTH - 1)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
