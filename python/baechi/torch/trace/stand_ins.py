# SPDX-License-Identifier: Apache-2.0
"""A model whose weights are on devices, as a trace on the host wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private


@contextlib.contextmanager
def weights_on_host(model: nn.Module) -> Iterator[None]:
    """Put stand-ins on the host, whose memory is never touched, for weights that are elsewhere.

    The weights themselves stay as they are: other data would part them from a graph of autograd
    that is there already, and `torch.autograd.grad` from what it is to differentiate by.
    """
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    away = [(t, n, w) for t in tables for n, w in t.items() if w is not None and not w.is_cpu]
    twins = {id(weight): _stand_in(weight) for _, _, weight in away}
    try:
        for table, name, weight in away:
            table[name] = twins[id(weight)]
        _refresh(model)
        yield
    finally:
        for table, name, weight in away:
            table[name] = weight
        _refresh(model)


def _stand_in(weight: torch.Tensor) -> Any:
    twin = torch.empty_strided(weight.size(), weight.stride(), dtype=weight.dtype)
    return nn.Parameter(twin, weight.requires_grad) if isinstance(weight, nn.Parameter) else twin


def _refresh(model: nn.Module) -> None:
    for module in model.modules():
        _private.refresh_flat_weights(module)
