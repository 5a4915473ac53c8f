# SPDX-License-Identifier: Apache-2.0
"""Weights that are made when a model is placed, each only where the plan has it.

While a model is built, what makes and fills its tensors is noted and done with shapes only. Later
the notes of those tensors are followed that are wanted. Random numbers are drawn while it is built,
and forgotten: so they are those of a model that is built as usual, and so is what comes behind it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from baechi._core import InputError
from baechi.torch.base import _private

_META = torch.device("meta")
_RANDOM = torch.Tag.nondeterministic_seeded
# They write to running averages, which their schema does not say.
_UNSAID = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.batch_norm_update_stats.default)


class _View(NamedTuple):
    """A tensor, as a part of a storage."""

    storage: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> _View:
        key = tensor.untyped_storage()._cdata
        place = tensor.size(), tensor.stride(), int(tensor.storage_offset())
        return _View(key, *place, tensor.dtype, tensor.is_conj(), tensor.is_neg())

    def of_storage(self, made: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor in memory that was made for the storage."""
        tensor = torch.empty(0, dtype=self.dtype).set_(made, self.offset, self.size, self.stride)
        _private.be_lazy(tensor, conj=self.is_conj, neg=self.is_neg)
        return tensor


class _Note(NamedTuple):
    """An operation: what it was called with, and the storages that it made or wrote to."""

    function: Any
    args: Any  # views for tensors without values
    kwargs: Any
    outputs: list[_View]
    reads: frozenset[int]
    changes: frozenset[int]
    random: torch.Tensor | None  # the state of the generator before it
    default: torch.dtype  # of numbers whose type is not said


def _viewed(value: Any) -> Any:
    def view(tensor: torch.Tensor) -> Any:
        return _View.of(tensor) if tensor.is_meta else tensor.clone()  # it may change

    return tree_map_only(torch.Tensor, view, value)


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, value)
    return found


