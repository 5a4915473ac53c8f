# SPDX-License-Identifier: Apache-2.0
"""Drawn numbers of modules: what a checkpoint runs again eagerly draws them once more.

PyTorch's checkpoint puts back the generators of the devices where its arguments are. Its modules
may be on others, and draw as they did from where they begin.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from baechi._core import InputError
from baechi.torch.where.moving import map_tensors

States = dict[torch.device, torch.Tensor]


class Drawn:
    """The states of all generators when the modules of one call of a model began."""

    def __init__(self, devices: Collection[torch.device]) -> None:
        self.devices = devices
        self._begun: dict[Hashable, list[tuple[list[Hashable], States]]] = {}
        self._now: States = {}  # those to go back to, while a checkpoint runs again

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def note(self, module: Hashable, given: Any) -> None:
        """Note that a module begins."""
        if is_in_torch_dispatch_mode():  # a selective checkpoint's, to which states are tensors
            return
        self._begun.setdefault(module, []).append((_memory_of(given), self._states()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def put_back(self, module: Hashable, given: Any) -> None:
        """Have a module that begins again draw what it drew."""
        begun = [] if is_in_torch_dispatch_mode() else self._begun.get(module, [])
        if len(begun) > 1:
            memory = _memory_of(given)
            begun = [one for one in begun if one[0] == memory] or begun
        if not begun:
            return
        states = begun[0][1]
        for _, others in begun[1:]:
            if any(not torch.equal(states[d], others[d]) for d in self.devices):
                raise InputError(
                    "torch.utils.checkpoint: a module that was called several times, and drew "
                    "random numbers, runs again outside of graphs, and nothing tells which call "
                    "it is: give each call a checkpoint of its own"
                )
        for device, now in self._states().items():
            if not torch.equal(now, states[device]):  # else a checkpoint has put it back itself
                self._now.setdefault(device, now)
                set_state(device, states[device])

    def end(self) -> None:
        """Have what follows draw as if nothing had run again."""
        for device, state in self._now.items():
            set_state(device, state)
        self._now = {}

    def _states(self) -> States:
        return {device: state_of(device) for device in self.devices}


def state_of(device: torch.device) -> torch.Tensor:
    """Return the state of a device's generator."""
    if device.type == "cpu":
        return torch.get_rng_state()
    found: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return found


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Put back the state of a device's generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _memory_of(given: Any) -> list[Hashable]:
    """Return what tells the arguments of one call from those of another."""
    found: list[Hashable] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        try:
            address = tensor.data_ptr()
        except (RuntimeError, NotImplementedError):  # of what has none: sparse, inside torch.func
            address = id(tensor)
        found.append((address, tensor._version, tensor.shape))
        return tensor

    map_tensors(look, given)
    return found
