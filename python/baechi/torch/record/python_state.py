# SPDX-License-Identifier: Apache-2.0
"""What a forward reads and changes in Python beside its arguments and weights.

Attributes of modules, what is in them, the names that the code of the model reads
(`code_names`), and generators of random numbers. Containers and objects are looked into three deep.
"""

from __future__ import annotations

import functools
import logging
import pickle
import random
import sys
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private
from baechi.torch.base.nested import is_one_value
from baechi.torch.record.code_names import Names, names_of, of_library
from baechi.torch.record.replayed import Replayed

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# A placed module has its own; weights once more, as recurrent modules of PyTorch name them.
_OURS = ("forward", "_apply", "_flat_weights", "_flat_weight_refs")
OWN = frozenset([*vars(nn.Module()), *_OURS])
_HOOKS = [name for name in vars(nn.Module()) if "hooks" in name and "full" not in name]
_SMALL_ARRAY = 1 << 18  # bytes
_MANY = 1000  # members of a container that are looked at
DEPTH = 3
_CONTAINERS = (list, tuple, set, deque, dict)
_ONE_THING = (nn.Module, torch.Tensor, type, ModuleType, logging.Logger, logging.Handler)


def container_of(value: Any) -> Any:
    """Return the container whose members belong to a setting; None where it is one thing."""
    if isinstance(value, (*_PLAIN, *_ONE_THING)):
        return None
    if type(value) is dict and ("__builtins__" in value or "__spec__" in value):
        return None  # the globals of a module
    if isinstance(value, _CONTAINERS):
        return value if len(value) <= _MANY else None
    if callable(value) and of_library(type(value).__module__):
        return None
    return getattr(value, "__dict__", None)


def members_of(container: Any) -> Iterable[Any]:
    """Return what is in a container, also where its class makes something else of that."""
    return dict.values(container) if isinstance(container, dict) else container


# Settings: what may change between two calls, for a comparison


def has_content(value: Any) -> bool:
    """Whether a value can change in place and is no container of others."""
    return isinstance(value, torch.Tensor) or _is_array(value)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def content_of(value: Any) -> int:
    """Return what is another number behind a change in place of a tensor, or of a small array."""
    if isinstance(value, torch.Tensor):
        return _private.version_of(value)
    if not _is_array(value) or value.dtype.hasobject or value.nbytes > _SMALL_ARRAY:
        return 0
    return zlib.crc32(value.tobytes())


class _Identity:
    """Equals itself only, and unchanged: ids come again, and nothing is to live for it."""

    __slots__ = ("_content", "_get")

    def __init__(self, value: Any) -> None:
        self._get = weakref.ref(value)
        self._content = content_of(value)

    def __eq__(self, other: object) -> bool:
        value = self._get()
        if not isinstance(other, _Identity) or value is None or value is not other._get():
            return False
        return self._content == other._content

    __hash__ = None  # type: ignore[assignment]


def _identity_of(value: Any) -> Any:
    try:
        return _Identity(value)
    except TypeError:  # a list, for example: to hold it would be to hold its tensors
        return id(value)


def _setting(value: Any, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    inside = container_of(value) if depth > 0 else None
    if inside is None:
        many = depth > 0 and isinstance(value, _CONTAINERS) and not isinstance(value, nn.Module)
        return (_identity_of(value), len(value)) if many else _identity_of(value)
    if inside is not value:
        return _identity_of(value), [(name, _setting(v, depth - 1)) for name, v in inside.items()]
    if isinstance(value, Mapping):  # not by its items, pairs that are made to be looked at
        members = dict.items(value) if isinstance(value, dict) else value.items()
        return type(value), [(_setting(k, 0), _setting(v, depth - 1)) for k, v in members]
    return type(value), [_setting(member, depth - 1) for member in value]


def settings_of(model: nn.Module) -> list[Any]:
    """Return the values that a forward may read, each behind what it is, for a comparison."""
    attributes = [
        (f"attribute {f'{path}.{name}'.lstrip('.')!r}", _setting(value, DEPTH))
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in OWN
    ]
    named = [
        (_of(names, name), _setting(value, DEPTH))
        for names in names_of(model)
        for name, value in zip(names.names, names.values(), strict=True)
    ]
    named.sort(key=lambda setting: setting[0])  # a placed model is looked through in another order
    return attributes + named


def _of(names: Names, name: str) -> str:
    return f"variable {name!r} of {names.where}"


# What a forward leaves behind


# What it is, whether it changed, and what puts it back.
_Kept = tuple[Callable[[], str], Callable[[], bool], Callable[[], None]]


def _is_iterator(value: Any) -> bool:
    """Whether a value gives what it has only once, and has nothing else to it."""
    of = type(value)
    return of.__module__ in ("builtins", "itertools") and hasattr(of, "__next__")


def _kind(container: dict[Any, Any]) -> Any:
    """Return the class of Python's that a dictionary is of; its own may make other values of it."""
    return OrderedDict if isinstance(container, OrderedDict) else dict


def _content(container: Any) -> Any:
    if isinstance(container, dict):
        return {k: dict.__getitem__(container, k) for k in _kind(container).keys(container)}
    return list(container)


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, dict):
        names = [name for name in before if name not in _OURS]
        return len(names) == sum(name not in _OURS for name in now) and all(
            name in now and _same_value(before[name], now[name]) for name in names
        )
    return len(before) == len(now) and all(map(_same_value, before, now))


