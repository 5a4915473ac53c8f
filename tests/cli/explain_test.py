# SPDX-License-Identifier: Apache-2.0
"""explain: exit codes, words and documents."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tests.conftest import Run


def test_the_critical_path_has_no_gap(run: Run, graph: Path, plan: Path) -> None:
    result = run("explain", graph, plan, "--json")
    document = json.loads(result.stdout)
    links = document["critical_path"]
    assert links[0]["start"] == 0
    assert links[-1]["end"] == document["makespan"] == json.loads(plan.read_text())["makespan"]
    assert all(a["end"] == b["start"] for a, b in itertools.pairwise(links))
    assert sum(document["critical_times"].values()) == document["makespan"]
    for device in document["devices"]:
        assert sum(holder["bytes"] for holder in device["holders"]) == device["peak"]


def test_the_words_name_the_bottleneck_and_the_holders(run: Run, graph: Path, plan: Path) -> None:
    result = run("explain", graph, plan)
    assert ", bound by " in result.stdout.splitlines()[0]
    assert "critical path: " in result.stdout
    assert "most of gpu:0's peak is held by" in result.stdout
    assert result.stderr == ""


def test_an_operator_is_told_device_by_device(run: Run, graph: Path, plan: Path) -> None:
    operators = json.loads(plan.read_text())["operators"]
    for operator in operators[::10]:
        result = run("explain", graph, plan, "--op", operator["name"], "--json")
        document = json.loads(result.stdout)
        assert document["device"] == operator["device"]
        assert [entry["device"] for entry in document["alternatives"]] == ["gpu:0", "gpu:1"]
        here = next(e for e in document["alternatives"] if e["device"] == operator["device"])
        assert here["makespan"] == document["makespan"]
    words = run("explain", graph, plan, "--op", operators[0]["name"])
    assert "why here: " in words.stdout or "the plan can be better" in words.stdout


def test_an_unknown_operator_is_answered_with_near_names(run: Run, graph: Path, plan: Path) -> None:
    name = json.loads(plan.read_text())["operators"][7]["name"]
    result = run("explain", graph, plan, "--op", name + "x", code=2)
    assert "the graph has no operator '" in result.stderr
    assert f"'{name}'" in result.stderr
    assert result.stdout == ""


def test_an_empty_operator_is_no_question_about_the_plan(run: Run, graph: Path, plan: Path) -> None:
    result = run("explain", graph, plan, "--op", "", code=2)
    assert result.stdout == ""
    assert "--op" in result.stderr


def test_another_cluster_replays_the_plan(run: Run, graph: Path, plan: Path) -> None:
    elsewhere = ["-c", "2x8GiB", "--link", "1s,1GB/s", "--json"]
    slow = json.loads(run("explain", graph, plan, *elsewhere).stdout)
    replayed = json.loads(run("simulate", graph, plan, *elsewhere).stdout)
    assert slow["makespan"] == replayed["makespan"]
    assert slow["bottleneck"] == "communication"
    tight = run("explain", graph, plan, "-c", "2x10KiB", code=3)
    assert "runs out of memory" in tight.stderr
    other = run("explain", graph, plan, "-c", "3x8GiB", code=2)
    assert "the plan is for 2 devices" in other.stderr


def test_a_schedule_that_cannot_be_is_refused(
    run: Run, graph: Path, plan: Path, tmp_path: Path
) -> None:
    document = json.loads(plan.read_text())
    last = max(document["operators"], key=lambda operator: operator["end"])
    last["start"] += 1
    last["end"] += 1
    document["makespan"] += 1
    document["bounds"] = []
    document.pop("gap")
    path = tmp_path / "late.json"
    path.write_text(json.dumps(document))
    result = run("explain", graph, path, code=2)
    assert "although it could start at" in result.stderr
