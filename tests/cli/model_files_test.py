# SPDX-License-Identifier: Apache-2.0
"""ONNX models and ONNX Runtime's profiles through the command; nothing is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import baechi
from tests.conftest import Run

CNN = Path(__file__).parent.parent / "data/onnx/cnn.onnx"
PROFILE = CNN.with_name("cnn_profile.json")
SMALL = CNN.parents[1] / "good/graph_small.json"
STEP = str(CNN.parents[1] / "tensorflow/cnn_step.pb")
COSTS = ("--costs", "gpu=rtx2080", "--batch", "5")


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ("graph.json", ("--batch", "8"), "--batch has no effect on a graph.json, which has costs"),
        ("graph.json", ("--dim", "x=8"), "--dim has no effect on a graph.json, which has costs"),
        ("graph.json", ("--costs", "gpu=t4"), "a preset in --costs has no effect on a graph.json"),
        ("graph.json", ("--costs", "t4"), "--costs: for which kind of device is the preset?"),
        ("graph.json", ("--costs", "mine"), "--costs: 'mine' is no file of measured costs, nor"),
        (STEP, ("--costs", "gpu=t4", "--batch", "8", "--dim", "x=8"), "--batch N is for those"),
    ],
)
def test_costs_without_effect_are_refused(
    run: Run, tmp_path: Path, file: str, options: tuple[str, ...], words: str
) -> None:
    path = tmp_path / file  # of the absolute STEP it is STEP
    if not path.exists():
        run("generate", "chain", "-o", path)
    run("info", path, *options, code=2, says=words)


def test_python_says_it_in_its_own_words(tmp_path: Path) -> None:
    baechi.generate("chain").save(path := tmp_path / "graph.json")
    for arguments, words in (
        ({"batch": 8}, "batch= has no effect on a graph.json"),
        ({"dimensions": {"x": 8}}, "dimensions= has no effect on a graph.json"),
        ({"costs": "gpu=t4"}, "a preset in costs= has no effect on a graph.json"),
        ({"costs": "mine"}, "^costs: 'mine' is no file of measured costs"),
    ):
        with pytest.raises(baechi.InputError, match=words):
            baechi.Graph.load(path, **arguments)


def test_a_placed_onnx_model_is_the_model_with_devices(run: Run, tmp_path: Path) -> None:
    placed, again = tmp_path / "placed.onnx", tmp_path / "again.onnx"
    plan = tmp_path / "plan.json"
    place = ("place", CNN, *COSTS, "-c", "2x1GiB", "-m", "balanced", "-o")
    for path in (placed, plan):
        done = run(*place, path)
    assert b"layer_ann" in placed.read_bytes()
    before = baechi.Graph.load(CNN, costs="gpu=rtx2080", batch=5)
    after = baechi.Graph.from_onnx(placed.read_bytes(), costs="gpu=rtx2080", batch=5)
    assert after == before
    done = run("export", CNN, plan, *COSTS, "--to", "onnx", "-o", again)
    assert again.read_bytes() == placed.read_bytes()
    done = run("export", CNN, plan, *COSTS, "--to", "onnxruntime")
    assert done.stdout == "session.layer_assignment_settings=gpu:0(=gpu:0);gpu:1(=gpu:1)\n"


def test_open_dimensions_have_names(run: Run) -> None:
    done = run("info", CNN, "--costs", "gpu=rtx2080", "--dim", "batch=5", "--json")
    by_name = json.loads(done.stdout)["graph"]["output_bytes"]
    done = run("info", CNN, *COSTS, "--json")
    assert json.loads(done.stdout)["graph"]["output_bytes"] == by_name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--costs"),
        (["--costs", "gpu=rtx2080"], "--dim batch=N"),
        (["--costs", "gpu=rtx2080", "--dim", "batch"], "expected NAME=N"),
        (["--costs", "gpu=rtx2080", "--dim", "batch=0"], "--dim"),
    ],
)
def test_what_is_missing_is_asked_for(run: Run, arguments: list[str], words: str) -> None:
    run("info", CNN, *arguments, code=2, says=words)


def test_other_graphs_are_not_written_as_onnx(run: Run, tmp_path: Path) -> None:
    done = run("place", SMALL, "-c", "2x1GiB", "-o", tmp_path / "placed.onnx", code=2)
    assert "only an ONNX model can be written as one" in done.stderr


def test_onnx_runtime_s_profile_is_costs(run: Run) -> None:
    run("check", PROFILE)
    done = run("info", CNN, "--costs", PROFILE, "--batch", "5", "--json")
    (work,) = json.loads(done.stdout)["graph"]["work_by_kind"]
    measured = baechi.Profile.load(PROFILE)
    assert work["work_ns"] == sum(o.times["cpu"] for o in measured.operators.values())
