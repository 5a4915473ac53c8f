# SPDX-License-Identifier: Apache-2.0
"""The package from end to end: graphs, clusters, plans, and what goes wrong."""

from __future__ import annotations

import math
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import baechi


def diamond() -> baechi.Graph:
    """Build a -> b, c -> d with one shared tensor, 10 ns each; c also runs on a CPU."""
    builder = baechi.GraphBuilder("diamond", batch_size=4)
    builder.add("a", {"gpu": 10}, outputs=[100])
    builder.add("b", {"gpu": 10}, inputs=[("a", 0)], outputs=[50], permanent=7, kind="MatMul")
    builder.add("c", {"gpu": 10, "cpu": 30}, inputs=[("a", 0)], outputs=[1, 60], temporary=3)
    builder.add("d", {"*": 10}, inputs=[("b", 0), ("c", 1)], after=["a"], forward="a")
    return builder.build()


def test_builder_and_operator_views_say_the_same() -> None:
    graph = diamond()
    assert len(graph) == 4
    assert graph.names == ["a", "b", "c", "d"]
    assert "c" in graph
    assert "e" not in graph
    c = graph["c"]
    assert (c.index, c.times, c.outputs, c.temporary) == (2, {"gpu": 10, "cpu": 30}, [1, 60], 3)
    d = graph[-1]
    assert d.inputs == [("b", 0), ("c", 1)]
    assert (d.after, d.forward, d.backward) == (["a"], "a", True)
    assert graph["b"].permanent == 7
    assert graph["b"].kind == "MatMul"
    assert graph.batch_size == 4
    assert set(graph.device_kinds) == {"gpu", "cpu", "*"}
    with pytest.raises(KeyError, match="no operator 'e'"):
        graph["e"]
    for outside in [4, -5, 2**70]:
        with pytest.raises(IndexError):
            graph[outside]
    with pytest.raises(TypeError):
        graph[1.5]  # type: ignore[index]


def test_the_optimizer_says_what_it_did() -> None:
    graph = baechi.generate("gnmt", length=4)
    optimized = baechi.optimize_graph(graph, "paper")
    assert [p.name for p in optimized.passes] == ["colocate", "coplace", "fuse", "forward"]
    assert optimized.passes[0].before[0] == len(graph)
    assert optimized.passes[-1].after[0] == len(optimized.graph) < len(graph)
    assert len(optimized.pass_times_ns) == 4
    members = [name for op in optimized.graph.names for name in optimized.members(op)]
    assert sorted(members) == sorted(graph.names)
    plan = baechi.place_graph(graph, "paper", "m-etf", optimize="fuse", bounds=False)
    assert [p.after for p in plan.passes] == [p.after for p in optimized.passes[:3]]
    assert "coplace" in str(plan)
    assert baechi.place_graph(graph, "paper", "m-etf", optimize="none").passes == []
    with pytest.raises(baechi.InputError, match="or all, found 'most'"):
        baechi.optimize_graph(graph, "paper", "most")


def test_graph_survives_files_and_pickling(tmp_path: Path) -> None:
    graph = diamond()
    graph.save(tmp_path / "graph.json")
    assert baechi.Graph.load(tmp_path / "graph.json") == graph
    assert baechi.Graph.from_json(graph.to_json()) == graph
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert graph != baechi.generate("chain", operators=4)


