# SPDX-License-Identifier: Apache-2.0
"""The page of a real accelerator, rehearsed on a simulated one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import accelerator, accelerator_models, accelerator_steps, accelerator_tables
from experiments import hardware as hardware_module
from experiments.__main__ import main
from experiments.catalogue import MODELS
from experiments.page import ROOT
from experiments.peer_placers import Missing
from experiments.several import SKIPPED
from experiments.torch_workloads import TINY, TorchWorkload

pytestmark = [
    pytest.mark.repeats,  # these measure what other tests prove
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has to be seen once."""
    monkeypatch.setattr(accelerator_steps, "STEPS", 2)
    monkeypatch.setattr(accelerator_steps, "WARM_UP", 1)


def rehearsed(folder: Path, clock: str, **how: Any) -> Any:
    return accelerator.run(folder=folder, simulated=clock, **{"models": ["unet"], **how})


def test_on_the_virtual_clock_predictions_hold(tmp_path: Path) -> None:
    page = rehearsed(tmp_path, "virtual", devices=2)
    steps, _, spread, _, links = (table.rows for table in page.tables)  # nothing failed
    (model,) = steps
    assert abs(model["placed error"]) < 0.02
    assert abs(model["peak error"]) < 0.2  # of tensors that are smaller than the allocator's blocks
    assert model["held"] >= 0
    assert {(row["devices"], row["method"]) for row in spread} == {
        (2, "auto"),
        (2, "m-topo"),
    }
    for row in spread:
        assert abs(row["placed error"]) < 0.1
    assert any(row["transfers"] > 0 for row in spread)
    assert {(row["from"], row["to"]) for row in links} >= {
        ("gpu:0", "cpu:0"),
        ("cpu:0", "gpu:0"),
        ("gpu:0", "gpu:1"),
    }
    text = (tmp_path / "accelerator.md").read_text()
    assert "A rehearsal on simulated devices" in text
    assert text.count("\n## ") == 5


def test_on_the_real_clock_steps_take_time(tmp_path: Path) -> None:
    (model,) = rehearsed(tmp_path, "real").tables[0].rows
    assert model["placed"] > 0.5 * model["predicted"]
    assert 0 < model["placed submitted"] <= 1.01


def test_what_fails_is_listed_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room\nfor this")

    monkeypatch.setattr(accelerator_models, "_alone", broken)
    page = rehearsed(tmp_path, "virtual")
    assert [row["why"] for row in page.tables[-1].rows] == ["OutOfMemoryError: no room"]
    assert page.tables[0].rows[0]["unplaced"] > 0
    assert page.lacks == "no step of a placed model was measured"


def test_a_model_too_large_for_the_device_is_tried_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [TorchWorkload("vit", {"width": 2048}, 4, tiny=True), TINY["vit"]]
    monkeypatch.setattr(accelerator_steps, "candidates", lambda *_: sizes)
    monkeypatch.setitem(hardware_module.SIMULATED, "memory", "48MiB")
    with hardware_module.hardware("virtual") as found:
        subject = accelerator_steps.subject_of("vit", found)
        assert subject.workload is sizes[1]
        del subject
        monkeypatch.setattr(accelerator_steps, "candidates", lambda *_: sizes[:1])
        with pytest.raises(torch.OutOfMemoryError, match="no size of vit leaves room on sim:0"):
            accelerator_steps.subject_of("vit", found)


def test_a_run_that_is_cut_short_leaves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(name: str, found: Any) -> Any:
        if name == "vit":
            raise KeyboardInterrupt
        return accelerator_steps.subject_of(name, found)

    monkeypatch.setattr(accelerator, "subject_of", cut)
    with pytest.raises(KeyboardInterrupt):
        rehearsed(tmp_path, "virtual", models=["unet", "vit"])
    assert "| unet |" in (tmp_path / "accelerator.md").read_text()


def test_errors_are_listed_with_what_the_row_says_of_them() -> None:
    rows = [
        {"workload": "a", "placed error": -0.5, "placed submitted": 0.98},
        {"workload": "b", "placed error": 0.16, "placed submitted": 0.2},
        {"workload": "c", "placed error": 0.14},
    ]
    lines = accelerator_tables.to_explain(rows, ["placed error"]).splitlines()
    assert lines[0] == "Errors above 15%:"
    assert lines[2] == (
        "- a: placed error -50%; the host had started all of it only after 98% of the step"
    )
    assert lines[3] == "- b: placed error +16%; not explained yet"
    assert len(lines) == 4
    assert accelerator_tables.to_explain(rows[2:], ["placed error"]) == "No error is above 15%."


def test_simulated_devices_in_the_process_are_no_real_accelerator() -> None:
    with (
        pytest.raises(Missing, match="a process of its own"),
        hardware_module.hardware(),
    ):
        pass


def test_without_an_accelerator_it_is_skipped_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "accelerator", "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if torch.accelerator.is_available() and "sim" not in str(
        torch.accelerator.current_accelerator()
    ):
        pytest.skip("there is an accelerator")
    assert done.returncode == SKIPPED
    assert done.stdout.split(maxsplit=1)[1].startswith("skipped: this machine has no accelerator")
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_models_of_its_tables_are_all_there_are() -> None:
    from models.pytorch import MODELS as THERE

    assert tuple(THERE) == MODELS


def test_wrong_options_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    for option, said in (
        (["--models", "nothing"], "no model 'nothing'"),
        (["--simulated", "slow"], "--simulated"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["accelerator", *option])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
