# SPDX-License-Identifier: Apache-2.0
"""What the core answers to arguments that it does not take.

A binding that refuses a call lists its signature and the types that it was given. On import of the
package, every function and method of the core gets a front, which names the argument, its value
and what is taken instead. Its types are named as a user finds them, in ``baechi``: so they stand in
tracebacks, signatures and pickles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from baechi import _core

_REFUSED = "(): incompatible function arguments"


def _explained(function: Any, called: str, *, is_method: bool) -> FunctionType:
    """Return a function that does the same, and says what is wrong with a call in words."""
    refused = f"{function.__name__}{_REFUSED}"

    @functools.wraps(function)
    def call(*positional: Any, **by_name: Any) -> Any:
        try:
            return function(*positional, **by_name)
        except TypeError as error:
            if not str(error).startswith(refused):
                raise
            from baechi.refusals import why_refused  # which needs the parser of Python

            own = positional[1:] if is_method else positional
            words = why_refused(called, str(error), own, by_name)
        raise TypeError(words)

    return call  # type: ignore[return-value]


def _explain_methods(holder: type) -> None:
    for name, member in list(vars(holder).items()):
        if name.startswith("__") and name != "__init__":
            continue
        called = f"baechi.{holder.__name__}" + ("" if name == "__init__" else f".{name}")
        kind = type(member).__name__
        if kind == "nb_method":
            setattr(holder, name, _explained(member, called, is_method=True))
        elif kind == "nb_func":
            static: Callable[..., Any] = _explained(member, called, is_method=False)
            setattr(holder, name, staticmethod(static))


def _explain_all() -> None:
    for name, member in list(vars(_core).items()):
        if type(member).__name__ == "nb_func":
            setattr(_core, name, _explained(member, f"baechi.{name}", is_method=False))
        elif isinstance(member, type) and member.__module__ == _core.__name__:
            _explain_methods(member)
            member.__module__ = "baechi"


_explain_all()
