# SPDX-License-Identifier: Apache-2.0
"""The plain tensors of a state: of quantised weights that wrap others, or keep some, these.

What has values of them, read by name, is a source.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi._core import InputError


class Source(ABC):
    """Values by name, of which those that are wanted are read."""

    said: str  # what it is called in an error
    shapes: dict[str, tuple[int, ...]]
    kinds: Mapping[str, list[str]] = {}  # of what has parts

    @abstractmethod
    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return values on the host.

        Raises:
            InputError: What has them is not there, or not whole.

        """

    def optimizer_state(self, names: Iterable[str]) -> dict[str, Any]:  # noqa: ARG002
        """Return the named state of an optimizer, of those parameters."""
        raise InputError(f"{self.said} has no state of an optimizer: only checkpoints have")


class Parts:
    """A state's tensors as they are, and the parts of what wraps others, by names below its own.

    What a weight keeps in attributes (bitsandbytes) are parts, too, where its module's state names
    things below it; those of the state are left out, since some are copies.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.whole: dict[str, Any] = {}
        self.parts: dict[str, Tensor] = {}
        self.kinds: dict[str, list[str]] = {}  # what is no tensor, and types, of what has parts
        dots = ((name, dot.start()) for name in state for dot in re.finditer(r"\.", name))
        above = {name[:dot] for name, dot in dots} & state.keys()
        for name, value in state.items():
            wraps = is_traceable_wrapper_subclass(value)
            found = [*_held(value, "", set())] if wraps or name in above else []
            if parts := {f"{name}{at}": each for at, each in found if isinstance(each, Tensor)}:
                self.parts |= parts
                self.kinds[name] = sorted(f"{at[1:]} {_said(each)}" for at, each in found)
            if not wraps:
                self.whole[name] = value
        for name in [n for n in self.whole for own in self.kinds if n.startswith(f"{own}.")]:
            del self.whole[name]

    @property
    def tensors(self) -> dict[str, Any]:
        """All of them."""
        return self.whole | self.parts


def _held(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the plain tensors and values that a weight consists of and keeps, by their paths.

    Attributes of a weight that are values are anybody's, those of what it keeps tell what that is.
    """
    if isinstance(value, (nn.Module, type)) or id(value) in seen:
        return
    items: Mapping[Any, Any] | None = None
    if is_traceable_wrapper_subclass(value):
        names, about = value.__tensor_flatten__()
        yield path, type(value)
        yield f"{path}.", about
        items = {name: getattr(value, name) for name in names}
    elif isinstance(value, Mapping):
        items = value
    elif not isinstance(value, Tensor):
        items = _public(value) if hasattr(value, "__dict__") else None
    elif not path:
        own = _public(value).items()
        items = {k: v for k, v in own if isinstance(v, Mapping) or hasattr(v, "__dict__")}
    if items is None:
        yield path, value
        return
    seen.add(id(value))
    for key, each in items.items():
        yield from _held(each, f"{path}.{key}", seen)


def _public(value: Any) -> dict[str, Any]:
    return {key: each for key, each in vars(value).items() if not key.startswith("_")}


def _said(value: Any) -> str:
    """Return what has to be alike: of a tensor its type."""
    if isinstance(value, Tensor):
        return str(value.dtype)
    return value.__name__ if isinstance(value, type) else re.sub(" at 0x[0-9a-f]+", "", repr(value))