def _key_on_meta(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.is_meta else 0


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.to(_META)


def _changed(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the arguments that an operation writes to."""
    named = zip(func._schema.arguments, args, strict=False)
    given = [*named, *((a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs)]
    values = {a.name: v for a, v in given}
    if func in _UNSAID and values.get("training", True):
        return _tensors([values[name] for name in ("running_mean", "running_var")])
    return _tensors([v for a, v in given if a.alias_info is not None and a.alias_info.is_write])


class _Notes(TorchDispatchMode):
    """Notes what makes and fills tensors, and does it with shapes only."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: list[_Note] = []
        self._storages: list[StorageWeakRef] = []  # held, so that no key comes twice
        self.known: set[int] = set()
        self._versions: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # by the id

    @property
    def are_wanted(self) -> bool:
        """Whether anything without memory is still there that was made in the block."""
        return not all(storage.expired() for storage in self._storages)

    def end(self) -> None:
        """Remember which tensors there are, so that a change of one behind it is seen."""
        kinds = torch.Tensor, nn.Parameter
        there: list[torch.Tensor] = [o for o in gc.get_objects() if type(o) in kinds]
        for each in there:
            if _key_on_meta(each) in self.known:
                self._versions[id(each)] = weakref.ref(each), each._version

    def changed_since(self, weight: torch.Tensor) -> bool:
        """Whether a weight was changed in place behind the block that it was built in."""
        known, version = self._versions.get(id(weight), (None, 0))
        return known is not None and weight._version != version and known() is weight

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of a model that is built."""
        with torch._C.DisableTorchFunction():
            return self._run(func, args, dict(kwargs or {}))

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        lifts = func is torch.ops.aten.lift_fresh.default and not args[0].is_meta
        if lifts and args[0].untyped_storage().resizable():  # of given numbers, not of an array
            out = args[0].to(_META)
            self._note(torch.ops.aten.clone.default, args, {}, out, None)
            return out
        given = _tensors((args, kwargs))
        deferred = [tensor for tensor in given if tensor.is_meta]
        device = torch.device(kwargs.get("device") or "cpu")
        if (given and not deferred) or device.type not in ("cpu", "meta"):
            return func(*args, **kwargs)
        if not {_key_on_meta(tensor) for tensor in deferred} <= self.known:
            raise InputError(
                f"{func} reads a tensor on the meta device that was made outside of this "
                "deferred_weights(): build all that belongs together inside of one"
            )
        changed = _changed(func, args, kwargs)
        returns = any("Tensor" in str(r.type) for r in func._schema.returns)
        if not (returns or changed) or not all(tensor.is_meta for tensor in changed):
            return self._by_values(func, args, kwargs)
        drawn, found = None, None
        if _RANDOM in func.tags:
            drawn, found = self._drawn(func, args, kwargs)
        on_meta = tree_map_only(torch.Tensor, _on_meta, (args, kwargs))
        if not given or "device" in kwargs:
            on_meta[1]["device"] = _META
        try:
            out = func(*on_meta[0], **on_meta[1])
        except NotImplementedError:  # not without values: what is not 0, say
            if changed:
                raise
            out = self._by_values(func, args, kwargs) if drawn is None else found
            out = tree_map_only(torch.Tensor, _on_meta, out)
        self._note(func, args, kwargs, out, drawn)
        return out

    def _by_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = self.values((args, kwargs))
        return func(*args, **kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, Any]:
        """Draw the random numbers of an operation; return what brings them back, and its result.

        The result is right where it depends on nothing that the operation writes to.
        """
        generator = kwargs.get("generator")
        before = torch.get_rng_state() if generator is None else generator.get_state()
        hidden = {id(tensor) for tensor in _changed(func, args, kwargs)}

        def scratch(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_meta:
                return tensor
            if id(tensor) not in hidden and "_like" not in str(func):  # it may say how many
                return self.values(tensor)
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()

        some, named = tree_map_only(torch.Tensor, scratch, (args, kwargs))
        return before, func(*some, **named)

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any, drawn: Any) -> None:
        outputs = _tensors(out)
        reads = {t.untyped_storage()._cdata for t in _tensors((args, kwargs)) if t.is_meta}
        made = {t.untyped_storage()._cdata for t in outputs}
        changes = made - self.known
        for storage in (t.untyped_storage() for t in outputs):
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self._storages.append(StorageWeakRef(storage))
        written = _changed(func, args, kwargs)
        changes |= {t.untyped_storage()._cdata for t in written}
        if changes:  # else it is a view
            if "device" in kwargs:
                kwargs["device"] = torch.device("cpu")
            if kwargs.get("generator") is not None:
                kwargs["generator"] = torch.Generator()  # the state of the other is noted
            args, kwargs = _viewed((args, kwargs))
            views = [_View.of(t) for t in outputs]
            sets = frozenset(reads), frozenset(changes)
            default = torch.get_default_dtype()
            self._notes.append(_Note(func, args, kwargs, views, *sets, drawn, default))

    def values(self, value: Any) -> Any:
        """Return arguments with the values that they have by now."""
        views = [_View.of(t) for t in _tensors(value) if t.is_meta]
        with _disable_current_modes():
            made = self.made({view.storage for view in views})
            return tree_map_only(
                torch.Tensor,
                lambda t: _View.of(t).of_storage(made[_View.of(t).storage]) if t.is_meta else t,
                value,
            )

    def digest(self) -> str:
        """Return what is alike where the same was built from the same random numbers."""
        found = hashlib.sha256()
        numbers: dict[int, int] = {}
        for note in self._notes:
            found.update(f"{note.function} {note.default}".encode())
            for each in tree_leaves((note.args, note.kwargs), is_leaf=_is_view):
                found.update(_told(each, numbers))
            if note.random is not None:
                found.update(bytes(note.random.numpy()))
        return found.hexdigest()

    def made(self, wanted: Iterable[int]) -> dict[int, torch.UntypedStorage]:
        """Follow the notes of some storages; return their memory."""
        needed = set(wanted)
        last: dict[int, int] = {}
        kept = set(needed)
        notes: list[_Note] = []
        for note in reversed(self._notes):
            if needed.isdisjoint(note.changes):
                continue
            needed |= note.reads
            for storage in note.reads | note.changes:
                last.setdefault(storage, len(notes))  # from the end
            notes.append(note)
        made: dict[int, torch.UntypedStorage] = {}
        before, default = torch.get_rng_state(), torch.get_default_dtype()
        try:
            for left in range(len(notes) - 1, -1, -1):
                note = notes[left]
                _follow(note, made)
                for storage in note.reads | note.changes:
                    if last[storage] == left and storage not in kept:
                        made.pop(storage, None)
        finally:
            torch.set_rng_state(before)
            torch.set_default_dtype(default)
        return made


def _follow(note: _Note, made: dict[int, torch.UntypedStorage]) -> None:
    def real(value: Any) -> Any:
        return value.of_storage(made[value.storage]) if isinstance(value, _View) else value

    args, kwargs = tree_map_only(_View, real, (note.args, note.kwargs), is_leaf=_is_view)
    torch.set_default_dtype(note.default)
    if note.random is not None:
        generator = kwargs.get("generator") or torch.default_generator
        generator.set_state(note.random)
    with torch.no_grad():
        found = _tensors(note.function(*args, **kwargs))
    for view, tensor in zip(note.outputs, found, strict=True):
        if view.storage in made:
            continue
        if (tensor.size(), tensor.stride(), tensor.dtype) != (view.size, view.stride, view.dtype):
            raise InputError(
                f"{note.function} lays its result out otherwise than by shapes alone, so that what "
                "is computed from it may differ: build the model without deferred_weights()"
            )
        made[view.storage] = tensor.untyped_storage()


def _is_view(value: Any) -> bool:
    return isinstance(value, _View)


def _told(value: Any, numbers: dict[int, int]) -> bytes:
    """Return what an argument is, alike in all processes that were given the same.

    Args:
        value: The argument.
        numbers: That stand for storages, in the order in which they came.

    """
    if isinstance(value, _View):
        number = numbers.setdefault(value.storage, len(numbers))
        return repr((number, *value[1:])).encode()
    if isinstance(value, torch.Tensor):
        host = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        told = f"{value.dtype}{tuple(value.shape)}".encode()
        return told + bytes(host.view(torch.uint8).numpy())
    return b"generator" if isinstance(value, torch.Generator) else repr(value).encode()


_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)
_READ = (*_ARRAYS, torch.Tensor.tolist, torch.Tensor.__repr__, torch.Tensor.__format__)
_MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.type_as)


def _moved(func: Any, args: Any, kwargs: Any) -> Any:
    """Call what may move a tensor to the host: one without values is there, and is no copy."""
    tensor, *rest = args
    home = _META if tensor.is_meta else torch.device("cpu")
    if func is torch.Tensor.cpu and not kwargs:
        rest = [home]
    elif rest and isinstance(rest[0], torch.Tensor):
        rest[:1] = [rest[0].device, rest[0].dtype]

    def brought(value: Any) -> Any:
        is_place = isinstance(value, (str, torch.device))
        return home if is_place and torch.device(value).type in ("cpu", "meta") else value

    named = {name: brought(value) for name, value in kwargs.items()}
    return torch.Tensor.to(tensor, *map(brought, rest), **named)


class _AsOnHost(TorchFunctionMode):
    """Shows tensors without values as ones of the host: initialisers leave others alone."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__()
        self._notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of a model that is built."""
        if func in _READ:
            args = self._notes.values(args)
        if func in _MOVES:
            return _moved(func, args, kwargs or {})
        found = func(*args, **(kwargs or {}))
        if func == torch.Tensor.device.__get__ and found.type == "meta":
            return torch.device("cpu")
        if func == torch.Tensor.is_meta.__get__:
            return False
        if func in _ARRAYS:
            found.flags.writeable = False  # what is written there would be lost
        return found if func != torch.Tensor.is_cpu.__get__ else True


_NOTES: list[_Notes] = []


@contextlib.contextmanager
def deferred_weights() -> Iterator[None]:
    """Build models whose weights have no memory until they are placed.

    Inside, tensors are made on the meta device. `baechi.torch.place` then makes each weight where
    the plan has it, with the values that it would have been given here.
    """
    forget_unwanted()
    notes = _Notes()
    _NOTES.append(notes)
    with notes, _AsOnHost(notes):
        yield
    notes.end()


def forget_unwanted() -> None:
    """Let go of the notes of blocks of which all weights have memory, or are gone."""
    _NOTES[:] = [notes for notes in _NOTES if notes.are_wanted]


def _notes_of(weight: torch.Tensor) -> _Notes | None:
    key = weight.untyped_storage()._cdata
    return next((notes for notes in _NOTES if key in notes.known), None)


def is_deferred(weight: torch.Tensor) -> bool:
    """Whether a weight without memory was built inside `deferred_weights`."""
    return weight.is_meta and _notes_of(weight) is not None


def how_made(weights: Iterable[torch.Tensor]) -> str:
    """Return how weights that were deferred are made, alike where they get the same values."""
    found = {id(notes): notes for w in weights if w.is_meta and (notes := _notes_of(w))}
    return "".join(notes.digest() for notes in found.values())


def deferred_values(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the values of weights that were deferred, on the host."""
    found = {}
    by_notes: dict[int, tuple[_Notes, dict[str, _View]]] = {}
    for name, weight in weights.items():
        notes = _notes_of(weight)
        assert notes is not None
        if notes.changed_since(weight):
            raise InputError(
                f"{name!r} was changed behind deferred_weights(), where it has no memory yet, so "
                "that the change is lost: change it inside, or once the model is placed"
            )
        by_notes.setdefault(id(notes), (notes, {}))[1][name] = _View.of(weight)
    for notes, views in by_notes.values():
        made = notes.made({view.storage for view in views.values()})
        found.update({name: view.of_storage(made[view.storage]) for name, view in views.items()})
    return found


def give_memory(weight: torch.Tensor, value: torch.Tensor) -> None:
    """Make a weight of the meta device one with this value, without a change of identity."""
    value = value.detach()
    twin = nn.Parameter(value, weight.requires_grad) if isinstance(weight, nn.Parameter) else value
    _private.swap_memory(weight, twin)