def test_bad_input_is_a_value_error_that_names_the_place(tmp_path: Path) -> None:
    builder = baechi.GraphBuilder()
    builder.add("a", {"gpu": 1})
    with pytest.raises(baechi.InputError, match="duplicate operator name 'a'"):
        builder.add("a", {"gpu": 1})
    with pytest.raises(ValueError, match="negative compute time"):
        builder.add("b", {"gpu": -1})
    with pytest.raises(baechi.InputError, match="memory_mode is 'dataflow' or 'retain', not 'zz'"):
        baechi.GraphBuilder(memory_mode="zz")
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "baechi-graph", "version": 1, "operators": [{"nme": "x"}]}')
    with pytest.raises(baechi.InputError, match=r"bad\.json:1:\d+: \$\.operators\[0\]"):
        baechi.Graph.load(bad)
    with pytest.raises(baechi.InputError, match="no_such_file"):
        baechi.Graph.load("no_such_file.json")
    with pytest.raises(baechi.InputError):
        baechi.Cluster("4 potatoes")
    with pytest.raises(baechi.InputError, match=r"method: expected one of auto, .*'magic'"):
        baechi.place_graph(diamond(), "2x8GiB", method="magic")
    with pytest.raises(baechi.InputError):
        baechi.place_graph(diamond(), "2x8GiB", budget=float("nan"))


def test_a_builder_builds_once() -> None:
    builder = baechi.GraphBuilder()
    builder.add("a", {"gpu": 1})
    builder.build()
    with pytest.raises(baechi.InputError, match="the builder has been built already"):
        builder.build()
    with pytest.raises(baechi.InputError, match="the builder has been built already"):
        builder.add("b", {"gpu": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"times": {"gpu": -1}},
        {"times": {"": 1}},
        {"permanent": -1},
        {"temporary": -1},
        {"outputs": [1, -1]},
        {"inputs": [("nobody", 0)]},
        {"inputs": [("a", 0), ("a", 1)]},
        {"after": ["a", "nobody"]},
        {"forward": "nobody"},
        {"colocate": ["g", ""]},
        {"device": ""},
    ],
)
def test_an_operator_that_is_refused_leaves_nothing_behind(wrong: dict[str, Any]) -> None:
    builder = baechi.GraphBuilder()
    builder.add("a", {"gpu": 1}, outputs=[8])
    with pytest.raises(baechi.InputError):
        builder.add("b", **({"times": {"gpu": 1}} | wrong))
    assert len(builder) == 1
    builder.add("b", {"gpu": 2})
    graph = builder.build()
    assert (graph.num_edges, graph.num_groups, graph.device_kinds) == (0, 0, ["gpu"])


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"lp_threshold": math.nan}, "a number from 0 to 0.5, found 'nan'"),
        ({"lp_threshold": 0.6}, "a number from 0 to 0.5, found '0.6'"),
        ({"lp_threshold": -1}, "a number from 0 to 0.5, found '-1'"),
        ({"threads": 0}, "a whole number from 1 to 1024, found '0'"),
        ({"threads": [2]}, "a whole number from 1 to 1024, found '[2]'"),
        ({"threads": None}, "a whole number from 1 to 1024, found 'None'"),
        ({"seed": 2**70}, "a whole number from 0 to 18446744073709551615, found '118059"),
        (
            {"budget": math.inf},
            "a time from 0s to 1000000s, such as 500ms or 10s, found 'inf'",
        ),
        ({"budget": -1}, "a time from 0s to 1000000s, such as 500ms or 10s, found '-1s'"),
        ({"bounds": "maybe"}, "true or false, found 'maybe'"),
        ({"expert": "m.json"}, "a dict of devices' names by operators' names, found 'm.json'"),
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any], expected: str) -> None:
    (name,) = wrong
    with pytest.raises(baechi.InputError, match=re.escape(f"{name}: expected {expected}")):
        baechi.place_graph(diamond(), "2x8GiB", **wrong)


