# SPDX-License-Identifier: Apache-2.0
"""Keeps what has no values out of the caches of a model's functions (`functools.lru_cache`).

Where only shapes are computed, a table that such a function makes at its first call would be one of
shapes, and later calls would be given that. It is made with values instead, or is not kept.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from baechi.torch.base import _private_export
from baechi.torch.base.nested import held_tensors, tensors_in
from baechi.torch.record.code_names import Names, cache_in, caches_of, with_function


def _with_values(cache: Any, refused: Callable[[str], None]) -> Callable[..., Any]:
    """Return what stands for a function with a cache while only shapes are computed."""

    @functools.wraps(cache)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(True for _ in tensors_in((args, tuple(kwargs.values())))):
            return cache.__wrapped__(*args, **kwargs)  # tensors are equal to themselves only
        with _private_export.no_tracing():
            before = torch.get_rng_state()
            found = cache.__wrapped__(*args, **kwargs)
            drew = not torch.equal(before, torch.get_rng_state())
            torch.set_rng_state(before)
        tensors = list(held_tensors(found))
        without_values = any(map(_private_export.is_without_values, tensors))
        elsewhere = bool(tensors) and torch.get_default_device().type != "cpu"
        reasons = {
            "what it computes from weights": without_values,
            "what it makes on the default device": elsewhere,
            "random numbers": drew,
        }
        for what in (what for what, is_so in reasons.items() if is_so):
            refused(f"{cache.__qualname__} keeps {what} in a cache")
        with _private_export.no_tracing():
            return cache(*args, **kwargs)

    return call


def _by(cache: Any) -> Callable[..., Any]:
    @functools.wraps(cache)
    def call(*args: Any, **kwargs: Any) -> Any:
        return cache.__wrapped__(*args, **kwargs)

    return call


@contextlib.contextmanager
def _replaced(model: nn.Module, by: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    found = [(names, names.values()) for names in caches_of(model)]
    replaced: list[tuple[Names, tuple[Any, ...]]] = []
    try:
        for names, (value,) in found:
            names.put((with_function(value, _as(cache_in(value), by)),))
            replaced.append((names, (value,)))
        yield
    finally:
        for names, before in replaced:
            names.put(before)


def _as(cache: Any, by: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Return what stands for a function with a cache, which is asked about the cache, too."""
    call: Any = by(cache)
    call.cache_info, call.cache_clear = cache.cache_info, cache.cache_clear
    call.cache_parameters = cache.cache_parameters
    return cast("Callable[..., Any]", call)


def filled_with_values(
    model: nn.Module, refused: Callable[[str], None]
) -> contextlib.AbstractContextManager[None]:
    """Have functions with caches compute values; `refused` is told of one that cannot."""
    return _replaced(model, functools.partial(_with_values, refused=refused))


def passed_by(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Have functions with caches keep nothing."""
    return _replaced(model, _by)
