# SPDX-License-Identifier: Apache-2.0
"""Where the values of weights come from, read by name: a state, safetensors, or a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi._core import InputError
from baechi.torch.weights.checkpoint import METADATA, Checkpoint
from baechi.torch.weights.parts import Parts, Source
from baechi.torch.where.homes import named_tensors, plain_parts

_SUFFIX = ".safetensors"


class _State(Source):
    def __init__(self, state: Mapping[str, Any]) -> None:
        self.said = "state"
        strange = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
        if strange:
            raise InputError(f"state: {strange[0]!r} is no tensor, and only tensors are loaded")
        parts = Parts(state)
        self._state, self.kinds = parts.tensors, parts.kinds
        self.shapes = {name: tuple(value.shape) for name, value in self._state.items()}

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        return {name: self._state[name] for name in names}


class _Safetensors(Source):
    def __init__(self, path: Path) -> None:
        self.said = str(path)
        self._file_of: dict[str, Path] = {}
        self.shapes = {}
        for file in [path] if path.is_file() else _files_in(path):
            with _opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118 no mapping
                    self._file_of[name] = file
                    self.shapes[name] = tuple(tensors.get_slice(name).get_shape())

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._file_of[name], []).append(name)
        found = {}
        for file, own in by_file.items():
            with _opened(file) as tensors:
                found.update({name: tensors.get_tensor(name) for name in own})
        return found


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, which its index names where there is one."""
    index = next(iter(sorted(folder.glob(f"*{_SUFFIX}.index.json"))), None)
    if index is None:
        return sorted(folder.glob(f"*{_SUFFIX}"))
    try:
        named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{index}: no index of safetensors: {error}") from error
    missing = [name for name in named if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder}: {missing[0]} is missing, which {index.name} names")
    return [folder / name for name in named]


def _opened(file: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise InputError(f"{file}: to read it, pip install safetensors") from None
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def source_of(given: Any) -> Source:
    """Return where values come from: a state, or a path to safetensors or to a checkpoint."""
    if isinstance(given, Mapping):
        return _State(given)
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(
            f"weights come from a state_dict, a safetensors file or folder, or a checkpoint's "
            f"folder, not from a {type(given).__name__}"
        )
    path = Path(given)
    if (path / METADATA).is_file():
        return Checkpoint(path)
    if path.suffix == _SUFFIX and path.is_file():
        return _Safetensors(path)
    if path.is_dir() and any(path.glob(f"*{_SUFFIX}")):
        return _Safetensors(path)
    if not path.exists():
        raise InputError(f"{path} is not there")
    raise InputError(
        f"{path} is no checkpoint (it has no {METADATA}, which is written last) and has no "
        f"{_SUFFIX} files; what torch.save wrote is given as a state: torch.load(path)"
    )


def matched(source: Source, parts: Parts) -> dict[str, str]:
    """Return the name in a source of every weight of a model: of a tied one, any of its names.

    Raises:
        InputError: It has not exactly the weights of the model, of their shapes and parts.

    """
    known, wanted = source.shapes, parts.tensors
    unknown = next((name for name in known if name not in wanted), None)
    if unknown is not None:
        raise InputError(f"{source.said} has {unknown!r}, and the model has it not")
    there = {id(weight): name for name, weight in wanted.items() if name in known}
    found = {}
    for name, weight in wanted.items():
        if not isinstance(weight, torch.Tensor):
            raise InputError(f"{source.said}: {name!r} is no tensor, and only tensors are loaded")
        own = name if name in known else there.get(id(weight))
        if own is None:
            raise InputError(f"{source.said} has no {name!r}")
        if known[own] != tuple(weight.shape):
            raise InputError(
                f"{source.said}: {own!r} is of shape {known[own]}, and {tuple(weight.shape)} in "
                "the model"
            )
        found[name] = own
    for name, kind in parts.kinds.items():
        theirs = source.kinds.get(name, [])
        if differ := sorted({*kind} ^ {*theirs}):
            whose = "the model" if differ[0] in kind else source.said
            raise InputError(
                f"{source.said}: {name!r} is not quantised as in the model: only {whose} has "
                f"{differ[0]!r}"
            )
    return found


def make_weights(
    model: nn.Module,
    given: Any,
    device_of: Mapping[str, torch.device],
    *,
    own: Collection[str] | None = None,
) -> None:
    """Give the weights of a model their values, or leave those that it has.

    Args:
        model: Some of whose tensors may be on the meta device.
        given: Where values come from; None: there are no such tensors.
        device_of: The device of each weight and buffer, by name.
        own: The names of those to give values, by default all.

    Raises:
        InputError: Values are missing, or of another shape; the model is as before.

    """
    empty = {name: tensor for name, tensor in named_tensors(model) if tensor.is_meta}
    if given is None:
        if empty:
            raise InputError(
                f"model: {next(iter(empty))!r} is on the meta device: give weights=, a state_dict, "
                "a safetensors file or a checkpoint's folder"
            )
        return
    source = source_of(given)
    wanted = model.state_dict(keep_vars=True)
    parts = Parts(wanted)
    names = matched(source, parts)
    if wraps := sorted(empty.keys() & parts.kinds.keys()):
        raise InputError(
            f"model: {wraps[0]!r} is on the meta device and wraps other tensors, as quantised "
            "weights do: build it outside of torch.device('meta')"
        )
    if lost := sorted(set(empty) - set(wanted)):
        raise InputError(
            f"model: the buffer {lost[0]!r} is on the meta device and in no state_dict: build it "
            "outside of torch.device('meta')"
        )
    others = [t for name, t in named_tensors(model) if own is not None and name not in own]
    done = {id(part) for other in others for part in plain_parts(other)}
    for name, tensor in parts.tensors.items():
        if id(tensor) not in done:
            done.add(id(tensor))
            value = source.read([names[name]])[names[name]]
            _fill(tensor, value, device_of.get(name, tensor.device))


def _fill(tensor: torch.Tensor, value: torch.Tensor, device: torch.device) -> None:
    """Give a tensor a value; it stays the same object."""
    if not tensor.is_meta:
        with torch.no_grad():
            tensor.copy_(value)
        return
    made: torch.Tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    with torch.no_grad():
        made.copy_(value)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, made)
