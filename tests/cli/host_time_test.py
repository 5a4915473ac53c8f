# SPDX-License-Identifier: Apache-2.0
"""The host that asks (--host-time) and sends that block (--sends), through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import baechi
from tests.conftest import Run

CLUSTER = ["-c", "2x8GiB"]
HOST = ["--host-time", "20us,10us"]


@pytest.fixture(scope="module")
def graph(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("host") / "gnmt.json"
    run("generate", "gnmt", "--length", "2", "-o", path)
    return path


def placed(run: Run, graph: Path, path: Path, *options: str) -> dict[str, Any]:
    run("place", graph, *CLUSTER, *options, "--budget", "100ms", "-o", path)
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def test_a_plan_under_it_is_no_longer_than_one_without_replayed(
    run: Run, graph: Path, tmp_path: Path
) -> None:
    with_it, without = tmp_path / "with.json", tmp_path / "without.json"
    plan = placed(run, graph, with_it, *HOST)
    placed(run, graph, without)
    run("verify", graph, with_it)
    again = json.loads(run("simulate", graph, with_it, "--json").stdout)
    assert again["makespan"] == plan["makespan"]
    replayed = json.loads(run("simulate", graph, without, *HOST, "--json").stdout)
    assert plan["makespan"] <= replayed["makespan"]
    calls = sum(1 for op in plan["operators"] if op["end"] > op["start"])
    assert plan["makespan"] > calls * 20_000  # one thread asks for them all

    # A step that begins later ends later by as much.
    later = [HOST[0], HOST[1] + ",1ms"]
    told = json.loads(run("simulate", graph, with_it, *later, "--json").stdout)
    assert told["makespan"] == plan["makespan"] + 1_000_000
    assert placed(run, graph, without, *later)["makespan"] == told["makespan"]
    run("verify", graph, without)
    assert (
        "expected CALL,SEND or CALL,SEND,STEP"
        in run("simulate", graph, with_it, "--host-time", "1us,2us,3us,4us", code=2).stderr
    )

    # A call that is said to be asked for sooner is found out.
    late = max(plan["operators"], key=lambda op: op["asked"])
    late["asked"] -= 1
    with_it.write_text(json.dumps(plan))
    refused = run("verify", graph, with_it, code=2)
    assert "asked for" in refused.stderr or "ask for" in refused.stderr


def test_plans_are_made_judged_and_studied_for_sends_that_block(
    run: Run, graph: Path, tmp_path: Path
) -> None:
    blocking, free = tmp_path / "blocking.json", tmp_path / "free.json"
    plan = placed(run, graph, blocking, "--sends", "blocking")
    assert plan["cluster"]["sends"] == "blocking"
    run("verify", graph, blocking)
    assert "makespan" in run("explain", graph, blocking, "--json").stdout
    placed(run, graph, free)
    replayed = json.loads(run("simulate", graph, free, "--sends", "blocking", "--json").stdout)
    assert plan["makespan"] <= replayed["makespan"]

    # The free plan is not one for this executor, nor the other way round.
    for path, sends in ((free, "blocking"), (blocking, "free")):
        document = json.loads(path.read_text())
        document["cluster"]["sends"] = sends
        path.write_text(json.dumps(document))
        run("verify", graph, path, code=2)
    told = run("simulate", graph, free, "--sends", "later", code=2)
    assert "expected free or blocking" in told.stderr

    cluster = baechi.Cluster("2x8GiB", sends="blocking")
    assert cluster.sends == "blocking"
    assert baechi.verify(baechi.place_graph(baechi.Graph.load(graph), cluster, budget="50ms")) == []
    told = run(
        "place",
        graph,
        *CLUSTER,
        "--host",
        "9GiB",
        "--residency",
        "auto",
        "--sends",
        "blocking",
        code=2,
    )
    assert "not planned with blocking sends" in told.stderr


def test_plans_know_what_messages_take_their_ends(run: Run, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = placed(run, graph, path, "--sends", "1us,2us", "--method", "m-etf")
    assert plan["cluster"]["sends"] == {"send": "1us", "receive": "2us"}
    run("verify", graph, path)
    sender = plan["transfers"][0]["tensor"].split(":")[0]
    told = json.loads(run("explain", graph, path, "--op", sender, "--json").stdout)
    (here,) = (one for one in told["alternatives"] if one["device"] == told["device"])
    assert here["finish"] == told["end"]
    assert "1.00 us and 2.00 us" in run("report", graph, path, "-o", "-").stdout
    plan["cluster"]["sends"] = {"send": "1us", "receive": "3us"}
    path.write_text(json.dumps(plan))
    run("verify", graph, path, code=2)
    told = run("simulate", graph, path, "--sends", "1us,later", code=2)
    assert "expected SEND,RECEIVE" in told.stderr
    cluster = baechi.Cluster("2x8GiB", sends="1us,2us")
    assert cluster.sends == "1us,2us"
    assert baechi.Cluster.from_json(cluster.to_json()) == cluster


def test_studies_and_python_know_it(run: Run, graph: Path) -> None:
    only = ["--only-these", "--budget", "50ms", "--json"]
    told = json.loads(run("what-if", graph, *CLUSTER, *HOST, *only).stdout)["scenarios"][0]
    assert (
        told["makespan"]
        > json.loads(run("what-if", graph, *CLUSTER, *only).stdout)["scenarios"][0]["makespan"]
    )
    cluster = baechi.Cluster("2x8GiB", host_time="20us,10us")
    plan = baechi.place_graph(baechi.Graph.load(graph), cluster, budget="50ms")
    assert baechi.verify(plan) == []
    assert plan.makespan_ns > 20_000 * sum(map(int.__lt__, plan.starts, plan.ends))
