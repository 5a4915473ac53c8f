# SPDX-License-Identifier: Apache-2.0
"""Peers are given our graphs, and their placements are simulated as ours are."""

from __future__ import annotations

import pytest

import baechi
from experiments import peer_placers, peers, scopes
from experiments.workloads import GNMT, Workload

pytest.importorskip("accelerate", reason="accelerate is not installed")

TINY = Workload("GNMT, length 1, batch 4", "gnmt", {"length": 1, "batch": 4}, GNMT)
CLUSTER = baechi.Cluster("paper")


@pytest.fixture(scope="module")
def graph() -> baechi.Graph:
    return TINY.graph()


def test_a_tree_of_modules_has_the_permanent_bytes_of_its_scopes(graph: baechi.Graph) -> None:
    model, module_of = peer_placers.module_tree(graph, GNMT.layers)
    permanent = {name: graph[name].permanent for name in graph.names}
    assert sum(p.numel() for p in model.parameters()) == sum(permanent.values())
    cell = model.get_submodule("enc.cell_0")
    inside = [name for name, module in module_of.items() if module.startswith("enc.cell_0.")]
    assert sum(p.numel() for p in cell.parameters()) == sum(permanent[name] for name in inside)
    assert type(cell).__name__ == "Layer"
    assert sum(type(module).__name__ == "Layer" for module in model.modules()) == 8


def test_accelerate_splits_no_layer_and_offloads_what_does_not_fit(graph: baechi.Graph) -> None:
    balanced = peer_placers.accelerate_placement(graph, CLUSTER, GNMT.layers, "auto")
    assert balanced is not None
    for layer in scopes.layers(graph, GNMT.layers):
        assert len({d for name, d in balanced.items() if name.startswith(f"{layer}/")}) == 1
    assert len(set(balanced.values())) > 1
    one = peer_placers.accelerate_placement(graph, CLUSTER, GNMT.layers, "sequential")
    assert one is not None
    assert set(one.values()) == {"gpu:0"}  # it all fits there
    small = baechi.Cluster("2x8MiB")
    assert peer_placers.accelerate_placement(graph, small, GNMT.layers, "auto") is None


def diamond() -> baechi.Graph:
    """Two branches of 100 us between short ends; nothing takes time to send."""
    builder = baechi.GraphBuilder("diamond")
    builder.add("first", {"gpu": 1_000}, outputs=[8])
    for side in ("left", "right"):
        builder.add(side, {"gpu": 100_000}, inputs=[("first", 0)], outputs=[8])
    builder.add("last", {"gpu": 1_000}, inputs=[("left", 0), ("right", 0)])
    return builder.build()


@pytest.mark.parametrize("scheduler", ["HEFT", "ETF"])
def test_saga_sees_times_and_transfers(scheduler: str) -> None:
    pytest.importorskip("saga", reason="anrg-saga is not installed")
    graph = diamond()
    near = baechi.Cluster("2x1GiB", link="1us,1GB/s")
    placement = peer_placers.saga_placement(graph, near, scheduler)
    assert placement["left"] != placement["right"]
    far = baechi.Cluster("2x1GiB", link="10ms,1GB/s")
    apart = peer_placers.saga_placement(graph, far, scheduler)
    assert len(set(apart.values())) == 1


def test_peers_are_simulated_as_we_are(
    graph: baechi.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("saga", reason="anrg-saga is not installed")
    monkeypatch.setattr(peers, "SAGA_OPERATORS", 100)
    rows = {row["placer"]: row for row in peers.rows(TINY)}
    best = baechi.place_graph(graph, CLUSTER, "auto").makespan_ns
    assert rows["auto"]["step"] == best
    heft = peers.on_fused(graph, CLUSTER, "HEFT")
    replay = baechi.simulate(graph, CLUSTER, heft)
    assert baechi.verify(replay) == []
    row = rows["SAGA HEFT, fused graph"]
    assert row["step"] == replay.makespan_ns
    assert row["peak"] == max(replay.peaks.values())
    assert row["over auto"] == replay.makespan_ns / best
