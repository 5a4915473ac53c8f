# SPDX-License-Identifier: Apache-2.0
"""Why the core refuses a call, in words: from its signature and what it was given."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baechi import _core
from baechi.near_name import did_you_mean
from baechi.pipeline import described

_SIGNATURE = re.compile(r"^    1\. (?P<signature>.*)$", re.MULTILINE)
_PLAIN = {"str": str, "bytes": bytes, "bool": bool, "dict": dict}


def why_refused(
    called: str, refusal: str, positional: Sequence[object], by_name: Mapping[str, object]
) -> str:
    """Return what is wrong with a call; the binding's own words where that is not found.

    Args:
        called: What the user called, such as "baechi.generate".
        refusal: What the binding said, with its signature.
        positional: The arguments that were given without their names, without `self`.
        by_name: The others.

    """
    taken = _arguments(refusal)
    if taken is None:
        return refusal
    return next(_faults(called, taken, positional, by_name), refusal)


def _arguments(refusal: str) -> ast.arguments | None:
    """Return the arguments of a signature, without `self`."""
    found = _SIGNATURE.search(refusal)
    if found is None:
        return None
    # An array's type holds what is no expression: dtype=int64, shape=(*).
    signature = re.sub(r"\bndarray\[dtype=(\w+)[^\]]*\]", r"\1_array", found["signature"])
    try:
        (function,) = ast.parse(f"def {signature}: ...").body
    except SyntaxError:
        return None
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    for listed in (arguments.posonlyargs, arguments.args):
        listed[:] = [each for each in listed if each.arg != "self"]
    return arguments


def _faults(
    called: str,
    taken: ast.arguments,
    positional: Sequence[object],
    by_name: Mapping[str, object],
) -> Iterator[str]:
    in_order = [*taken.posonlyargs, *taken.args]
    names = [each.arg for each in (*in_order, *taken.kwonlyargs)]
    if len(positional) > len(in_order):
        more = ", ".join(each.arg for each in taken.kwonlyargs)
        most = len(in_order)
        yield (
            f"{called} takes {most} argument{'' if most == 1 else 's'} without a name, and was "
            f"given {len(positional)}" + (f": give others by name: {more}" if more else "")
        )
    for name in by_name:
        if name not in names:
            way = did_you_mean(name, names) or f": it takes {', '.join(names) or 'none'}"
            yield f"{called} takes no argument {name!r}{way}"
    given = {each.arg: value for each, value in zip(in_order, positional, strict=False)}
    for name in by_name:
        if name in given:
            yield f"{called} was given {name} twice, with its name and without"
    given.update(by_name)
    optional = {each.arg for each in in_order[len(in_order) - len(taken.defaults) :]}
    defaults = zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    optional |= {each.arg for each, default in defaults if default is not None}
    for each in (*in_order, *taken.kwonlyargs):
        if each.arg not in given:
            if each.arg not in optional:
                yield f"{called} needs the argument {each.arg}: {_words(each.annotation)}"
        elif not _is_taken(given[each.arg], each.annotation):
            yield (
                f"{each.arg}: expected {_words(each.annotation)}, found "
                f"{described(given[each.arg])}"
            )
    for name, value in given.items():  # whether a number may be negative is in no signature
        if isinstance(value, int) and not 0 <= value < 2**63:
            yield f"{name}: {value} is out of range"


def _words(annotation: ast.expr | None) -> str:
    if annotation is None:
        return "a value"
    words = ast.unparse(annotation)
    words = re.sub(r"\b(?:collections\.abc\.|typing\.)|(?<=os\.PathLike)\[str\]", "", words)
    words = re.sub(r"\b(\w+)_array\b", r"a NumPy array of \1", words)
    return words.replace("baechi._core.", "baechi.").replace(" | ", " or ")


def _is_taken(value: Any, annotation: ast.expr | None) -> bool:
    """Whether a value is of a type; True also for what is not looked at."""
    if isinstance(annotation, ast.BinOp):
        return _is_taken(value, annotation.left) or _is_taken(value, annotation.right)
    if isinstance(annotation, ast.Constant):
        return annotation.value is None and value is None
    if isinstance(annotation, ast.Subscript):
        return _is_container(value, annotation)
    name = "" if annotation is None else ast.unparse(annotation).rpartition(".")[2]
    if name == "int":
        return hasattr(value, "__index__")
    if name == "float":
        return hasattr(value, "__float__") or hasattr(value, "__index__")
    if name == "PathLike":
        return isinstance(value, os.PathLike)
    if name.endswith("_array"):
        kind, shape = getattr(value, "dtype", None), getattr(value, "shape", ())
        return str(kind) == name.removesuffix("_array").rstrip("_") and len(shape) == 1
    kind = _PLAIN.get(name) or getattr(_core, name, None)
    return not isinstance(kind, type) or isinstance(value, kind)


def _is_container(value: Any, annotation: ast.Subscript) -> bool:
    outer = ast.unparse(annotation.value).rpartition(".")[2]
    inner = annotation.slice
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if outer == "PathLike":
        return isinstance(value, os.PathLike)
    if outer in ("Mapping", "dict") and len(parts) == 2:
        return isinstance(value, Mapping) and all(
            _is_taken(key, parts[0]) and _is_taken(each, parts[1]) for key, each in value.items()
        )
    if outer in ("Sequence", "list"):
        return _is_sequence(value) and all(_is_taken(each, parts[0]) for each in value)
    if outer == "tuple":
        return (
            _is_sequence(value)
            and len(value) == len(parts)
            and all(_is_taken(each, part) for each, part in zip(value, parts, strict=True))
        )
    return True


def _is_sequence(value: Any) -> bool:
    # as the binding has it: whatever has a length and numbered elements, but no text
    return (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not isinstance(value, (str, bytes, Mapping))
    )
