# SPDX-License-Identifier: Apache-2.0
"""The weights of a model on the devices of a plan, until they are brought back (Paper 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from baechi.torch.base.devices import LogicalDevice
from baechi.torch.base.moving import flatten_recurrent, move_weights
from baechi.torch.weights.homes import named_weights
from baechi.torch.weights.kept_weights import check_weights
from baechi.torch.weights.optimizer_state import follow


class MovedWeights:
    """Moves parameters and buffers without a change of identity, and what optimizers keep."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._came_from: list[tuple[torch.Tensor, torch.device]] = []
        self._devices: dict[str, LogicalDevice] = {}

    @property
    def devices(self) -> dict[str, str]:
        """The cluster's device of every weight, by name."""
        return {name: device.name for name, device in self._devices.items()}

    @property
    def first_home(self) -> torch.device | None:
        """Where the first weight was."""
        return self._came_from[0][1] if self._came_from else None

    @property
    def moved(self) -> list[torch.Tensor]:
        """The weights that were moved."""
        return [tensor for tensor, _ in self._came_from]

    def move(self, goes: Sequence[tuple[torch.Tensor, LogicalDevice]]) -> None:
        """Move all weights, given in the order of `named_weights`."""
        self._came_from = [(tensor, tensor.device) for tensor, _ in goes]
        names = [name for name, _ in named_weights(self._model)]
        self._devices = {n: device for n, (_, device) in zip(names, goes, strict=True)}
        here = [(t, device) for t, device in goes if not (device.is_elsewhere or t.is_meta)]
        move_weights([(tensor, device.torch_device) for tensor, device in here])
        follow(self._came_from)
        flatten_recurrent(self._model)

    def bring_back(self, devices: Iterable[LogicalDevice]) -> None:
        """Move the weights to where they were, and with them those made on `devices` since."""
        made = self._made_since({d.torch_device for d in devices})
        goes = [(t, home) for t, home in (*self._came_from, *made) if home.type != "meta"]
        came_from = [(tensor, tensor.device) for tensor, _ in goes]
        move_weights(goes)
        follow(came_from)
        self._came_from = []

    def _made_since(self, ours: set[torch.device]) -> list[tuple[torch.Tensor, torch.device]]:
        """Return the weights made on our devices since, and where the others came from."""
        homes = {home for _, home in self._came_from}
        known = {id(tensor) for tensor, _ in self._came_from}
        if len(homes) != 1:
            return []
        weights = [tensor for _, tensor in named_weights(self._model) if id(tensor) not in known]
        return [(tensor, *homes) for tensor in weights if tensor.device in ours]

    def raise_if_elsewhere(self, error: RuntimeError) -> None:
        """Raise a clearer error if weights are not where they should be."""
        check_weights(self._model, self._devices, error)
