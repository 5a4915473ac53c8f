# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's GraphDef through the command: placed, converted, refused. No TensorFlow needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import baechi
from tests.conftest import Run

STEP = Path(__file__).parent.parent / "data/tensorflow/cnn_step.pb"
COSTS = ("--costs", "gpu=rtx2080", "--batch", "8")


def test_a_placed_graph_def_is_the_model_with_devices(run: Run, tmp_path: Path) -> None:
    placed = tmp_path / "placed.pb"
    run("place", STEP, *COSTS, "-c", "2x1GiB", "-m", "balanced", "-o", placed)
    devices = {name for name in (b"/device:GPU:0", b"/device:GPU:1") if name in placed.read_bytes()}
    assert devices == {b"/device:GPU:0", b"/device:GPU:1"}
    assert b"/job:localhost/replica:0/task:0/device:GPU:1" in placed.read_bytes()
    before = baechi.Graph.load(STEP, costs="gpu=rtx2080", batch=8)
    after = baechi.Graph.from_graph_def(placed.read_bytes(), costs="gpu=rtx2080", batch=8)
    assert after.names == before.names
    assert len(before) == 270


def test_convert_keeps_the_costs(run: Run, tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    run("convert", STEP, graph, *COSTS)
    converted = baechi.Graph.load(graph)
    convolution = converted["sequential_1/conv2d_1/convolution"]
    assert convolution.kind == "Conv2D"
    assert convolution.outputs == [8 * 16 * 16 * 8 * 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--costs"),
        (["--costs", "gpu=rtx2080"], "--batch"),
        (["--costs", "gpu=abacus", "--batch", "8"], "abacus"),
        (["--costs", "gpu=rtx2080", "--batch", "0"], "--batch"),
    ],
)
def test_missing_costs_are_asked_for(run: Run, arguments: list[str], words: str) -> None:
    run("info", STEP, *arguments, code=2, says=words)


def test_what_cannot_be_written_is_refused(run: Run, tmp_path: Path) -> None:
    placed, graph = tmp_path / "placed.pb", tmp_path / "graph.json"
    run("convert", STEP, graph, *COSTS)
    done = run("place", graph, "-c", "2x1GiB", "-o", placed, code=2)
    assert "GraphDef" in done.stderr
    # Told before planning, which would say that nothing fits.
    done = run("place", graph, "-c", "2x1B", "-o", placed, code=2)
    assert "GraphDef" in done.stderr
    cut = tmp_path / "cut.pb"
    cut.write_bytes(STEP.read_bytes()[:10_000])
    done = run("place", cut, *COSTS, "-c", "2x1GiB", "-o", placed, code=2)
    assert "cut off" in done.stderr
    assert not placed.exists()


def test_every_command_about_a_plan_takes_a_graph_def(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("place", STEP, *COSTS, "-c", "2x1GiB", "-m", "balanced", "-o", plan)
    for command in (
        ("report", STEP, plan, "-o", tmp_path / "report.html"),
        ("show", STEP, plan),
        ("trace", STEP, plan, "-o", tmp_path / "trace.json"),
        ("export", STEP, plan, "--to", "tensorflow"),
        ("check", "--graph", STEP, plan),
    ):
        run(*command, *COSTS)


FROZEN = STEP.parent / "frozen_lstm.pb"  # its loop is Enter, Merge, Switch, NextIteration and Exit


def test_a_frozen_loop_is_one_operator_and_says_so_every_time(run: Run, tmp_path: Path) -> None:
    placed = tmp_path / "placed.pb"
    for _ in range(2):
        done = run("place", FROZEN, "--costs", "gpu=rtx2080", "-c", "2x1GiB", "-o", placed)
        assert "LoopCond/_20' is a loop, which counts as one operator without the" in done.stderr
    run("info", placed, "--costs", "gpu=rtx2080")


def test_a_graph_is_checked_without_costs(run: Run) -> None:
    done = run("check", STEP, FROZEN)
    assert done.stdout.count("graph, ") == 2
    assert "frozen_lstm.pb: graph, 59 operators" in done.stdout


def test_a_saved_model_says_how_to_get_its_graph(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved_model.pb"
    graph = FROZEN.read_bytes()[:1000]
    meta_graph = b"\x0a\x07\x2a\x05serve" + b"\x12\xe8\x07" + graph
    assert len(meta_graph) == 1012
    saved.write_bytes(b"\x08\x01\x12\xf4\x07" + meta_graph)
    for command in (("check", saved), ("info", saved, "--costs", "gpu=rtx2080")):
        done = run(*command, code=2)
        assert "is a TensorFlow SavedModel" in done.stderr
        assert "baechi.tensorflow.capture(FOLDER" in done.stderr
