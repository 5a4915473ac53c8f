# SPDX-License-Identifier: Apache-2.0
"""What a placed model says of itself, and what `place` says while it works."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from baechi.torch.placing import assign
from torch import nn

from baechi import InputError, Plan, place_graph, progress, summary


@pytest.fixture
def model(sim: ModuleType) -> nn.Module:
    sim.configure(devices=2, memory="24MiB")
    torch.manual_seed(0)
    block = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)]
    return nn.Sequential(*block, *(nn.Linear(256, 256) for _ in range(12)))


CLUSTER, DEVICES = "1x14MiB+1x10MiB@0.6", ["sim:0", "sim:1"]


def test_a_placed_model_says_where_it_runs_and_what_limits_it(
    model: nn.Module, tmp_path: Path
) -> None:
    placed = baechi.torch.place(model, torch.randn(8, 256), CLUSTER, devices=DEVICES)
    text = str(placed)
    assert text.startswith("Sequential on 2 of 2 devices: a step is predicted to take ")
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("gpu:")}
    assert {name: row.split()[1] for name, row in rows.items()} == placed.runs_on
    assert placed.runs_on == {"gpu:0": "sim:0", "gpu:1": "sim:1"}
    for name, row in rows.items():
        assert f"{placed.peaks[name] / 2**20:.2f} MiB" in row
    assert "14.00 MiB" in rows["gpu:0"]
    assert "limited by " in text
    assert "mode 'streams'; no call has run yet, and those that have a graph take tier 2" in text
    assert placed._repr_html_().count("<tr>") == 3
    assert placed.report(tmp_path / "plan.html") == tmp_path / "plan.html"
    assert "Sequential" in (tmp_path / "plan.html").read_text()
    assert repr(placed) == f"<Placed Sequential on 2 devices, mode 'streams', tier {placed.tier}>"
    placed.restore()


def test_before_the_first_call_no_tier_is_said_to_have_run(model: nn.Module) -> None:
    inputs = torch.randn(8, 256)
    placed = baechi.torch.place(model, inputs, "2x20MiB", devices=DEVICES, method="m-etf", tier=2)
    assert "mode 'streams'; no call has run yet" in str(placed)
    model(inputs)
    assert "mode 'streams', tier 2\n" in str(placed)
    placed.restore()


def test_the_figure_of_one_device_is_found_once(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counted(*args: Any, **options: Any) -> Plan:
        asked.append(args[2])
        return place_graph(*args, **options)

    monkeypatch.setattr(summary, "place_graph", counted)
    placed = baechi.torch.place(
        model, torch.randn(8, 256), "2x20MiB", devices=DEVICES, method="m-etf", verbose=True
    )
    assert str(placed) == str(placed)
    assert placed._repr_html_()
    assert asked == ["single"]
    placed.restore()


def test_place_tells_of_its_stages_and_of_the_result(
    model: nn.Module, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    inputs = torch.randn(8, 256)
    placed = baechi.torch.place(
        model,
        inputs,
        CLUSTER,
        devices=DEVICES,
        costs="measure",
        mode="streams",
        tier=2,
        verbose=True,
    )
    said = capsys.readouterr().err
    told = re.findall(r"baechi: (\w+) \.\.\. \d+\.\d s", said)
    assert told == ["recording", "tracing", "measuring", "planning", "assigning"]
    assert said.endswith(f"{placed}\n")
    placed.restore()
    baechi.torch.place(model, inputs, CLUSTER, devices=DEVICES, verbose=False).restore()
    assert capsys.readouterr().err == ""


def test_planning_is_told_with_the_number_of_micro_batches(
    model: nn.Module, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    baechi.torch.place(
        model,
        torch.randn(2, 256),
        "2x1GiB",
        devices=["cpu"] * 2,
        micro_batches="auto",
        loss=torch.sum,
        method="m-etf",
        verbose=True,
    )
    said = capsys.readouterr().err
    assert re.findall(r"planning [^.]*", said) == [
        "planning 1 micro-batch ",
        "planning 2 micro-batches ",
    ]
    assert "tracing ..." in said


def test_a_model_placed_without_a_plan_has_none_to_report(model: nn.Module, tmp_path: Path) -> None:
    captured = baechi.torch.capture(model, torch.randn(8, 256))
    costs = estimate(captured, baechi.Cluster("2xgpu:14MiB"))
    graph = graph_of(captured, costs).graph
    devices = {"gpu:0": "sim:0", "gpu:1": "sim:1"}
    device_of = dict.fromkeys(graph.names, "gpu:0")
    placed = assign(model, captured, device_of, devices)
    assert str(placed).startswith(
        "Sequential, placed without a plan: gpu:0 on sim:0, gpu:1 on sim:1"
    )
    with pytest.raises(InputError, match=r"place\(\.\.\., plan=plan\)"):
        placed.report(tmp_path / "plan.html")
    placed.restore()


def test_a_warning_names_the_line_of_the_script(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="which has") as caught:
        baechi.torch.place(model, torch.randn(8, 256), "2x1GiB").restore()
    assert [warning.filename for warning in caught] == [__file__]
