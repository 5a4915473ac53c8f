# SPDX-License-Identifier: Apache-2.0
"""The form of what a model returns, apart from the tensors in it (Paper 3.2)."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from baechi.torch.base.nested import PLAIN, map_tensors, tensors_in
from baechi.torch.trace.graph import NotExportedError


class _Packer(pickle.Pickler):
    """Pickles an object with numbers in the place of its tensors."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a tensor."""
        if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotExportedError("it returns a size")
        if not isinstance(obj, torch.Tensor):
            return None
        for number, tensor in enumerate(self.tensors):
            if tensor is obj:
                return number
        self.tensors.append(obj)
        return len(self.tensors) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: Any, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def _is_plain(value: Any) -> bool:
    """Whether `map_tensors` knows all of a value."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        return True
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise NotExportedError("it returns a size")
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(_is_plain(getattr(value, f.name, None)) for f in dataclasses.fields(value))
    return False


def output_form(out: Any) -> tuple[list[torch.Tensor], Callable[[list[torch.Tensor]], Any]]:
    """Return the tensors of what a model returned, and what puts others in their place."""
    if isinstance(out, torch.Tensor):
        return [out], lambda tensors: tensors[0]
    if _is_plain(out):
        unique = list({id(t): t for t in tensors_in(out)}.values())
        place = {id(t): i for i, t in enumerate(unique)}
        return unique, lambda tensors: map_tensors(lambda t: tensors[place[id(t)]], out)
    file = io.BytesIO()
    packer = _Packer(file)
    try:
        packer.dump(out)
    except NotExportedError:
        raise
    except Exception as error:
        raise NotExportedError(f"it returns a {type(out).__name__}: {error}") from None
    packed = file.getvalue()
    return packer.tensors, lambda tensors: _Unpacker(io.BytesIO(packed), tensors).load()
