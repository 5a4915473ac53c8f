# SPDX-License-Identifier: Apache-2.0
"""Identity of a step: what its graph follows from, as one number."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping
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
    words = _Words({})
    words.say(
        version(),
        _own_code(),
        torch.__version__,
        device,
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cuda.flash_sdp_enabled(),
    )
    for part in (example_inputs, targets, loss, model):
        words.add(part)
    return words.digest.hexdigest()[:32]


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


class _Words:
    """Words that are the same in each process, for what a graph may depend on."""

    def __init__(self, seen: dict[int, tuple[int, Any]]) -> None:
        self.digest = hashlib.sha256()
        self._seen = seen  # by id, with a number; objects stay, so that no other gets their id

    def say(self, *words: Any) -> None:
        for word in words:
            self.digest.update(f"{word}\n".encode())

    def _is_new(self, value: Any) -> bool:
        """Note an object; of one that was seen, say which it is."""
        if id(value) in self._seen:
            self.say(f"the {self._seen[id(value)][0]}th again")
            return False
        self._seen[id(value)] = len(self._seen), value
        return True

    def add(self, value: Any, depth: int = 0) -> None:
        """Say what there is to say of a value."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            self.say(repr(value))
        elif isinstance(value, (torch.dtype, torch.device, torch.layout, torch.Size)):
            self.say(value)
        elif not self._is_new(value):
            return
        elif isinstance(value, torch.Tensor):
            self.say(type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad)
            self.say(value.stride() if value.layout == torch.strided else value.layout)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.add(key, depth)
                self.add(item, depth)
        elif isinstance(value, (list, tuple)):
            self.say(type(value).__name__, len(value))
            for item in value:
                self.add(item, depth)
        elif isinstance(value, (set, frozenset)):
            self.say(*sorted(self._alone(item, depth) for item in value))
        elif isinstance(value, nn.Module):
            self._class(type(value))
            own = {k: v for k, v in vars(value).items() if k != "_forward_hooks_with_kwargs"}
            self.add(own)
        else:
            self._object(value, depth)

    def _alone(self, value: Any, depth: int) -> str:
        words = _Words(self._seen)
        words.add(value, depth)
        return words.digest.hexdigest()

    def _object(self, value: Any, depth: int) -> None:
        function = inspect.unwrap(value) if callable(value) else value
        if isinstance(function, types.MethodType):
            self.add(function.__self__, depth + 1)
            function = function.__func__
        if isinstance(function, types.FunctionType):
            self.say(f"{function.__module__}.{function.__qualname__}")
            self._instructions(function.__code__)
            if depth < _DEPTH:
                closed = [
                    cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)
                ]
                self.add([closed, function.__defaults__], depth + 1)
        elif isinstance(value, type):
            self.say(_code(value))
        else:
            self._class(type(value))
            if depth < _DEPTH and hasattr(value, "__dict__"):
                # A hash differs from process to process, and says nothing that the rest does not.
                facts = {k: v for k, v in vars(value).items() if not k.endswith("_hash")}
                self.add(facts, depth + 1)

    def _instructions(self, code: types.CodeType) -> None:
        self.say(code.co_code.hex(), code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._instructions(constant)
            else:
                is_set = isinstance(constant, frozenset)
                self.say(sorted(map(repr, constant)) if is_set else repr(constant))

    def _class(self, cls: type) -> None:
        """Say the code of a class, which may have been made by a function, in several ways."""
        self.say(_code(cls))
        for base in cls.__mro__ if self._is_new(cls) else ():
            if base.__module__.partition(".")[0] not in ("torch", "builtins"):
                self.say(_code(base))
                for name, value in vars(base).items():
                    if isinstance(value, types.FunctionType):
                        self.say(name)
                        self._object(value, _DEPTH - 1)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