def test_studies_take_the_planners_options_and_no_others() -> None:
    for study in (baechi.what_if, baechi.sweep, baechi.least, baechi.sensitivity):
        name = study.__name__
        with pytest.raises(baechi.InputError, match=f"{name} has no option 'bugdet'; did you mean"):
            study(diamond(), "2x8GiB", bugdet=1)  # type: ignore[call-arg]
        with pytest.raises(baechi.InputError, match=f"{name} has no option 'tidy'; there are "):
            study(diamond(), "2x8GiB", tidy=True)  # type: ignore[call-arg]
        with pytest.raises(baechi.InputError, match="threads: expected a whole number"):
            study(diamond(), "2x8GiB", threads=0)


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    options = {"seed": numpy.int64(3), "lp_threshold": numpy.float32(0.25)}
    plan = baechi.place_graph(diamond(), "2x8GiB", "m-sct", lp="exact", **options)
    assert plan == baechi.place_graph(
        diamond(), "2x8GiB", "m-sct", lp="exact", seed=3, lp_threshold=0.25
    )


def test_cluster_reads_one_liners_and_tells_transfer_times(tmp_path: Path) -> None:
    cluster = baechi.Cluster("2xgpu:24GiB+1xcpu:64GiB", link="50us,6GB/s", communication="duplex")
    assert [d.kind for d in cluster.devices] == ["gpu", "gpu", "cpu"]
    assert cluster.devices[0].capacity == 24 * 2**30
    assert cluster.communication == "duplex"
    names = [d.name for d in cluster.devices]
    assert cluster.transfer_time(6000, names[0], names[2]) == 51_000
    assert cluster.transfer_time(6000, names[0], names[0]) == 0
    cluster.save(tmp_path / "cluster.json")
    assert baechi.Cluster(str(tmp_path / "cluster.json")) == cluster
    assert baechi.Cluster.from_json(cluster.to_json()) == cluster


def test_a_plan_for_less_memory_is_shown_for_the_cluster_that_there_is() -> None:
    graph = baechi.generate("layered", operators=60, seed=3)
    cluster = baechi.Cluster("2x8GiB")
    first, second = cluster.devices
    less = cluster.with_capacities({second.name: 6 << 30})
    assert [device.capacity for device in less.devices] == [8 << 30, 6 << 30]
    plan = baechi.place_graph(graph, less, method="m-etf")
    shown = plan.with_cluster(cluster)
    assert shown.cluster == cluster
    assert (shown.device_of, shown.starts, shown.peaks) == (plan.device_of, plan.starts, plan.peaks)
    assert "6.00 GiB of 8.00 GiB" in shown.notes[-1]
    assert baechi.verify(shown) == []
    with pytest.raises(baechi.InputError, match="does not fit"):
        plan.with_cluster(cluster.with_capacities({first.name: 1, second.name: 1}))
    with pytest.raises(baechi.InputError, match="differs in more than capacities"):
        plan.with_cluster(baechi.Cluster("3x8GiB"))
    with pytest.raises(KeyError, match="no device 'tpu'"):
        cluster.with_capacities({"tpu": 1})
    with pytest.raises(baechi.InputError, match="must be positive, not 0"):
        cluster.with_capacities({first.name: 0})


def test_peaks_of_the_run_stand_in_plans_and_reports(tmp_path: Path) -> None:
    graph = baechi.generate("layered", operators=60, seed=3)
    plan = baechi.place_graph(graph, "2x8GiB", method="m-etf")
    assert plan.run_peaks is None
    assert "as planned" not in str(plan)
    first, second = plan.cluster.devices
    peaks = {first.name: 6 << 30, second.name: 5 << 30}
    told = plan.with_run_peaks(peaks)
    assert told.run_peaks == peaks
    assert (told.peaks, told.makespan_ns) == (plan.peaks, plan.makespan_ns)
    assert baechi.verify(told) == []
    lines = str(told).splitlines()
    assert any("as planned" in line for line in lines)
    assert any("6.00 GiB" in line and "75%" in line for line in lines)
    told.save(tmp_path / "plan.json")
    assert baechi.Plan.load(tmp_path / "plan.json", graph).run_peaks == peaks
    assert "in the run" in str(baechi.explain(told))
    baechi.report(told, tmp_path / "report.html")
    assert f'"run_peak":{6 << 30}' in (tmp_path / "report.html").read_text()
    over = plan.with_run_peaks({**peaks, first.name: 9 << 30})
    assert any("will hold" in line and "when it runs" in line for line in baechi.verify(over))
    with pytest.raises(baechi.InputError, match=f"'{second.name}' needs a number of bytes"):
        plan.with_run_peaks({first.name: 1})
    with pytest.raises(baechi.InputError, match="3 are given for the cluster's 2 devices"):
        plan.with_run_peaks({**peaks, "tpu": 1})


