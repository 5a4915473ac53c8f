# SPDX-License-Identifier: Apache-2.0
"""Which known devices stand for those of a cluster when costs are estimated."""

from __future__ import annotations

from baechi._core import Cluster, InputError, device_presets

STORE = "host"  # the kind of a device that keeps what is away: it runs updates, and no call


def presets_of(cluster: Cluster, default: str) -> dict[str, str]:
    """Return the preset of every device kind of a cluster; `default` stands for plain "gpu"."""
    known = device_presets()
    kinds = {}
    for device in cluster.devices:
        if device.kind in known:
            kinds[device.kind] = device.kind
        elif device.kind == "gpu":
            kinds[device.kind] = default
        elif device.kind != STORE:
            raise InputError(
                f"no preset stands for devices of kind {device.kind!r}: measure the costs, or name "
                f"the kind one of {', '.join(sorted(known))}"
            )
    return kinds
