# SPDX-License-Identifier: Apache-2.0
"""Host operators: what the host computes itself takes time on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.torch.sim.settings import Link, library, nanoseconds


class HostOperators(TorchDispatchMode):
    """Charges operators on the CPU in a ``with`` block as `configure` charges those of devices.

    A whole model is not compiled in such a block, so it is for what follows a step: an optimizer's.
    """

    def __init__(
        self, operator_time: float | str = 0.0, memory_bandwidth: float | str | None = None
    ) -> None:
        super().__init__()
        self._operator_ns = nanoseconds(operator_time)
        self._ns_per_byte = Link(bandwidth=memory_bandwidth).ns_per_byte()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and charge it."""
        out = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((out, args, kwargs))
        touched = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        made = any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(out))
        if made and not func.is_view and all(one.device.type == "cpu" for one in touched):
            moved = sum(one.nbytes for one in touched)
            library.baechi_sim_host_work(self._operator_ns + round(self._ns_per_byte * moved))
        return out