@pytest.mark.parametrize("method", ["m-topo", "m-etf", "m-sct", "chain", "partition", "auto"])
def test_plans_fit_verify_and_survive_files(method: str, tmp_path: Path) -> None:
    graph = baechi.generate("layered", operators=300, seed=3)
    plan = baechi.place_graph(graph, "3x8GiB", method=method, budget=0.02)
    assert plan.fits
    assert baechi.verify(plan) == []
    assert plan.makespan_ns == max(plan.ends)
    assert plan.gap is not None
    assert plan.gap >= 0
    assert max(plan.bounds.values()) <= plan.makespan_ns
    assert set(plan.device_of) == set(graph.names)
    assert method == "auto" or plan.method == method
    plan.save(tmp_path / "plan.json")
    assert baechi.Plan.load(tmp_path / "plan.json", graph) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "step time" in str(plan)
    again = baechi.place_graph(graph, "3x8GiB", method=method, budget=0.02, threads=2)
    assert again == plan


def test_what_does_not_fit_says_what_would() -> None:
    builder = baechi.GraphBuilder()
    for name in "abcd":
        builder.add(name, {"gpu": 1}, permanent=10 * 2**20)
    graph = builder.build()
    with pytest.raises(baechi.DoesNotFit) as caught:
        baechi.place_graph(graph, "2x15MiB")
    assert caught.value.proved
    assert caught.value.short_by == 10 * 2**20
    assert caught.value.smallest_device_count == 4
    assert caught.value.smallest_capacity is not None
    assert 20 * 2**20 <= caught.value.smallest_capacity < 21 * 2**20
    assert "permanent memory" in str(caught.value)


def test_a_plan_is_made_and_replayed_for_an_order() -> None:
    graph = baechi.generate("layered", operators=40, seed=2)
    cluster = baechi.Cluster("2x8GiB")
    planned = baechi.place_graph(graph, cluster, budget=0.05)
    assert planned.order == "planned"
    for order in ("program", "none"):
        plan = baechi.place_graph(graph, cluster, order=order, budget=0.05)
        assert plan.order == order
        assert baechi.verify(plan) == []
        replay = baechi.simulate(graph, cluster, plan.device_of, order=order)
        assert (replay.order, replay.makespan_ns) == (order, plan.makespan_ns)
        assert baechi.verify(replay) == []
        elsewhere = planned.with_order(order)
        assert elsewhere.device_of == planned.device_of
        assert (elsewhere.order, baechi.verify(elsewhere)) == (order, [])
        assert plan.makespan_ns <= elsewhere.makespan_ns
    with pytest.raises(baechi.InputError, match="no planned order"):
        baechi.simulate(graph, cluster, planned.device_of, order="planned")
    with pytest.raises(baechi.InputError, match="order: expected one of planned, program or none"):
        planned.with_order("any")


def test_expert_placements_are_simulated_as_given() -> None:
    graph = diamond()
    cluster = baechi.Cluster("2x8GiB", link="5ns", communication="parallel")
    device_of = {"a": "gpu:0", "b": "gpu:0", "c": "gpu:1", "d": "gpu:0"}
    plan = baechi.simulate(graph, cluster, device_of)
    assert plan.makespan_ns == 10 + 5 + 10 + 5 + 10
    assert len(plan.transfers) == 2
    expert = baechi.place_graph(graph, cluster, method="expert", expert=device_of)
    assert expert.makespan_ns == plan.makespan_ns
    with pytest.raises(baechi.InputError, match="out operator 'd': it names a device for each"):
        baechi.simulate(graph, cluster, {"a": "gpu:0", "b": "gpu:0", "c": "gpu:0"})
    with pytest.raises(baechi.InputError, match="unknown device 'tpu': the cluster has "):
        baechi.simulate(graph, cluster, dict.fromkeys("abcd", "tpu"))


