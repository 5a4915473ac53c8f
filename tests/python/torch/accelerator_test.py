# SPDX-License-Identifier: Apache-2.0
"""The page of a real accelerator, rehearsed on a simulated one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("baechi.torch.sim")

import torch

from experiments import (
    accelerator,
    accelerator_host,
    accelerator_models,
    accelerator_results,
    accelerator_steps,
    accelerator_tables,
)
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
    monkeypatch.setattr("experiments.accelerator_host.NAMES", ("unet",))
    monkeypatch.setattr(accelerator_steps, "STEPS", 2)
    monkeypatch.setattr(accelerator_steps, "WARM_UP", 1)


def rehearsed(folder: Path, clock: str, **how: Any) -> Any:
    page = accelerator.run(folder=folder, simulated=clock, **{"models": ["unet"], **how})
    page.write(folder, "command")
    return page


def test_on_the_virtual_clock_all_parts_run_and_predictions_hold(tmp_path: Path) -> None:
    page = rehearsed(tmp_path, "virtual", devices=2)
    rows = page.results.rows
    assert page.results.failures == []
    (model,) = rows["models"]
    assert abs(model["placed error"]) < 0.02
    assert abs(model["peak error"]) < 0.2  # of tensors that are smaller than the allocator's blocks
    assert model["held"] >= 0
    assert {(row["devices"], row["method"]) for row in rows["spread"]} == {
        (2, "auto"),
        (2, "m-topo"),
    }
    for row in rows["spread"]:
        assert abs(row["placed error"]) < 0.1
    assert any(row["transfers"] > 0 for row in rows["spread"])
    (host,) = rows["host"]
    assert host["loss_difference"] < 1e-5
    assert host["cap"] < host["need"]
    assert 0 < host["on_cpu"] < 1
    assert {(row["from"], row["to"]) for row in rows["links"]} >= {
        ("gpu:0", "cpu:0"),
        ("cpu:0", "gpu:0"),
        ("gpu:0", "gpu:0"),
    }
    assert [row["workload"] for row in rows["table4"]] == ["unet"]
    assert len(rows["table5"]) == 2
    text = (tmp_path / "accelerator.md").read_text()
    assert "A rehearsal on simulated devices" in text
    assert text.count("## ") >= 8


def test_on_the_real_clock_steps_take_time_and_an_earlier_run_is_kept(tmp_path: Path) -> None:
    rehearsed(tmp_path, "real", parts=["links", "models"])
    known = json.loads((tmp_path / "accelerator.json").read_text())
    (model,) = known["rows"]["models"]
    assert model["placed"] > 0.5 * model["predicted"]
    assert 0 < model["placed submitted"] <= 1.01
    page = rehearsed(tmp_path, "real", parts=["host"], minutes=0)  # no time for anything
    assert page.results.rows["models"] == known["rows"]["models"]
    assert {line["why"] for line in page.results.failures} == {"not reached in the time"}
    assert "## What did not run" in (tmp_path / "accelerator.md").read_text()
    other = {**page.results.hardware, "accelerator": "another"}
    assert accelerator_results.earlier(tmp_path / "accelerator.json", other).rows == {}


def test_costs_of_another_accelerator_are_not_planned_with(tmp_path: Path) -> None:
    rehearsed(tmp_path, "virtual", parts=["models"])
    listing = tmp_path / "profiles/profiles.json"
    known = json.loads(listing.read_text())
    known["profiles"]["unet"]["accelerator"] = "another"
    listing.write_text(json.dumps(known))
    page = rehearsed(tmp_path, "virtual", parts=["planned"])
    assert "table4" not in page.results.rows
    assert [line["what"] for line in page.results.failures] == ["planned"]


def test_losses_are_compared_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.accelerator_host.NAMES", ("transformer",))
    workloads = accelerator_host.workloads(hardware_module.Hardware((torch.device("cpu"),)))
    assert all(getattr(w.config, "dropout", 0.0) == 0.0 for w in workloads)


def test_what_fails_is_listed_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room\nfor this")

    monkeypatch.setattr(accelerator_models, "_alone", broken)
    page = rehearsed(tmp_path, "virtual", parts=["models"])
    assert [line["why"] for line in page.results.failures] == ["OutOfMemoryError: no room"]
    assert page.results.rows["models"][0]["unplaced"] > 0
    assert page.lacks == ""


def test_a_run_that_brought_only_failures_says_so_and_keeps_earlier_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["accelerator", "--simulated", "virtual", "--models", "unet", "--output", str(tmp_path)]
    assert main([*here, "--parts", "models"]) == 0
    known = json.loads((tmp_path / "accelerator.json").read_text())["rows"]

    def broken(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room\nfor this")

    monkeypatch.setattr(accelerator_models, "run_steps", broken)
    monkeypatch.setattr(accelerator_steps, "run_steps", broken)
    capsys.readouterr()
    assert main([*here, "--parts", "models"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "accelerator: this run brought nothing for steps on one device (2 failed, the first: unet, "
        "unplaced: OutOfMemoryError: no room); the page has what there is"
    )
    text = (tmp_path / "accelerator.md").read_text()
    assert text.count("OutOfMemoryError: no room") == 2
    assert json.loads((tmp_path / "accelerator.json").read_text())["rows"] == known


def test_without_links_the_other_parts_fail_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no copies")

    monkeypatch.setattr("experiments.accelerator_links.calibrated", broken)
    page = rehearsed(tmp_path, "virtual")
    assert {line["why"] for line in page.results.failures} == {
        "RuntimeError: no copies",
        "there are no links",
    }
    assert all(
        accelerator_results.TABLES[name] in page.lacks
        for name in ("links", "host", "models", "table4")
    )


def test_what_there_was_no_time_for_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = rehearsed(tmp_path, "virtual", parts=["models", "planned"], minutes=0)
    whys = [line["why"] for line in page.results.failures]
    assert whys == [accelerator_results.NOT_REACHED] * 2
    assert page.lacks == ""
    assert "--parts models,planned --models unet goes on" in capsys.readouterr().err


def test_rows_of_another_day_say_so(tmp_path: Path) -> None:
    rehearsed(tmp_path, "virtual", parts=["links"])
    path = tmp_path / "accelerator.json"
    assert " made |" not in (tmp_path / "accelerator.md").read_text()
    known = json.loads(path.read_text())
    old_row = {"workload": "unet", "unplaced": 1, "peak": 1, "predicted": 1}
    known["rows"]["models"] = [{**old_row, "made": "2000-01-01, driver 1, a host"}]
    path.write_text(json.dumps(known))
    rehearsed(tmp_path, "virtual", parts=["links"])
    tables = (tmp_path / "accelerator.md").read_text().split("\n## ")
    old = [table.split("\n")[0] for table in tables if "| 2000-01-01, driver 1, a host |" in table]
    assert old == ["Step time on one device", "Peaks on one device"]


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
    def cut(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(accelerator, "subject_of", cut)
    with pytest.raises(KeyboardInterrupt):
        rehearsed(tmp_path, "virtual", parts=["links", "models"])
    known = json.loads((tmp_path / "accelerator.json").read_text())
    assert len(known["rows"]["links"]) == 3


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
    host = {"workload": "d", "cap": 1, "error": -0.4, "peak_error": None}
    (line,) = accelerator_tables.to_explain([host], ["error", "peak_error"]).splitlines()[2:]
    assert line.startswith("- d, with the CPU: error -40%; the CPU's operators")
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
        (["--parts", "models,nothing"], "no part 'nothing'"),
        (["--models", "nothing"], "no model 'nothing'"),
        (["--minutes", "-1"], "--minutes"),
        (["--minutes", "nan"], "--minutes"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["accelerator", *option])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
