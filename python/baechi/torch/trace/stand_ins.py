# SPDX-License-Identifier: Apache-2.0
"""A model whose weights are on devices, as a trace on the host wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from baechi.torch.base import _private
from baechi.torch.base.nested import is_one_value


@contextlib.contextmanager
def weights_on_host(model: nn.Module) -> Iterator[None]:
    """Put stand-ins on the host, whose memory is never touched, for weights that are elsewhere.

    The weights themselves stay as they are: other data would part them from a graph of autograd
    that is there already, and `torch.autograd.grad` from what it is to differentiate by.
    """
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    weights = [(t, n, w) for t in tables for n, w in t.items() if w is not None]
    away = [(t, n, w) for t, n, w in weights if not w.is_cpu or is_one_value(w)]
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
    if is_one_value(weight):
        twin = torch.empty(weight.size(), dtype=weight.dtype)
    else:
        twin = torch.empty_strided(weight.size(), weight.stride(), dtype=weight.dtype)
    return nn.Parameter(twin, weight.requires_grad) if isinstance(weight, nn.Parameter) else twin


def _refresh(model: nn.Module) -> None:
    for module in model.modules():
        _private.refresh_flat_weights(module)
