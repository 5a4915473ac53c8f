# SPDX-License-Identifier: Apache-2.0
"""Reductions: the gradients that replicas of a program add up, a bucket at a time.

Beyond the paper.

A bucket is handed over as soon as the last of its gradients is there, and other calls go on. Its
sums come back behind all of them. Every replica runs the same list, so the earliest entry that some
rank has not finished waits only for entries before it: sends and reductions never wait in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from baechi.torch.program.calls import Call
from baechi.torch.program.instructions import Run, Slot
from baechi.torch.program.parts import Output, Parts

REDUCE = "reduce"  # ends the name of a bucket's call, by which an order may place it


def begin(bucket: int, *gradients: torch.Tensor) -> None:
    """Hand over the gradients of a bucket; a rank's part has a call of its transport instead."""
    raise RuntimeError(f"bucket {bucket} of {len(gradients)} gradients is reduced by ranks alone")


def end(bucket: int) -> tuple[torch.Tensor, ...]:
    """Return the sums over all replicas of a bucket's gradients, likewise."""
    raise RuntimeError(f"bucket {bucket} is reduced by ranks alone")


def with_reductions(parts: Parts, count: int, buckets: Mapping[str, Collection[int]]) -> None:
    """Have the gradients that a step of ``count`` parts gives be sums over replicas.

    ``buckets`` are their places among the outputs of one part, by the buckets' names. What several
    devices make is in a bucket for each.
    """
    calls = parts.calls
    found: dict[tuple[str, int | None], dict[int, Slot]] = {}
    for name, places in buckets.items():
        for i in (parts.outputs.index(Output(place)) for place in places):
            if isinstance(slot := calls.outputs[i], Slot):
                found.setdefault((name, slot.device), {})[i] = slot
    calls.table += [begin, end]
    ends = []
    for number, ((name, device), there) in enumerate(found.items()):
        assert device is not None  # a gradient is a tensor
        sums = {
            i: replace(slot, name=f"{name}.{i}", bytes=slot.dense, of=None)
            for i, slot in there.items()
        }
        for i, slot in sums.items():
            calls.outputs[i] = slot
        node, title = ((REDUCE, number), count - 1), f"{name}:{REDUCE}"
        parts.last[node[0]] = title
        calls.calls.append(
            Call(node, Run(begin, (number, *there.values()), {}, None, device, title))
        )
        out: Any = tuple(sums.values())
        run = Run(end, (number,), {}, out, device, f"{name}:sums")
        ends.append(Call((("sums", number), count - 1), run, after=(node,)))
    calls.calls += ends
