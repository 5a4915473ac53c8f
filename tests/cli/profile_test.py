# SPDX-License-Identifier: Apache-2.0
"""Measured costs through the command and from Python."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import baechi
from tests.conftest import Run

STEP = Path(__file__).parent.parent / "data/tensorflow/cnn_step.pb"
CONVOLUTION = "sequential_1/conv2d_1/convolution"


def written(path: Path, operators: list[dict[str, Any]], **fields: Any) -> Path:
    document = {"format": "baechi-profile", "version": 1, "operators": operators, **fields}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Give every operator of the step 5 us on a CPU, its convolution 1 ms."""
    names = baechi.Graph.load(STEP, costs="gpu=rtx2080", batch=8).names
    operators = [{"name": n, "time": {"cpu": 10**6 if n == CONVOLUTION else 5000}} for n in names]
    return written(tmp_path / "measured.json", operators, batch_size=8, source="a test")


def test_every_command_about_a_graph_takes_a_profile(
    run: Run, tmp_path: Path, measured: Path
) -> None:
    costs = ("--costs", measured)
    info = json.loads(run("info", STEP, *costs, "--json").stdout)["graph"]
    assert info["work_by_kind"] == [
        {"kind": "cpu", "operators": 270, "work_ns": 269 * 5000 + 10**6}
    ]
    plan, placed = tmp_path / "plan.json", tmp_path / "placed.pb"
    cluster = ("-c", "2xcpu:1GiB", "-m", "m-etf")
    run("place", STEP, *costs, *cluster, "-o", placed)
    assert b"/device:CPU:1" in placed.read_bytes()
    run("place", STEP, *costs, *cluster, "-o", plan)
    for command in (
        ("verify", STEP, plan),
        ("simulate", STEP, plan),
        ("show", STEP, plan),
        ("explain", STEP, plan),
        ("optimize", STEP, "-c", "2xcpu:1GiB"),
        ("bounds", STEP, "-c", "2xcpu:1GiB"),
        ("check", "--graph", STEP, plan),
        ("convert", STEP, tmp_path / "graph.json"),
    ):
        done = run(*command, *costs)
        assert done.stderr == "", command
    converted = baechi.Graph.load(tmp_path / "graph.json")
    assert converted[CONVOLUTION].times == {"cpu": 10**6}


def test_measurements_and_estimates_mix(run: Run, measured: Path) -> None:
    done = run("info", STEP, "--costs", "gpu=rtx2080", "--costs", measured, "--json")
    assert done.stderr == (f"{measured}: has no times for device kind 'gpu': those are estimates\n")
    kinds = [kind["kind"] for kind in json.loads(done.stdout)["graph"]["work_by_kind"]]
    assert sorted(kinds) == ["cpu", "gpu"]


def test_a_cluster_without_the_measured_kind_is_told_so(run: Run, measured: Path) -> None:
    done = run("place", STEP, "--costs", measured, "-c", "2x1GiB", code=3)
    assert "it has compute times for 'cpu', and the devices are of kind 'gpu'" in done.stderr


@pytest.mark.parametrize(
    ("operators", "fields", "words"),
    [
        ([{"name": "a"}, {"name": "b"}], {}, "profile of another graph"),
        ([{"name": CONVOLUTION}], {}, "only 1 of 270 operators"),
        ([{"name": CONVOLUTION, "time": 1, "outputs": [1, 2]}], {}, "only 1 of 270"),
    ],
)
def test_a_profile_of_something_else_is_refused(
    run: Run, tmp_path: Path, operators: list[dict[str, Any]], fields: dict[str, Any], words: str
) -> None:
    path = written(tmp_path / "other.json", operators, **fields)
    done = run("info", STEP, "--costs", path, "--batch", "8", code=2)
    assert done.stderr.count("\n") == 1
    if "another" not in words:
        assert words in done.stderr
    other = words == "profile of another graph"
    code = 2 if other else None
    done = run("info", STEP, "--costs", path, "--costs", "gpu=t4", "--batch", "8", code=code)
    if other:
        assert f"baechi: {path}: it is the {words}" in done.stderr


def test_a_profile_changes_a_graph_file_too(run: Run, data: Path) -> None:
    graph, profile = data / "good" / "graph_small.json", data / "good" / "profile_small.json"
    done = run("convert", graph, "-", "--costs", profile)
    assert "3 of 7 operators of the graph are not in the profile" in done.stderr
    operators = {op["name"]: op for op in json.loads(done.stdout)["operators"]}
    assert operators["fc1"]["time"] == {"gpu": 13000, "cpu": 1100000, "tpu": 700}
    assert operators["fc1"]["memory"] == {"permanent": 9 << 20}
    assert operators["fc1"]["outputs"] == [131328, 64]
    assert operators["fc2"]["outputs"] == [64 << 10]  # an alias is sent in full


def test_wrong_batch_sizes_and_paths_are_named(run: Run, measured: Path) -> None:
    done = run("info", STEP, "--costs", measured, "--batch", "4", code=2)
    assert "measured with batch size 8, the graph is for 4" in done.stderr
    done = run("info", STEP, "--costs", "nowhere.json", code=2)
    assert "nowhere.json" in done.stderr


def test_python_reads_writes_and_applies_profiles(data: Path, tmp_path: Path) -> None:
    profile = baechi.Profile.load(data / "good" / "profile_small.json")
    assert (len(profile), profile.batch_size, profile.source) == (4, 32, "one step, by hand")
    assert profile.device_kinds == ["gpu", "tpu", "*"]
    assert "fc1" in profile
    assert "fc9" not in profile
    fc1 = profile.operators["fc1"]
    assert fc1.times == {"gpu": 13000, "tpu": 700}
    assert (fc1.permanent, fc1.temporary) == (9 << 20, 0)
    assert (fc1.outputs, fc1.allocated) == ([131072, None], [131328])
    assert profile.operators["fc2"].permanent is None
    profile.save(tmp_path / "again.json")
    assert baechi.Profile.load(tmp_path / "again.json") == profile
    assert pickle.loads(pickle.dumps(profile)) == profile

    graph = baechi.Graph.load(data / "good" / "graph_small.json")
    with pytest.warns(UserWarning, match="3 of 7 operators of the graph are not in the profile"):
        changed = graph.with_profile(profile)
    assert changed["fc1"].times["gpu"] == 13000
    with pytest.warns(UserWarning, match="3 of 7"):
        loaded = baechi.Graph.load(data / "good" / "graph_small.json", costs=[profile])
    assert loaded == changed
    with pytest.warns(UserWarning, match="3 of 7"):
        loaded = baechi.Graph.load(
            data / "good" / "graph_small.json", costs=data / "good" / "profile_small.json"
        )
    assert loaded == changed
    other = baechi.Profile.from_json(
        '{"format": "baechi-profile", "version": 1, "operators": [{"name": "x9"}]}'
    )
    with pytest.raises(baechi.InputError, match="another graph"):
        graph.with_profile(other)