def _same_value(before: Any, now: Any) -> bool:
    """Whether nothing was assigned: an equal number may be another object."""
    return before is now or (
        isinstance(now, _PLAIN) and type(before) is type(now) and before == now
    )


def _first_other(before: dict[Any, Any], now: dict[Any, Any]) -> Any:
    names = (name for name in {**before, **now} if name not in _OURS)
    missing = object()
    return next(n for n in names if not _same_value(before.get(n, missing), now.get(n, missing)))


def _fill(container: Any, content: Any) -> None:
    if isinstance(content, dict):
        kind = _kind(container)
        for name in [name for name in _content(container) if name not in content]:
            kind.__delitem__(container, name)
        if list(_content(container)) != list(content):
            kind.clear(container)
        for name, value in content.items():
            kind.__setitem__(container, name, value)
        return
    container.clear()
    container.extend(content) if isinstance(container, (list, deque)) else container.update(content)


def _fingerprint(state: Any) -> Any:
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _random_state(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return how the state of a generator of random numbers is got and set."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate, value.setstate
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    numpy = sys.modules.get("numpy.random")
    if numpy is None or not type(value).__module__.startswith("numpy."):
        return None
    if isinstance(value, numpy.RandomState):
        return lambda: value.get_state(legacy=False), value.set_state
    bits = value.bit_generator if isinstance(value, numpy.Generator) else value
    if isinstance(bits, numpy.BitGenerator):
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


class PythonState:
    """What a forward may change, as it was when this was made."""

    def __init__(self, model: nn.Module, given: Any = None, *, restorable: bool = True) -> None:
        """Take note of all.

        Args:
            model: Whose forward will run.
            given: Its arguments.
            restorable: Not only to tell what changed: keep what is in tensors, too, and what
                iterators give.

        """
        self._restorable = restorable
        self._kept: list[_Kept] = []
        self._seen: dict[int, Any] = {}  # by id; held, so that no id is used again
        self._replaced: list[tuple[Callable[[Any], None], Replayed]] = []
        self._generator("draws random numbers of Python's random", random._inst)
        if "numpy.random" in sys.modules:
            legacy = sys.modules["numpy.random"].mtrand._rand
            self._generator("draws random numbers of numpy.random", legacy)
        for path, module in model.named_modules():
            prefix = f"changes an attribute of a module ({path}{'.' if path else ''}"
            for table in (vars(module), module._buffers, module._parameters, module._modules):
                self._container(prefix, table, closing=")")
            for name in _HOOKS:
                self._container(f"registers a hook at a module ({path})", vars(module)[name])
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if name not in OWN:
                    self._look(f"{prefix}{name})", value, DEPTH)
        self._look("changes its arguments", given, 2 * DEPTH)
        for names in names_of(model):
            self._names(names)

    def change(self) -> str | None:
        """Return what was changed first, as the end of a sentence; None where nothing was."""
        return next((what() for what, changed, _ in self._kept if changed()), None)

    def put_back(self) -> None:
        """Make all as it was."""
        for _, changed, put_back in reversed(self._kept):
            if changed():
                put_back()
        for put, replayed in self._replaced:
            if not replayed.used:
                put(replayed.iterator)

    def _keep(self, what: str, changed: Callable[[], bool], put_back: Callable[[], None]) -> None:
        self._kept.append((lambda: what, changed, put_back))

    def _names(self, names: Names) -> None:
        before = list(names.values())
        for place, (name, value) in enumerate(zip(names.names, before, strict=True)):
            if self._restorable and _is_iterator(value):

                def put(now: Any, place: int = place) -> None:
                    before[place] = now
                    names.put(tuple(before))

                value = self._replace(value, put)
            self._look(f"changes the {_of(names, name)}", value, DEPTH)

        def changed() -> bool:
            try:
                return not _same(before, names.values())
            except KeyError:
                return True

        def what() -> str:
            now = dict(zip(names.names, names.values(), strict=True))
            other = (
                n
                for n, v in zip(names.names, before, strict=True)
                if n not in now or not _same_value(v, now[n])
            )
            return f"changes the {_of(names, next(other))}"

        self._kept.append((what, changed, lambda: names.put(tuple(before))))

    def _look(self, what: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or isinstance(value, _PLAIN):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            if self._restorable and type(value) is torch.Tensor and not value.is_meta:
                self._contents(what, value)
            if self._restorable and value.requires_grad and value.is_leaf:
                self._gradient(what, value)
            return
        if isinstance(value, Replayed):
            self._replayed(what, value)
            return
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            self._array(what, value)
        if self._restorable or not isinstance(value, torch.Generator):
            self._generator(what, value)
        inside = container_of(value) if depth > 0 else None
        namespace = type(value) is dict and inside is None and len(value) <= _MANY and depth > 0
        if isinstance(value, _CONTAINERS) and not isinstance(value, nn.Module) and not namespace:
            self._container(what, value)
        elif inside is not None:
            self._container(what, inside)
        for member in list(members_of(inside)) if inside is not None else ():
            self._look(what, member, depth - 1)

    def _container(self, what: str, container: Any, closing: str | None = None) -> None:
        if not hasattr(container, "clear"):
            return
        before = _content(container)

        def changed() -> bool:
            return not _same(before, _content(container))

        def name() -> str:
            if closing is None or not isinstance(before, dict):
                return what
            return f"{what}{_first_other(before, _content(container))}{closing}"

        self._kept.append((name, changed, lambda: _fill(container, before)))
        if not self._restorable or not isinstance(container, (dict, list)):
            return
        kind = _kind(container) if isinstance(container, dict) else list
        pairs = before.items() if isinstance(before, dict) else enumerate(before)
        for key, value in pairs:
            if _is_iterator(value):
                before[key] = self._replace(
                    value, functools.partial(kind.__setitem__, container, key)
                )

    def _replace(self, iterator: Any, put: Callable[[Any], None]) -> Replayed:
        replayed = Replayed(iterator)
        put(replayed)
        self._replaced.append((put, replayed))
        return replayed

    def _replayed(self, what: str, value: Replayed) -> None:
        taken = value.taken
        if self._restorable:
            value.remember()
        self._keep(what, lambda: value.taken != taken, value.go_back)

    def _contents(self, what: str, tensor: torch.Tensor) -> None:
        if is_one_value(tensor):  # which nobody can write to
            return
        kept = tensor.detach().to("cpu", copy=True)

        def put_back() -> None:
            with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                if tensor.shape != kept.shape:  # an observer's limits grow when it first sees data
                    tensor.resize_(kept.shape)
                tensor.copy_(kept)

        self._keep(what, lambda: not torch.equal(tensor.detach().cpu(), kept), put_back)

    def _gradient(self, what: str, tensor: torch.Tensor) -> None:
        before, tensor.grad = tensor.grad, None

        def put_back() -> None:
            tensor.grad = before

        self._keep(what, lambda: tensor.grad is not before, put_back)

    def _array(self, what: str, array: Any) -> None:
        before = array.copy()

        def put_back() -> None:
            array[...] = before

        self._keep(what, lambda: array.tobytes() != before.tobytes(), put_back)

    def _generator(self, what: str, generator: Any) -> None:
        access = _random_state(generator)
        if access is None:
            return
        get, put = access
        before = get()
        known = _fingerprint(before)
        self._keep(what, lambda: _fingerprint(get()) != known, lambda: put(before))
