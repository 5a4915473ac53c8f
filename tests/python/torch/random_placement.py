# SPDX-License-Identifier: Apache-2.0
"""Models whose operators are on devices that chance chose."""

from __future__ import annotations

from typing import Any

from baechi.torch.placing import place_with
from torch_models import ALL, built, exported


def simulated(count: int) -> list[str]:
    return [f"sim:{i}" for i in range(count)]


def placed_at_random(model: Any, inputs: Any, devices: int | list[str] = 3, **options: Any) -> Any:
    """Place every operator somewhere: on the devices named, or on so many that are the host."""
    names = ["cpu"] * devices if isinstance(devices, int) else devices
    options = {"method": "random", "bounds": False, "mode": "streams", **options}
    known = options.pop("exported", ())
    where = {"cluster": f"{len(names)}x1GiB", "devices": names}
    return place_with(known, model, inputs, **where, **options)


def scattered_graph(
    name: str, devices: int | list[str] = 3, seed: int = 1, model: Any = None, **options: Any
) -> Any:
    """Place the operators of a case in tier 2; its graph is made once for all tests."""
    model = model or built(ALL[name])
    known = [exported(name)]
    return placed_at_random(
        model, ALL[name].inputs(2), devices, seed=seed, tier=2, exported=known, **options
    )
