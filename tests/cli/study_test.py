# SPDX-License-Identifier: Apache-2.0
"""what-if, sweep, min and sensitivity: exit codes, tables and documents."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

import baechi
from tests.conftest import Run

QUICK = ["-m", "m-etf", "--budget", "10ms"]


@pytest.fixture(scope="module")
def batched(run: Run, graph: Path) -> Path:
    path = graph.parent / "gnmt.json"
    run("generate", "gnmt", "--length", "3", "--batch", "8", "-o", path)
    return path


def test_what_if_is_a_table_and_a_document(run: Run, graph: Path) -> None:
    table = run("what-if", graph, "-c", "2x8GiB", *QUICK)
    lines = table.stdout.splitlines()
    assert lines[0].startswith("what if")
    assert lines[2].startswith("as it is ")
    result = run("what-if", graph, "-c", "2x8GiB", *QUICK, "--json")
    scenarios = json.loads(result.stdout)["scenarios"]
    assert len(scenarios) == len(lines) - 2
    base = scenarios[0]["makespan"]
    alone = run("place", graph, "-c", "2x8GiB", *QUICK, "--json")
    assert json.loads(alone.stdout)["makespan"] == base
    fast = next(s for s in scenarios if s["name"] == "devices twice as fast")
    assert fast["makespan"] < base


def test_what_if_plans_the_scenarios_it_is_given(run: Run, graph: Path, batched: Path) -> None:
    given = ["--only-these", "--try-devices", "3", "--try-devices", "4", "--try-memory", "1.5x"]
    given += ["--try-memory", "12GiB", "--try-link", "5us,50GB/s", "--try-speed", "0.5"]
    result = run(
        "what-if", graph, "-c", "2x8GiB", *QUICK, "--json", *given, "--try-cluster", "1x1MiB"
    )
    scenarios = json.loads(result.stdout)["scenarios"]
    assert [scenario["name"] for scenario in scenarios] == [
        *("as it is", "cluster 1x1MiB", "3 devices", "4 devices", "memory 1.5x", "memory 12GiB"),
        *("link 5us,50GB/s", "speed 0.5x"),
    ]
    assert [scenario["devices"] for scenario in scenarios[1:4]] == [1, 3, 4]
    assert not scenarios[1]["fits"]
    assert scenarios[-1]["makespan"] > scenarios[0]["makespan"]

    no_batch = run("what-if", graph, "-c", "2x8GiB", *QUICK, "--try-batch", "4", code=2)
    assert "no batch_size" in no_batch.stderr
    result = run("what-if", batched, "-c", "2x8GiB", *QUICK, "--only-these", "--try-batch", "32")
    assert "batch 32: " in result.stdout
    assert " a sample" in result.stdout


def test_what_if_devices_tells_which_are_worth_it(run: Run, graph: Path) -> None:
    unequal = ["-c", "1x8GiB+1x8GiB@0.001", "--link", "1ms,1GB/s", *QUICK]
    result = run("what-if", graph, *unequal, "--devices", "--json")
    worth = json.loads(result.stdout)
    fast, slow = worth["devices"]
    assert worth["enough"] == [fast["name"]]
    assert slow["makespan_without"] == worth["makespan"] == worth["makespan_of_enough"]
    assert fast["makespan_without"] > 100 * worth["makespan"]
    words = run("what-if", graph, *unequal, "--devices").stdout
    assert f"enough for a step of {words.split()[1]}" in words
    placed = run("place", graph, *unequal)
    assert f"a step is as fast without '{slow['name']}'" in placed.stderr
    refused = run("what-if", graph, *unequal, "--devices", "--only-these", code=2)
    assert "a question of its own" in refused.stderr
    run("what-if", graph, "-c", "2x1KiB", *QUICK, "--devices", code=3)


@pytest.mark.parametrize(
    ("study", "option", "text"),
    [
        ("sweep", "--memory", "0.3x"),
        ("sweep", "--memory", "0"),
        ("sweep", "--devices", "1025"),
        ("what-if", "--try-memory", "x"),
        ("what-if", "--try-memory", "12"),
        ("what-if", "--try-memory", "9000000000000x"),
        ("what-if", "--try-speed", "fast"),
        ("what-if", "--try-speed", "0"),
        ("what-if", "--try-link", "5"),
    ],
)
def test_an_error_names_its_option(
    run: Run, graph: Path, study: str, option: str, text: str
) -> None:
    result = run(study, graph, "-c", "2x8GiB", *QUICK, option, text, code=2)
    assert result.stdout == ""
    assert option in result.stderr
    assert "speed '" not in result.stderr


def test_errors_of_sweeps_methods_name_that_option(run: Run, graph: Path) -> None:
    for methods, words in [
        ("m-etf,m-sctt", "baechi: --methods: expected one of auto, "),
        ("m-etf,m-sctt", "found 'm-sctt'; did you mean 'm-sct'?"),
        ("m-etf,pipeline", "baechi: --methods: 'pipeline' places steps of several micro-batches"),
    ]:
        result = run("sweep", graph, "-c", "2x8GiB", "--methods", methods, code=2)
        assert words in result.stderr
    with pytest.raises(baechi.InputError, match=r"^methods: expected one of auto, "):
        baechi.sweep(baechi.Graph.load(graph), "2x8GiB", methods=["m-etf", "m-sctt"])


def test_a_kind_without_times_comes_with_a_way_out(run: Run, graph: Path) -> None:
    result = run("place", graph, "-c", "4xRTX3090", code=3)
    assert "cannot run on any device of this cluster: it has compute times for " in result.stderr
    assert "name devices of a kind that it has times for, such as 2xgpu:24GiB" in result.stderr
    mistaken = run("place", graph, "-c", "4xrtx3091", code=2)
    assert "; did you mean 'rtx3090'?" in mistaken.stderr


def test_sweep_writes_csv(run: Run, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    grid = ["--memory", "0.000001,1", "--devices", "1,2", "--methods", "m-etf,m-topo"]
    result = run("sweep", graph, "-c", "2x8GiB", *grid, "-o", path)
    assert result.stdout == ""
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 8
    assert [row["fits"] for row in rows] == ["0", "0", "1", "1"] * 2
    assert all(int(row["step_ns"]) > 0 for row in rows if row["fits"] == "1")
    assert all("iB" in row["reason"] for row in rows if row["fits"] == "0")
    again = run("sweep", graph, "-c", "2x8GiB", *grid)
    assert again.stdout == path.read_text()
    points = json.loads(run("sweep", graph, "-c", "2x8GiB", *grid, "--json").stdout)["points"]
    assert [point.get("makespan") for point in points] == [
        int(row["step_ns"]) if row["fits"] == "1" else None for row in rows
    ]
    wrong = run("sweep", graph, "-c", "2x8GiB", "--devices", "0", code=2)
    assert "--devices" in wrong.stderr


def test_min_is_proved_by_a_plan(run: Run, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    arguments = ["min", graph, "-c", "2x8GiB", *QUICK]
    result = run(*arguments, "--of", "memory", "-o", path, "--json")
    found = json.loads(result.stdout)["memory"]
    assert found["impossible_below"] <= found["capacity"]
    plan = json.loads(path.read_text())
    assert plan["makespan"] == found["makespan"]
    assert max(device["peak"] for device in plan["devices"]) <= found["capacity"]
    run("verify", graph, path)
    words = run(*arguments)
    assert "fewest devices: 1, " in words.stdout
    assert "least memory per device: " in words.stdout
    run(*arguments, "-o", path, code=2)
    nothing = run("min", graph, "-c", "1x1B", "--of", "devices", "--max-devices", "3", code=3)
    assert "no plan was found for up to 3 devices" in nothing.stderr


def test_sensitivity_tells_the_distribution(run: Run, graph: Path) -> None:
    arguments = ["sensitivity", graph, "-c", "2x8GiB", *QUICK, "--samples", "8", "--off-by", "40%"]
    words = run(*arguments)
    assert "placed 8 times with costs off by up to 40%" in words.stdout
    document = json.loads(run(*arguments, "--json").stdout)
    steps = [sample["makespan"] for sample in document["samples"]]
    assert document["steps"]["min"] == min(steps)
    assert document["steps"]["max"] == max(steps)
    rows = list(csv.DictReader(run(*arguments, "--csv", "--threads", "2").stdout.splitlines()))
    assert [int(row["step_ns"]) for row in rows] == steps
    run("sensitivity", graph, "-c", "2x10KiB", code=3)
    for option in (["--off-by", "120%"], ["--off-by", "x"], ["--samples", "0"]):
        wrong = run(*arguments[:4], *option, code=2)
        assert option[0] in wrong.stderr


@pytest.mark.parametrize("name", ["explain", "what-if", "sweep", "min", "sensitivity"])
def test_help_knows_them(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert f"Examples:\n  baechi {name} " in result.stdout


def stopped(arguments: list[str], after: float) -> tuple[str, str]:
    """Interrupt a command that is still running after some seconds; return what it printed."""
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=after)
        process.send_signal(signal.SIGINT)
        printed, words = process.communicate(timeout=60)
    assert process.returncode == 130
    return printed, words


@pytest.mark.parametrize(
    "study",
    [
        ["sensitivity", "--samples", "10000", "--csv"],
        ["sweep", "--memory", ",".join(f"0.{n}" for n in range(500, 1000))],
        ["what-if", "--only-these", *(f"--try-memory=1.{n}x" for n in range(100, 500))],
    ],
    ids=lambda study: study[0],
)
def test_a_study_that_is_stopped_prints_what_it_has(
    command: str, batched: Path, study: list[str]
) -> None:
    arguments = [command, study[0], str(batched), "-c", "4x8GiB", *study[1:], "--budget", "10ms"]
    rows, words = stopped(arguments, after=1)
    if words == "baechi: cancelled\n":  # a slow machine had not got to its first row
        assert rows == ""
    else:
        told = re.fullmatch(r"baechi: cancelled: ([\d,]+) of [\d,]+ \w+(, .*)?\n", words)
        assert told is not None, words
        above = 2 if study[0] == "what-if" else 1  # names of columns, and the line under them
        assert len(rows.splitlines()) == int(told[1].replace(",", "")) + above


def test_min_that_is_stopped_prints_the_least_so_far(
    command: str, run: Run, tmp_path: Path
) -> None:
    graph, plan = tmp_path / "graph.json", tmp_path / "plan.json"
    run("generate", "gnmt", "--length", "8", "-o", graph)
    arguments = [command, "min", str(graph), "-c", "4x8GiB", "--of", "memory", "-o", str(plan)]
    told, words = stopped([*arguments, "-m", "refine", "--budget", "1000s"], after=1.5)
    assert words == "baechi: cancelled: this is the least so far\n"
    assert re.search(r": \d+ MiB, step", told)
    run("verify", graph, plan)
