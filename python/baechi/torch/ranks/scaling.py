# SPDX-License-Identifier: Apache-2.0
"""Scaled gradients: where one rank finds an infinity, all skip the step and lower the scale."""

from __future__ import annotations

from typing import Any

import torch

from baechi.torch.base import _private
from baechi.torch.ranks.elsewhere import ElsewhereGradient
from baechi.torch.ranks.processes import Processes


def agree_on(scaler: Any, processes: Processes) -> None:
    """Have a GradScaler find on every rank what it finds on one."""
    if not scaler.is_enabled():
        return
    known = _private.unscaling_of(scaler)
    if not isinstance(known, _OnAllRanks) or known.processes is not processes:
        local = known.local if isinstance(known, _OnAllRanks) else known
        _private.unscale_by(scaler, _OnAllRanks(local, processes))


class _OnAllRanks:
    """Divides the gradients of this rank by the scale; tells what all ranks found."""

    def __init__(self, local: _private.Unscaling, processes: Processes) -> None:
        self.local = local
        self.processes = processes

    def __call__(
        self, optimizer: Any, inverse: torch.Tensor, found: torch.Tensor, *options: Any
    ) -> dict[torch.device, torch.Tensor]:
        """Return whether a rank found an infinity, where the scale is.

        There alone, so that no flag is copied to the host without a wait.
        """
        with self.processes.agreeing("unscale gradients") as facts:
            facts["scale of the GradScaler"] = str(inverse.item())
            mine = self._unscaled(optimizer, inverse, found, *options)
        flags = self.processes.from_each([mine])
        return {found.device: found.fill_(float(any(flag for (flag,) in flags)))}

    def _unscaled(self, optimizer: Any, *args: Any) -> float:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        away = [(w, w.grad) for w in weights if isinstance(w.grad, ElsewhereGradient)]
        for weight, _ in away:
            weight.grad = None
        try:
            return float(sum(flag.item() for flag in self.local(optimizer, *args).values()))
        finally:
            for weight, gradient in away:
                weight.grad = gradient
