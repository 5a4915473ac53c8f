# SPDX-License-Identifier: Apache-2.0
"""Second runs through Python: plans, marks, and graphs that are made without the planner."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import baechi
from experiments.insufficient_memory import need, with_capacity
from experiments.recompute_small import small_graph
from experiments.second_runs import SecondRuns, repeatable

SECOND_OF_THREE = 27 + 2  # nanoseconds: the step of three_layers(), and f0 once more


def three_layers(*, marked: bool = False) -> baechi.Graph:
    """Chain: x -> f0 -> f1 -> f2 -> b2 -> b1 -> b0; bi also reads what fi reads."""
    builder = baechi.GraphBuilder("three")
    builder.add("x", {"gpu": 0}, outputs=[1])
    before = "x"
    for i, (time, size) in enumerate([(2, 10), (3, 10), (4, 5)]):
        builder.add(
            f"f{i}",
            {"gpu": time},
            inputs=[(before, 0)],
            outputs=[size],
            recompute=not (marked and i == 0),
        )
        before = f"f{i}"
    builder.add("b2", {"gpu": 5}, inputs=[("f1", 0), ("f2", 0)], outputs=[1], forward="f2")
    builder.add("b1", {"gpu": 6}, inputs=[("f0", 0), ("b2", 0)], outputs=[1], forward="f1")
    builder.add("b0", {"gpu": 7}, inputs=[("x", 0), ("b1", 0)], forward="f0")
    return builder.build()


def one(capacity: int) -> baechi.Cluster:
    return baechi.Cluster(f"1x{capacity}B")


def test_a_plan_with_second_runs_goes_through_its_file(tmp_path: Path) -> None:
    graph = three_layers()
    plan = baechi.place_graph(graph, one(21), recompute="auto")
    assert plan.makespan_ns == SECOND_OF_THREE
    assert plan.recomputed == [("f0", "b2")]
    assert plan.micro_batch_graph.names == graph.names
    assert plan.graph.names == [*graph.names, "f0@again"]
    assert baechi.verify(plan) == []
    again = baechi.Plan.from_json(plan.to_json(), graph)
    assert again.to_json() == plan.to_json()
    assert baechi.verify(again) == []
    told = json.loads(plan.to_json())
    with pytest.raises(baechi.InputError, match=r"recomputed.*planned order or that of"):
        baechi.Plan.from_json(json.dumps({**told, "order": "none"}), graph)
    assert "f0@again" in baechi.report(plan, tmp_path / "plan.html").read_text()
    with pytest.raises(baechi.InputError, match="the plan's order"):
        plan.with_order("program")
    with pytest.raises(baechi.InputError, match="second time"):
        baechi.export_plan(plan, "device-map")


def test_what_does_not_fit_says_what_second_runs_would_bring() -> None:
    with pytest.raises(baechi.DoesNotFit, match="with recompute auto it fits") as error:
        baechi.place_graph(three_layers(), one(21))
    again = baechi.place_graph(three_layers(), one(21), recompute="auto")
    assert error.value.step_with_recomputation_ns == again.makespan_ns
    with pytest.raises(baechi.DoesNotFit) as marked:
        baechi.place_graph(three_layers(marked=True), one(21))
    assert marked.value.step_with_recomputation_ns is None


def test_plans_in_program_order_go_through_their_file() -> None:
    graph = three_layers()
    plan = baechi.place_graph(graph, one(21), recompute="auto", order="program")
    assert plan.recomputed
    assert plan.order == "program"
    assert baechi.verify(plan) == []
    again = baechi.Plan.from_json(plan.to_json(), graph)
    assert again.to_json() == plan.to_json()
    assert baechi.verify(again) == []
    with pytest.raises(baechi.InputError, match="the plan's order"):
        plan.with_order("planned")


def test_what_is_marked_does_not_run_again() -> None:
    graph = three_layers(marked=True)
    assert not graph["f0"].recompute
    with pytest.raises(baechi.DoesNotFit):
        baechi.place_graph(graph, one(21), recompute="auto", suggest=False)


def test_graphs_of_second_runs_made_otherwise_take_as_long_and_hold_as_much() -> None:
    graph = three_layers()
    plan = baechi.place_graph(graph, one(21), recompute="auto")
    made = SecondRuns(graph).rewritten(["f0"])
    replayed = baechi.simulate(made, one(21), dict.fromkeys(made.names, "gpu:0"), order="program")
    assert replayed.makespan_ns == plan.makespan_ns
    assert replayed.peaks == plan.peaks
    assert repeatable(graph) == ["f0", "f1", "f2"]


def random_training(seed: int, layers: int) -> baechi.Graph:
    """Make operators that read one or two of those before them, and their backward."""
    drawn, builder = random.Random(seed), baechi.GraphBuilder("training")
    builder.add("x", {"gpu": 0}, outputs=[1])
    names, reads = ["x"], {}
    for i in range(1, layers + 1):
        reads[i] = sorted({names[-1], drawn.choice(names[-6:])})
        inputs, size = [(name, 0) for name in reads[i]], drawn.randint(1, 2_000)
        builder.add(f"f{i}", {"gpu": drawn.randint(1, 2_000)}, inputs=inputs, outputs=[size])
        names.append(f"f{i}")
    for i in range(layers, 0, -1):
        inputs = [(name, 0) for name in reads[i]]
        inputs += [(f"b{j}", 0) for j in range(i + 1, layers + 1) if f"f{i}" in reads[j]]
        time = {"gpu": drawn.randint(1, 2_000)}
        builder.add(f"b{i}", time, inputs=inputs, outputs=[1], forward=f"f{i}")
    return builder.build()


@pytest.mark.parametrize(("part", "seed"), [(0.6, 0), (0.6, 5), (0.45, 4), (0.45, 5), (0.45, 6)])
def test_auto_is_never_longer_than_none(part: float, seed: int) -> None:
    """Also where the search for second runs is in vain."""
    graph = random_training(seed, 60)
    room = int(part * sum(sum(graph[name].outputs) for name in graph.names))
    cluster = baechi.Cluster(f"3x{room}B", link="0.1us,1GB/s")
    none = baechi.place_graph(graph, cluster, budget=0.05)
    auto = baechi.place_graph(graph, cluster, budget=0.05, recompute="auto")
    assert auto.makespan_ns <= none.makespan_ns


def test_a_device_that_waits_repeats_what_the_other_then_reads() -> None:
    """The optimum, 306 us, has no second run on the longest path; without such a search: 362."""
    graph = small_graph(3, "branches", 13, grain=1_000)
    room = int(0.4 * need(graph, baechi.Cluster("1x1GiB")))
    two = baechi.Cluster("2x1GiB", link="4us,100GB/s", communication="parallel")
    plan = baechi.place_graph(
        graph, with_capacity(two, room), budget=0.2, bounds=False, recompute="auto"
    )
    assert plan.makespan_ns <= 330_000
    assert not baechi.verify(plan)
