# SPDX-License-Identifier: Apache-2.0
"""``baechi score`` and ``baechi place --objective``: another research's objectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

# Four layers of 10 ms (100 ms on the CPU); 1 ms to or from an accelerator; room for two each.
INSTANCE = {
    "maxSizePerFPGA": 2048,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 100, "fpgaLatency": 10, "size": 1024}
        for i in range(4)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 1} for i in range(3)],
}
MS = 1_000_000
# A millisecond of transfer becomes whole bytes, and those whole nanoseconds.
ROUNDING = 4


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE))
    return path


def placement(path: Path, devices: list[str]) -> Path:
    """Write a placement of the four layers."""
    device_of = {f"node{i}": device for i, device in enumerate(devices)}
    document = {"format": "baechi-placement", "version": 1, "device_of": device_of}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("objective", "value"), [("dnnp-maxload", 21), ("dnnp-latency", 42)], ids=str
)
def test_place_for_an_objective_and_score_what_was_placed(
    run: Run, instance: Path, tmp_path: Path, objective: str, value: int
) -> None:
    out = tmp_path / "placement.json"
    how = ("-c", instance, "--objective", objective, "--budget", "10ms", "--json")
    placed = run("place", instance, *how, "-o", out)
    assert placed.returncode == 0, placed.stderr
    answer = json.loads(placed.stdout)
    assert answer["value"] == pytest.approx(value * MS, abs=ROUNDING)
    assert answer["device_of"] == json.loads(out.read_text())["device_of"]
    scored = run("score", instance, out, "--objective", objective, "--json")
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["value"] == answer["value"]
    again = run("place", instance, *how)
    assert again.stdout == placed.stdout


def test_score_in_words_and_as_json(run: Run, instance: Path, tmp_path: Path) -> None:
    there = [*["accelerator:0"] * 2, *["accelerator:1"] * 2]
    path = placement(tmp_path / "p.json", there)
    words = run("score", instance, path, "--objective", "dnnp-maxload")
    assert words.returncode == 0
    assert "accelerator:1" in words.stdout
    document = json.loads(
        run("score", instance, path, "--objective", "dnnp-latency", "--json").stdout
    )
    assert document["fits"] is True
    assert [call["device"] for call in document["calls"]] == ["accelerator:0", "accelerator:1"]
    assert document["calls"][1]["finish"] == document["value"]


def test_score_of_a_plan_needs_no_cluster(run: Run, instance: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = run("place", instance, "-c", instance, "-m", "m-etf", "-o", plan)
    assert made.returncode == 0, made.stderr
    assert run("score", instance, plan, "--objective", "dnnp-maxload").returncode == 0


def test_score_says_what_is_wrong(run: Run, instance: Path, tmp_path: Path) -> None:
    full = placement(tmp_path / "full.json", ["accelerator:0"] * 4)
    over = run("score", instance, full, "--objective", "dnnp-maxload")
    assert over.returncode == 3
    assert "less memory" in over.stderr
    circle = [f"accelerator:{i}" for i in (0, 1, 0, 1)]
    cut = run(
        "score",
        instance,
        placement(tmp_path / "cut.json", circle),
        "--objective",
        "dnnp-latency",
        "--json",
    )
    assert len(json.loads(cut.stdout)["calls"]) == 4
    unknown = run("score", instance, full, "--objective", "latency")
    assert unknown.returncode == 2
    graph = tmp_path / "graph.json"
    assert run("convert", instance, graph).returncode == 0
    nowhere = run("score", graph, full, "--objective", "dnnp-maxload")
    assert nowhere.returncode == 2
    assert "--cluster" in nowhere.stderr


def test_an_objective_that_nothing_fits(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps({**INSTANCE, "maxSizePerFPGA": 1000, "maxCPUs": 0}))
    result = run("place", path, "-c", path, "--objective", "dnnp-maxload")
    assert result.returncode == 3
    assert "does not fit" in result.stderr
