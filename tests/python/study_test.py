# SPDX-License-Identifier: Apache-2.0
"""explain, what_if, sweep, least and sensitivity."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

import baechi


@pytest.fixture(scope="module")
def graph() -> baechi.Graph:
    return baechi.generate("layered", operators=60, seed=3)


def test_an_explanation_is_a_document_and_words(graph: baechi.Graph) -> None:
    plan = baechi.place_graph(graph, "2x8GiB", "m-etf")
    told = baechi.explain(plan)
    assert told["makespan"] == plan.makespan_ns
    assert told["critical_path"][-1]["end"] == plan.makespan_ns
    assert {d["name"]: d["peak"] for d in told["devices"]} == plan.peaks
    assert str(told).startswith("step ")
    name = graph.names[7]
    one = baechi.explain(plan, name)
    assert one["device"] == plan.device_of[name]
    assert len(one["alternatives"]) == 2
    assert str(one).startswith(f"'{name}'")
    with pytest.raises(baechi.InputError, match="near it: "):
        baechi.explain(plan, name + "x")


def test_an_alternative_is_what_simulate_says(graph: baechi.Graph) -> None:
    plan = baechi.place_graph(graph, "2x8GiB", "m-etf")
    for name in graph.names[::7]:
        for there in baechi.explain(plan, name)["alternatives"]:
            if there["device"] == plan.device_of[name]:
                continue
            moved = {**plan.device_of, name: there["device"]}
            free = baechi.simulate(graph, plan.cluster, moved)
            assert there["makespan"] <= free.makespan_ns


def test_what_if_takes_clusters_and_batches_of_ones_own(graph: baechi.Graph) -> None:
    rows = baechi.what_if(graph, "2x8GiB", "m-etf", clusters={"wide": "4x8GiB"}, standard=False)
    assert [row["name"] for row in rows] == ["as it is", "wide"]
    assert rows[1]["devices"] == 4
    names = [row["name"] for row in baechi.what_if(graph, "2x8GiB", "m-etf")]
    assert names[:3] == ["as it is", "one more gpu", "one gpu fewer"]
    gnmt = baechi.generate("gnmt", length=3, batch=8)
    rows = baechi.what_if(gnmt, "2x8GiB", "m-etf", batch_sizes=[32], standard=False)
    assert [row["batch_size"] for row in rows] == [8, 32]
    assert rows[1]["makespan"] > rows[0]["makespan"]


def test_sweep_and_least(graph: baechi.Graph) -> None:
    points = baechi.sweep(
        graph, "2x8GiB", memory=[0.5, 1], devices=[1, 2, 3], methods=["m-etf", "m-topo"]
    )
    assert len(points) == 12
    assert points[0]["memory"] == 0.5
    assert points[-1]["devices"] == 3
    least = baechi.least(graph, "2x8GiB", "m-etf")
    assert least["devices"]["count"] == 1
    capacity = least["memory"]["capacity"]
    assert least["memory"]["impossible_below"] <= capacity
    assert baechi.place_graph(graph, f"2x{capacity}B", "m-etf").fits
    assert set(baechi.least(graph, "2x8GiB", "m-etf", of="devices")) == {"devices"}
    with pytest.raises(baechi.InputError, match="of is 'devices'"):
        baechi.least(graph, "2x8GiB", of="time")


def test_sensitivity_repeats_and_does_not_fit_as_place_graph_does(graph: baechi.Graph) -> None:
    told = baechi.sensitivity(graph, "2x8GiB", "m-etf", off_by=0.5, samples=6, seed=4)
    assert [sample["seed"] for sample in told["samples"]] == [4, 5, 6, 7, 8, 9]
    assert told["steps"]["min"] <= told["steps"]["median"] <= told["steps"]["max"]
    again = baechi.sensitivity(graph, "2x8GiB", "m-etf", off_by=0.5, samples=6, seed=4, threads=3)
    assert again == told
    with pytest.raises(baechi.DoesNotFit):
        baechi.sensitivity(graph, "2x10KiB", "m-etf")
    with pytest.raises(baechi.InputError):
        baechi.sensitivity(graph, "2x8GiB", "m-etf", off_by=1.5)


def test_studies_without_end_are_refused(graph: baechi.Graph) -> None:
    with pytest.raises(baechi.InputError, match="devices: at most 1024 can be tried, not 1"):
        baechi.sweep(graph, "2x8GiB", devices=[10**9], methods=["m-etf"])
    with pytest.raises(baechi.InputError, match="devices: at most 1024 can be tried, not 1"):
        baechi.least(graph, "2x8GiB", "m-etf", max_devices=10**9)
    with pytest.raises(baechi.InputError, match="1 to 100000 samples"):
        baechi.sensitivity(graph, "2x8GiB", "m-etf", samples=10**12)
    with pytest.raises(baechi.InputError, match="1 to 100000 samples"):
        baechi.sensitivity(graph, "2x8GiB", "m-etf", samples=0)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interrupt_stops_a_study() -> None:
    code = (
        "import baechi, sys\n"
        "graph = baechi.generate('gnmt', length=30)\n"
        "print('go', flush=True)\n"
        "try:\n"
        "    baechi.sensitivity(graph, '4x8GiB', samples=10000, budget='1s')\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == "stopped\n"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_study_that_is_stopped_returns_what_it_has() -> None:
    graph = baechi.generate("gnmt", length=4)
    stop = threading.Timer(1, signal.raise_signal, [signal.SIGINT])
    stop.start()
    with pytest.warns(UserWarning, match="you stopped the study"):
        told = baechi.sensitivity(graph, "2x8GiB", "m-etf", samples=100_000)
    stop.join()
    assert 0 < len(told["samples"]) < 100_000
