# SPDX-License-Identifier: Apache-2.0
"""Brings what optimizers keep beside parameters to where these went (Paper 4.3).

An optimizer that has stepped, or has loaded a checkpoint, holds tensors next to each parameter.
They go along with it at once: in a hook of the next step they would come too late, since the
forward and the backward before it count on their room.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from baechi.torch.base.nested import map_tensors


def follow(moved: Sequence[tuple[torch.Tensor, torch.device]]) -> None:
    """Move the state of parameters that were moved; each is given with where it came from.

    A tensor goes along if it was where its parameter was: what is elsewhere was put there.
    """
    came_from = {id(p): device for p, device in moved if p.device != device}
    if not came_from:
        return
    for optimizer, state in _states():
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for parameter, values in state.items():
            device = came_from.get(id(parameter))
            if device is not None and isinstance(values, dict):
                on_device = _scalars_follow(groups.get(id(parameter), {}))
                for key, value in values.items():
                    values[key] = _moved(value, device, parameter.device, on_device)


def forget(parameters: Sequence[torch.Tensor]) -> list[Optimizer]:
    """Drop what optimizers keep for parameters; return those that kept something."""
    gone = {id(parameter) for parameter in parameters}
    kept_some = []
    for optimizer, state in _states():
        keys = [key for key in state if id(key) in gone]
        for key in keys:
            del state[key]
        if keys:
            kept_some.append(optimizer)
    return kept_some


def _states() -> Iterator[tuple[Optimizer, Any]]:
    """Yield the live optimizers that hold state of their own, which is none of a wrapper's."""
    classes = _kinds_of(Optimizer)
    for thing in gc.get_objects():
        if type(thing) in classes:
            state = vars(thing).get("state")
            if isinstance(state, Mapping) and state and "param_groups" in vars(thing):
                yield thing, state


def _kinds_of(one: type) -> set[type]:
    """Return a class and all that are derived from it: to look a type up is quick."""
    derived: list[type] = one.__subclasses__()
    return {one}.union(*map(_kinds_of, derived))


def _scalars_follow(group: Mapping[str, Any]) -> bool:
    """Whether counts of steps are where the parameter is; else PyTorch wants them on the host."""
    return bool(group.get("capturable") or group.get("fused"))


def _moved(value: Any, device: torch.device, target: torch.device, on_device: bool) -> Any:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        stays = tensor.dim() == 0 and tensor.device.type == "cpu" and not on_device
        if stays or tensor.device != device:
            return tensor
        with torch.inference_mode(tensor.is_inference()):
            return tensor.to(target)

    return map_tensors(move, value)
