# SPDX-License-Identifier: Apache-2.0
"""Steps of RoundPipe, which streams weights through rounds of stages, and ours on the same layers.

Layer times and steps of its published simulation (ITcarrot/RoundPipe-artifact, MIT licence): 16
micro-batches; the host's updates, which RoundPipe hides, take no time; no message waits for
another. ``pytest -s`` prints the table of docs/explanation/host_memory.md.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

import baechi


class Published(NamedTuple):
    """Milliseconds; millions of parameters."""

    layers: int
    forward: float
    backward: float  # with the second forward pass
    head_forward: float
    head_backward: float
    message: float
    parameters: int
    head_parameters: int
    equal: int  # its step on eight equal cards
    unequal: int  # four of them are half as fast


PUBLISHED = {
    "Llama 8B": Published(32, 18.504, 59.711, 37.226, 74.501, 3.2, 218, 525, 6101, 10518),
    "Qwen 32B": Published(64, 40.561, 131.735, 54.928, 108.294, 4.0, 488, 778, 23979, 45198),
}
PCIE4 = 25_000  # bytes of a microsecond


def layered(model: Published) -> baechi.Graph:
    """One micro-batch; weights in two bytes, Adam's state in twelve."""
    graph = baechi.GraphBuilder("layers")
    names = [*(f"layer{i}" for i in range(model.layers)), "head"]
    message = round(model.message * 1_000 * PCIE4)

    def times(layer: float, head: float, name: str) -> dict[str, int]:
        return {"gpu": round((head if name == "head" else layer) * 1e6)}

    def weights(name: str) -> int:
        return 2_000_000 * (model.head_parameters if name == "head" else model.parameters)

    layers = list(zip(names, [None, *names[:-1]], strict=True))
    for name, before in layers:
        graph.add(f"{name}/weight", outputs=[weights(name)], variable=True)
        graph.add(f"{name}/state", outputs=[6 * weights(name)], variable=True)
        read = [(f"{name}/weight", 0)] + ([(before, 0)] if before else [])
        time = times(model.forward, model.head_forward, name)
        graph.add(name, time, outputs=[message], inputs=read)
    behind = "head"
    for name, before in reversed(layers):
        read = [(f"{name}/weight", 0), (behind, 0)] + ([(before, 0)] if before else [])
        time = times(model.backward, model.head_backward, name)
        behind = f"{name}/back"
        graph.add(behind, time, outputs=[message, weights(name)], inputs=read, forward=name)
        kept = [(behind, 1), (f"{name}/weight", 0), (f"{name}/state", 0)]
        update = {"gpu": 0, "host": 0}
        graph.add(f"{name}/update", update, inputs=kept, backward=True, per_step=True)
    return graph.build()


@pytest.mark.parametrize("name", PUBLISHED)
def test_rounds_take_no_longer_than_those_published(name: str) -> None:
    model = PUBLISHED[name]
    for cards, published, queues in (
        ("8x24GiB", model.equal, "parallel"),
        ("4x24GiB+4x24GiB@0.5", model.unequal, "parallel"),
        ("8x24GiB", model.equal, "duplex"),  # of the host and of cards, which RoundPipe has not
    ):
        cluster = baechi.Cluster(f"{cards}+host:2TiB", link="pcie4", communication=queues)
        for copies in ("together", "free") if queues == "parallel" else ("together",):
            plan = baechi.place_graph(
                layered(model),
                cluster,
                micro_batches=16,
                residency="auto",
                recompute="none",
                place_copies=copies,
                method="pipeline",  # what stands beside rounds: other methods plan for seconds
            )
            assert baechi.verify(plan) == []
            step = plan.makespan_ns / 1e6
            ratio, case = published / step, f"{name}, {cards}, {queues}, {copies}"
            print(f"\n{case}: {published} published, {step:.0f} ms, {ratio:.2f}")
            least = 1.4 if copies == "free" and published == model.unequal else 1.0
            assert ratio >= least
