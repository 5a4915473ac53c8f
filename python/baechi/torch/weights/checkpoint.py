# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by torch.distributed.checkpoint: every process writes what it has, by global names.

Weights are `model.NAME`, what an optimizer keeps is `optimizer.state.NAME.KEY`. The plan and the
versions lie beside them. What makes a folder a checkpoint, `.metadata`, is written last.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi import __version__
from baechi._core import InputError, Plan, write_text

METADATA = ".metadata"
_OPTIMIZER = "optimizer"


class Checkpoint:
    """A checkpoint in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._metadata = dcp.FileSystemReader(folder).read_metadata()
            known = self._metadata.state_dict_metadata
            self._places: dict[str, list[Any]] = {}
            for index, place in self._metadata.storage_data.items():
                self._places.setdefault(index.fqn, []).append(place)
        except FileNotFoundError:
            raise InputError(
                f"{folder} is no checkpoint: it has no {METADATA}, which is written last"
            ) from None
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, KeyError) as error:
            raise InputError(f"{folder / METADATA} cannot be read: {error}") from error
        self.names = list(known)
        self.tensors = {n: m for n, m in known.items() if isinstance(m, TensorStorageMetadata)}

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError unless the files that have these are there, and long enough."""
        for name in names:
            for place in self._places.get(name, ()):
                file = self.folder / place.relative_path
                there = file.stat().st_size if file.is_file() else -1
                if there < place.offset + place.length:
                    wrong = "is missing" if there < 0 else f"ends after {there:,} bytes"
                    raise InputError(
                        f"{self.folder}: {place.relative_path} {wrong}, which has {name!r}: every "
                        "process needs the files that all have written"
                    )

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """Return values on the host."""
        names = list(names)
        self.check(names)
        state: dict[str, Any] = {}
        for name in names:
            known = self.tensors.get(name)
            if known is None:
                state[name] = None
            else:
                state[name] = torch.empty(known.size, dtype=known.properties.dtype)
        planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it reads in one process
            try:
                reader = dcp.FileSystemReader(self.folder)
                dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
            except dcp.CheckpointException as error:
                first = next(iter(error.failures.values()))[0]
                raise InputError(f"{self.folder} cannot be read: {first}") from error
        return state

    def optimizer_state(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the named state of an optimizer, of those parameters."""
        paths = self._metadata.planner_data or {}
        wanted, own = set(names), {}
        for key in self.names:
            path = paths.get(key, ())
            if path[:1] == (_OPTIMIZER,) and (path[1] != "state" or path[2] in wanted):
                own[key] = path[1:]
        if not own:
            raise InputError(
                f"{self.folder} has no state of an optimizer: it was saved without one"
            )
        found: dict[str, Any] = {"state": {}, "param_groups": {}}
        for key, value in self.read(own).items():
            *above, last = own[key]
            table = found
            for step in above:
                table = table.setdefault(step, {})
            table[last] = value
        kept = {
            name: {key: _lists(value) for key, value in own.items()}
            for name, own in found["state"].items()
        }
        return {"state": kept, "param_groups": _lists(found["param_groups"])}


def _lists(value: Any) -> Any:
    """Return nested tables by number as lists."""
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, int) for key in value):
        return [_lists(value[key]) for key in sorted(value)]
    return {key: _lists(each) for key, each in value.items()}


def check_can_be_written(folder: Path, model: Mapping[str, Any]) -> None:
    """Raise InputError where a checkpoint is already, and for a state that could not be loaded."""
    if (folder / METADATA).exists():
        raise InputError(f"{folder} holds a checkpoint already: give each step a folder of its own")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is no folder")
    strange = next((name for name, each in model.items() if not isinstance(each, Tensor)), None)
    if strange is not None:
        raise InputError(
            f"{strange!r} is no tensor, and only tensors are loaded again: save the state of the "
            "model by torch.save, placed.state_dict() has all of it"
        )
    check_is_plain(model, "save")


def check_is_plain(model: Mapping[str, Any], what: str) -> None:
    """Raise InputError where a state, with its own tensors, has some that wrap others."""
    for name, tensor in model.items():
        if is_traceable_wrapper_subclass(tensor):
            raise InputError(
                f"{what}: {name!r} wraps other tensors, as quantised weights do, and only plain "
                "ones are written, or told to other ranks: save the model before place, and what "
                "it trains by its names"
            )


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise InputError that names the folder where the system refuses to write."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: cannot write a checkpoint: {error}") from error
    except dcp.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise InputError(f"{folder}: cannot write a checkpoint: {first}") from error


def write(folder: Path, model: dict[str, Any], optimizer: Any, group: Any) -> None:
    """Write what this process has; `group`: of all that write, None: this one alone."""
    state: dict[str, Any] = {"model": model}
    if optimizer is not None:
        state[_OPTIMIZER] = optimizer
    with _writing(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process writes
        writer = dcp.FileSystemWriter(folder)
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=group is None)


def write_beside(folder: Path, plan: Plan | None, about: dict[str, Any]) -> None:
    """Write the plan and the versions."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    versions = {"baechi": __version__, "torch": torch.__version__}
    write_text(folder / "baechi.json", json.dumps({**versions, **about}, indent=2) + "\n")
    if plan is not None:
        plan.save(folder / "plan.json")
        plan.micro_batch_graph.save(folder / "graph.json")
