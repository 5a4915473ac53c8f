# SPDX-License-Identifier: Apache-2.0
"""Measured pipelines on unequal GPUs with slow links: sends that block predict them better.

Data of Sailor's published validation (eth-easl/sailor, MIT licence, `simulations/validation/mit`):
1F1B by Megatron-DeepSpeed over Titan RTX, RTX 2080 and RTX 3090 nodes. ``pytest -s`` prints the
table of docs/explanation/pipelines.md.
"""

from __future__ import annotations

from typing import NamedTuple

import baechi


class Measured(NamedTuple):
    """Times of stages and of messages between them in ms, the rest in s."""

    name: str
    micro_batches: int
    step: float
    after: float  # update and all-reduce of gradients
    forward: list[float]
    backward: list[float]
    activations: list[float]
    gradients: list[float]


MEASURED = [
    Measured("N2, D1", 128, 119.84, 0.01, [62.9, 236.0], [143.4, 413.5], [146.3], [146.3]),
    Measured(
        *("N3, D1", 72, 59.46, 5.47, [281.6, 149.5, 116.4], [277.5, 181.1, 152.7]),
        *([148.0, 149.4], [149.4, 149.4]),
    ),
    Measured(
        *("N4, D1", 128, 83.77, 0.0, [169.0, 116.2, 97.2, 105.8], [158.5, 140.9, 121.9, 135.4]),
        *([148.0, 149.4, 149.4], [149.4, 149.4, 149.4]),
    ),
    Measured("N4, D2", 64, 66.07, 7.17, [431.7, 222.1], [436.1, 276.3], [148.0], [144.7]),
    Measured(
        *("N6, D2", 72, 59.46, 5.47, [281.6, 149.5, 139.1], [277.5, 181.1, 175.6]),
        *([149.4, 5.9], [149.4, 5.9]),
    ),
    Measured("N6, D3", 48, 54.24, 8.9, [431.7, 222.1], [436.1, 276.3], [149.4], [149.4]),
]


def predicted(pipeline: Measured, sends: str) -> float:
    """Seconds of its step in 1F1B; a byte takes a nanosecond."""
    graph = baechi.GraphBuilder("pipeline")
    stages = range(len(pipeline.forward))

    def ns(ms: float) -> int:
        return round(ms * 1e6)

    for s in stages:
        out = [0, ns(pipeline.activations[s])] if s < stages[-1] else [0]
        read = [(f"f{s - 1}", 1)] if s else []
        graph.add(f"f{s}", {"gpu": ns(pipeline.forward[s])}, outputs=out, inputs=read)
    for s in reversed(stages):
        read = [(f"f{s}", 0)] + ([(f"b{s + 1}", 0)] if s < stages[-1] else [])
        out = [ns(pipeline.gradients[s - 1])] if s else []
        time = {"gpu": ns(pipeline.backward[s])}
        graph.add(f"b{s}", time, outputs=out, inputs=read, forward=f"f{s}")
    devices = {f"{kind}{s}": f"gpu:{s}" for s in stages for kind in "fb"}
    cluster = baechi.Cluster(
        f"{len(stages)}x64GiB", link="0ns,1GB/s", communication="parallel", sends=sends
    )
    plan = baechi.place_graph(
        graph.build(), cluster, "1f1b", expert=devices, micro_batches=pipeline.micro_batches
    )
    assert baechi.verify(plan) == []
    return plan.makespan_ns / 1e9 + pipeline.after


def test_sends_that_block_predict_measured_pipelines_better() -> None:
    errors = []
    print("\npipeline  measured  free  error  blocking  error")
    for pipeline in MEASURED:
        times = [predicted(pipeline, sends) for sends in ("free", "blocking")]
        errors.append([abs(time / pipeline.step - 1) for time in times])
        print(
            f"{pipeline.name}  {pipeline.step:.1f} s",
            *(f"{time:.1f} s {time / pipeline.step - 1:+.1%}" for time in times),
        )
    free, blocking = (sum(column) / len(MEASURED) for column in zip(*errors, strict=True))
    print(f"mean {free:.1%} {blocking:.1%}, most", *map(max, zip(*errors, strict=True)))
    assert 0.15 < free < 0.18
    assert 0.08 < blocking < 0.1
    assert max(error for _, error in errors) < 0.15
    assert max(error for error, _ in errors) > 0.3
