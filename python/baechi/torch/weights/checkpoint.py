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
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi import __version__
from baechi._core import InputError, Plan, write_text
from baechi.torch.weights.parts import Parts, Source

METADATA = ".metadata"
_BESIDE = "baechi.json"
_MODEL, _OPTIMIZER = "model.", "optimizer"  # stand before names


class Checkpoint(Source):
    """A checkpoint in a folder: its weights, and the state of an optimizer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, str(folder)
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
        self._names = list(known)
        self._tensors = {n: m for n, m in known.items() if isinstance(m, TensorStorageMetadata)}
        self._prefix = _MODEL if any(name.startswith(_MODEL) for name in self._tensors) else ""
        self.shapes = {
            name.removeprefix(self._prefix): tuple(each.size)
            for name, each in self._tensors.items()
            if name.startswith(self._prefix)
        }
        self.kinds = {}
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            kinds = json.loads((folder / _BESIDE).read_text())["kinds"]  # other tools write none
            self.kinds = {name: [*map(str, kind)] for name, kind in kinds.items()}

    def _check(self, names: Iterable[str]) -> None:
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

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Return values on the host."""
        found = self._read([f"{self._prefix}{name}" for name in names])
        return {name.removeprefix(self._prefix): value for name, value in found.items()}

    def _read(self, names: Collection[str]) -> dict[str, Any]:
        self._check(names)
        state: dict[str, Any] = {}
        for name in names:
            known = self._tensors.get(name)
            if known is None:
                state[name] = None
            else:
                state[name] = torch.empty(known.size, dtype=known.properties.dtype)
        planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with _saying(f"{self.folder} cannot be read"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it reads in one process
            reader = dcp.FileSystemReader(self.folder)
            dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
        return state

    def optimizer_state(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the named state of an optimizer, of those parameters."""
        paths = self._metadata.planner_data or {}
        wanted, own = set(names), {}
        for key in self._names:
            path = paths.get(key, ())
            if path[:1] == (_OPTIMIZER,) and (path[1] != "state" or path[2] in wanted):
                own[key] = path[1:]
        if not own:
            raise InputError(
                f"{self.folder} has no state of an optimizer: it was saved without one"
            )
        found: dict[str, Any] = {"state": {}, "param_groups": {}}
        for key, value in self._read(own).items():
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


def to_write(folder: Path, state: Mapping[str, Any], optimizer: Any) -> Parts:
    """Return a state's tensors; raise InputError where a checkpoint is, or for what none holds."""
    if (folder / METADATA).exists():
        raise InputError(f"{folder} holds a checkpoint already: give each step a folder of its own")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is no folder")
    parts = Parts(state)
    strange = next((name for name, t in parts.whole.items() if not isinstance(t, Tensor)), None)
    if strange is not None:
        raise InputError(
            f"{strange!r} is no tensor, and only tensors are loaded again: save the state of the "
            "model by torch.save, placed.state_dict() has all of it"
        )
    for name, kept in ({} if optimizer is None else optimizer["state"]).items():
        if any(map(is_traceable_wrapper_subclass, kept.values())):
            raise InputError(
                f"the optimizer's state of {name!r} wraps other tensors, which no checkpoint "
                "holds: save it by torch.save, placed.optimizer_state_dict(optimizer) has it"
            )
    return parts


@contextlib.contextmanager
def _saying(what: str) -> Iterator[None]:
    """Raise InputError that begins with what cannot be done where the system refuses it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error}") from error
    except dcp.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise InputError(f"{what}: {first}") from error


def write(folder: Path, model: dict[str, Any], optimizer: Any, group: Any) -> None:
    """Write what this process has; `group`: of all that write, None: this one alone."""
    state: dict[str, Any] = {"model": model}
    if optimizer is not None:
        state[_OPTIMIZER] = optimizer
    with _saying(f"{folder}: cannot write a checkpoint"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process writes
        writer = dcp.FileSystemWriter(folder)
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=group is None)


def write_beside(folder: Path, plan: Plan | None, processes: int, parts: Parts) -> None:
    """Write the plan, the versions, and what weights that have parts are made of."""
    with _saying(f"{folder}: cannot write a checkpoint"):
        folder.mkdir(parents=True, exist_ok=True)
    versions = {"baechi": __version__, "torch": torch.__version__}
    about = {**versions, "processes": processes, "kinds": parts.kinds}
    write_text(folder / _BESIDE, json.dumps(about, indent=2) + "\n")
    if plan is not None:
        plan.save(folder / "plan.json")
        plan.micro_batch_graph.save(folder / "graph.json")