def training_graph() -> baechi.Graph:
    """Build a retain graph with groups, pins, backward flags and control edges, kinds unsorted."""
    builder = baechi.GraphBuilder("training", memory_mode="retain", batch_size=32)
    builder.add("w", {"gpu": 5, "cpu": 9}, permanent=40, outputs=[8], colocate=["group0"])
    builder.add("f", {"gpu": 10}, kind="MatMul", inputs=[("w", 0)], outputs=[4, 6], temporary=3)
    builder.add("b", {"gpu": 20}, inputs=[("f", 1)], outputs=[8], forward="f", device="gpu:1")
    builder.add("u", {"cpu": 7}, inputs=[("b", 0)], after=["w"], colocate=["group0"], backward=True)
    builder.add("log", {"*": 1}, after=["u", "f"])
    return builder.build()


def variables(count_last: bool = False) -> baechi.Graph:
    builder = baechi.GraphBuilder("variables")
    builder.add("x", {"gpu": 0}, outputs=[4])
    builder.add("mean", variable=True, outputs=[16])
    if not count_last:
        builder.add("count", {"gpu": 1}, inputs=[("mean", 0)])
    builder.add("norm", {"gpu": 5}, inputs=[("x", 0)], outputs=[4], writes=["mean"])
    builder.add("w", {"gpu": 0}, variable=True, outputs=[64])
    builder.add("drop", {"gpu": 1}, inputs=[("norm", 0), ("w", 0)], random=True)
    builder.add("late", variable=True, outputs=[8])
    builder.add_write("norm", "late")
    if count_last:
        builder.add("count", {"gpu": 1}, inputs=[("mean", 0)], after=["norm"])
    return builder.build()


def test_variables_are_told_and_count_once() -> None:
    with pytest.raises(baechi.InputError, match="cycle of 2 operators"):
        variables(count_last=True)
    graph = variables()
    mean, norm, drop = graph["mean"], graph["norm"], graph["drop"]
    assert (mean.variable, mean.permanent, mean.outputs, mean.per_step) == (True, 0, [16], True)
    assert (norm.writes, drop.writes) == (["mean", "late"], [])
    assert (drop.random, norm.random) == (True, False)
    assert norm.after == ["count"]
    facts = baechi.graph_facts(graph)
    assert (facts["variables"], facts["written_variables"], facts["variable_bytes"]) == (3, 2, 88)
    for micro_batches in [1, 3]:
        plan = baechi.place_graph(graph, "2x1MiB", micro_batches=micro_batches)
        assert baechi.verify(plan) == []
        device_of = plan.device_of
        norms = {d for name, d in device_of.items() if name.partition("@")[0] == "norm"}
        assert norms == {device_of["mean"]}


def test_arrays_go_both_ways() -> None:
    numpy = pytest.importorskip("numpy")
    for graph in [
        training_graph(),
        variables(),
        baechi.generate("layered", operators=2000, seed=1),
    ]:
        arrays = baechi.graph_to_arrays(graph)
        assert baechi.graph_from_arrays(graph.names, name=graph.name, **arrays) == graph
    wrong = dict(arrays, permanent=numpy.zeros(3, dtype=numpy.int64))
    with pytest.raises(baechi.InputError, match="permanent has 3 entries, expected 2000"):
        baechi.graph_from_arrays(graph.names, **wrong)
    wrong = dict(arrays, edge_to=arrays["edge_to"] + 10_000)
    with pytest.raises(baechi.InputError, match=r"edge_to\[0\] is \d+, expected 0 to 2000"):
        baechi.graph_from_arrays(graph.names, **wrong)


