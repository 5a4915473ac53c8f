# SPDX-License-Identifier: Apache-2.0
"""Plans of chains whose devices are chosen by hand."""

from __future__ import annotations

from collections.abc import Sequence

import baechi


def chain_plan(devices: str, names: Sequence[str]) -> baechi.Plan:
    """Return the plan of operators that hold weights: `devices` has a digit for each of them."""
    builder = baechi.GraphBuilder("chain")
    for i, name in enumerate(names):
        before = [(names[i - 1], 0)] if i > 0 else []
        builder.add(name, {"gpu": 1000}, permanent=64, outputs=[256], inputs=before)
    expert = {name: f"gpu:{device}" for name, device in zip(names, devices, strict=True)}
    return baechi.place_graph(
        builder.build(), "3xgpu:1GiB", method="expert", expert=expert, optimize="none"
    )
