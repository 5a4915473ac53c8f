# SPDX-License-Identifier: Apache-2.0
"""Links that are kept busy, so that a copy is still to be read when its source is written."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch.base import _private
from baechi.torch.placing import assign
from torch import nn

sim: Any = pytest.importorskip("baechi.torch.sim")

BUSY = "300ms"  # longer than a busy machine takes to come to what would be too early
X = torch.linspace(-1, 1, 8, dtype=torch.float64)

both_tiers = pytest.mark.parametrize("tier", [1, 2])


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    gc.collect()
    with sim.configured(devices=4, asynchronous=True, poison=True, memory="1GiB"):
        yield
        sim.synchronize(0)


def placed(
    model: nn.Module,
    tier: int,
    x: Any = X,
    training: bool = True,
    **devices: tuple[str, ...],
) -> Any:
    """Place operators on the device that names them (`d1=...`), others on the first."""
    captured = baechi.torch.capture(model, x, training=training)
    keys = {op.key for op in captured.ops}
    assert keys.issuperset(key for named in devices.values() for key in named), keys
    device_of = {op.key: "d0" for op in captured.ops}
    device_of.update({key: device for device, named in devices.items() for key in named})
    names = sorted({"d0", *devices})
    physical = {name: f"sim:{i}" for i, name in enumerate(names)}
    return assign(model, captured, device_of, physical, tier=tier)


def keep_busy(place: Any, source: int, target: int) -> None:
    """Let what is sent from now on between two devices wait."""
    devices = place._assigner.devices
    for stream in place._assigner.sent.links._pair(devices[source], devices[target]):
        with _private.on_stream(stream):
            sim.work(BUSY, stream.device)


def goes_wrong(run: Callable[[], None]) -> bool:
    """Whether a test fails in one of a few runs: a slow host may come too late for a fault."""
    for _ in range(5):
        try:
            run()
        except AssertionError:
            return True
    return False