def test_arrays_may_be_strided_but_not_of_another_type() -> None:
    numpy = pytest.importorskip("numpy")
    times = numpy.array([1, 0, 2, 0])
    graph = baechi.graph_from_arrays(["a", "b"], {"gpu": times[::2]})
    assert [graph[i].times["gpu"] for i in range(2)] == [1, 2]
    with pytest.raises(TypeError):
        baechi.graph_from_arrays(["a", "b"], {"gpu": numpy.array([1.7, 2.2])})
    with pytest.raises(TypeError):
        baechi.graph_from_arrays(["a", "b"], {"gpu": times[:2]}, permanent=numpy.array([0.5, 1.0]))


def test_colocation_groups_that_share_an_operator_are_one_in_arrays() -> None:
    pytest.importorskip("numpy")
    builder = baechi.GraphBuilder()
    for name, groups in [("a", ["x"]), ("b", ["x", "y"]), ("c", ["y"]), ("d", [])]:
        builder.add(name, {"gpu": 1}, colocate=groups)
    assert baechi.graph_to_arrays(builder.build())["groups"].tolist() == [0, 0, 0, -1]


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "int32", "uint64", "float32", "float64", "object"]
)
def test_the_simulator_takes_device_indices_as_they_are(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    simulator = baechi.Simulator(diamond(), baechi.Cluster("2x8GiB"))
    devices = numpy.array([0, 1, 0, 1])
    step, peaks = simulator.run(devices)
    assert step > 0
    assert len(peaks) == 2
    assert simulator.run(numpy.array([0, 9, 1, 9, 0, 9, 1, 9])[::2]) == simulator.run(
        numpy.array([0, 1, 0, 1])
    )
    with pytest.raises(TypeError, match="int64"):
        simulator.run(devices.astype(kind))


def test_networkx_goes_both_ways() -> None:
    networkx = pytest.importorskip("networkx")
    from baechi.networkx import from_networkx, to_networkx

    for graph in [diamond(), training_graph(), variables()]:
        assert from_networkx(to_networkx(graph)) == graph
    plain = networkx.DiGraph()
    plain.add_node("x", times={"gpu": 5}, outputs=[8])
    plain.add_node("y", times={"gpu": 6})
    plain.add_edge("x", "y")
    assert from_networkx(plain)["y"].inputs == [("x", 0)]
    plain.nodes["x"]["forward"] = "y"
    backward = from_networkx(plain)["x"]
    assert (backward.forward, backward.backward) == ("y", True)
    plain.nodes["x"]["forward"] = "z"
    with pytest.raises(baechi.InputError, match="no operator 'z'"):
        from_networkx(plain)
    del plain.nodes["x"]["forward"]
    plain.add_edge("y", "x")
    with pytest.raises(baechi.InputError, match="cycle"):
        from_networkx(plain)
    plain.remove_edge("y", "x")
    plain.nodes["x"]["colour"] = "red"
    with pytest.raises(baechi.InputError, match="unknown attribute 'colour'"):
        from_networkx(plain)


def test_placing_releases_the_interpreter() -> None:
    graph = baechi.generate("layered", operators=20_000, seed=1)
    ticks = 0
    done = threading.Event()

    def place() -> None:
        baechi.place_graph(graph, "4x64GiB", method="auto", budget=0.5)
        done.set()

    worker = threading.Thread(target=place)
    worker.start()
    while not done.wait(0.005):
        ticks += 1
    worker.join()
    assert ticks > 3


def test_ctrl_c_stops_a_long_search() -> None:
    code = (
        "import baechi\n"
        "graph = baechi.generate('layered', operators=20000, seed=1)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    plan = baechi.place_graph(graph, '4x64GiB', budget='10000s')\n"
        "    print('interrupted' if any('stopped' in note for note in plan.notes) else plan)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == "interrupted\n"
    assert process.returncode == 0


def test_ctrl_c_keeps_the_best_plan_of_a_step_so_far_and_news_are_told() -> None:
    code = (
        "import warnings, baechi\n"
        "graph = baechi.generate('llama', layers=4, training=True)\n"
        "print('ready', flush=True)\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    plan = baechi.place_graph(\n"
        "        graph, '4x24GiB', budget=1000.0, micro_batches=4, verbose=True)\n"
        "assert not baechi.verify(plan)\n"
        "assert any('stopped' in note for note in plan.notes), plan.notes\n"
        "print(said[0].message)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    news = process.stderr.readline()
    assert re.match(r"baechi: placing \(\d+ s\): .* by \S+", news), news
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert out == "you stopped the search: this is the best plan that it had found\n"


def test_what_a_signal_handler_raises_comes_out() -> None:
    def give_up(_number: int, _frame: object) -> None:
        raise TimeoutError("long enough")

    graph = baechi.generate("layered", operators=20_000, seed=1)
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="long enough"):
            baechi.place_graph(graph, "4x64GiB", budget="10000s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_methods_and_models_have_summaries() -> None:
    assert {"auto", "m-topo", "m-etf", "m-sct", "chain", "partition", "exact"} <= set(
        baechi.methods()
    )
    assert {"gnmt", "inception-v3", "transformer", "chain"} <= set(baechi.models())
    assert all(baechi.methods().values())
    facts = baechi.graph_facts(diamond())
    assert facts["operators"] == 4
    assert facts["critical_path_ns"] == 30


def test_what_is_gone_names_what_does_it_now() -> None:
    for name, said in (
        ("score", "baechi.score is no longer there: simulate says"),
        ("scores", "module 'baechi' has no attribute 'scores'"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(baechi, name)


WRONG: dict[str, tuple[Callable[[baechi.Graph], object], str]] = {
    "a path for a graph": (
        lambda _: baechi.place_graph("gnmt.json", "2x8GiB"),  # type: ignore[arg-type]
        r"graph: expected a baechi\.Graph, found str 'gnmt\.json'; baechi\.Graph\.load",
    ),
    "a number for a cluster": (
        lambda graph: baechi.place_graph(graph, 2),  # type: ignore[arg-type]
        r"cluster: expected .* a line such as .*, found int 2",
    ),
    "devices for a cluster": (
        lambda graph: baechi.what_if(graph, ["8GiB"]),  # type: ignore[arg-type]
        r"cluster: expected .*, found list \['8GiB'\]",
    ),
    "a list for a placement": (
        lambda graph: baechi.simulate(graph, "2x8GiB", ["gpu:0"]),  # type: ignore[arg-type]
        r"device_of: expected a dictionary .*, found list",
    ),
    "a graph to explain": (
        lambda graph: baechi.explain(graph),  # type: ignore[arg-type]
        r"plan: expected a baechi\.Plan, found Graph .*place_graph",
    ),
    "a graph to report": (
        lambda graph: baechi.report(graph, "x.html"),  # type: ignore[arg-type]
        r"plan: expected a baechi\.Plan, found Graph",
    ),
    "a path to export": (
        lambda _: baechi.export_plan("plan.json", "csv"),  # type: ignore[arg-type]
        r"plan: expected a baechi\.Plan, found str 'plan\.json'",
    ),
    "no model to export": (
        lambda graph: baechi.export_onnx(
            baechi.place_graph(graph, "2x8GiB", method="m-etf"), "none.onnx", "out.onnx"
        ),
        r"none\.onnx: cannot open: No such file",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_argument_of_another_kind_is_told_what_was_expected(what: str) -> None:
    call, reason = WRONG[what]
    with pytest.raises(baechi.InputError, match=reason):
        call(baechi.generate("fork-join", operators=6))
