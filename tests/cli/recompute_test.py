# SPDX-License-Identifier: Apache-2.0
"""Plans that run operators a second time: the command, their files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

TIGHT = ("--cluster", "1x1400MiB", "--budget", "50ms")


@pytest.fixture(scope="module")
def unet(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unet") / "unet.json"
    done = run("generate", "unet", "--batch", "1", "-o", path, "--json")
    assert json.loads(done.stdout)["one_device_peak_bytes"] > 1400 * 2**20
    return path


@pytest.fixture(scope="module")
def plan(run: Run, unet: Path) -> Path:
    path = unet.with_name("plan.json")
    done = run("place", unet, *TIGHT, "--recompute", "auto", "-o", path)
    assert "operators run a second time" in done.stderr
    return path


def test_what_does_not_fit_says_what_recomputation_would_bring(run: Run, unet: Path) -> None:
    done = run("place", unet, *TIGHT, "--json", code=3)
    assert "with recompute auto it fits: a step takes " in done.stderr
    answer = json.loads(done.stdout)
    assert answer["fits"] is False
    assert answer["step_with_recomputation"] > 0


def test_the_plan_has_the_second_runs_and_is_right(run: Run, unet: Path, plan: Path) -> None:
    document = json.loads(plan.read_text())
    again = [entry["operator"] for entry in document["recomputed"]]
    names = {operator["name"] for operator in document["operators"]}
    assert again
    assert {f"{name}@again" for name in again} <= names
    assert len(names) == document["graph"]["operators"] + len(again)
    assert all(device["peak"] <= 1400 * 2**20 for device in document["devices"])
    run("verify", unet, plan)
    simulated = run("simulate", unet, plan, "--json")
    assert json.loads(simulated.stdout)["makespan"] == document["makespan"]
    # The work alone takes longer: bounds are the graph's.
    assert document["bounds"][0]["value"] <= document["makespan"]


@pytest.mark.parametrize("subcommand", ["explain", "report", "trace", "show"])
def test_such_plans_can_be_looked_at(run: Run, unet: Path, plan: Path, subcommand: str) -> None:
    done = run(subcommand, unet, plan, *(["-o", "-"] if subcommand in ("report", "trace") else []))
    if subcommand == "explain":
        assert "run a second time, " in done.stdout
        told = json.loads(run("explain", unet, plan, "--json").stdout)
        document = json.loads(plan.read_text())
        assert len(told["second_runs"]) == len(document["recomputed"])
        assert all(run["from"] <= run["until"] for run in told["second_runs"])
    else:
        assert "@again" in done.stdout or subcommand == "show"


def test_all_repeats_regions_and_fits_as_well(run: Run, unet: Path) -> None:
    done = run("place", unet, *TIGHT, "--recompute", "all", "--json")
    assert json.loads(done.stdout)["recomputed"]


def test_what_recomputation_is_not_for_is_refused(run: Run, unet: Path) -> None:
    words = "the planned order or that of the program"
    run("place", unet, *TIGHT, "--recompute", "auto", "--order", "none", code=2, says=words)


def test_graphs_without_a_backward_pass_say_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    run("generate", "layered", "--operators", "40", "-o", path)
    done = run("place", path, "--cluster", "2x8GiB", "--budget", "10ms", "--recompute", "all")
    assert "nothing is recomputed: no operator of the graph is marked as backward" in done.stderr


def test_a_placement_alone_cannot_be_exported(run: Run, unet: Path, plan: Path) -> None:
    done = run("export", unet, plan, "--to", "device-map", code=2)
    assert "cannot tell which operators run a second time" in done.stderr


def test_a_plan_that_repeats_what_is_marked_is_refused(
    run: Run, unet: Path, plan: Path, tmp_path: Path
) -> None:
    again = json.loads(plan.read_text())["recomputed"][0]["operator"]
    graph = json.loads(unet.read_text())
    next(op for op in graph["operators"] if op["name"] == again)["recompute"] = False
    marked = tmp_path / "marked.json"
    marked.write_text(json.dumps(graph))
    done = run("verify", marked, plan, code=2)
    assert f"operator '{again}' is marked \"recompute\": false" in done.stderr
