# SPDX-License-Identifier: Apache-2.0
"""The bank's runner notices what it is there for, and says what became of a model."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("baechi.torch.sim")

import torch
from baechi.torch import sim
from baechi.torch.run import communication

from experiments import bank, bank_accelerator, bank_packages, bank_row
from models.bank import ENTRIES, FAMILIES
from models.bank.entry import Entry, noise, tokens
from models.bank.known import KNOWN, Known

TRIALS = {trial.name: trial for trial in bank_row.TRIALS}


@pytest.fixture(scope="module")
def subject() -> bank_row.Subject:
    return bank_row.Subject(ENTRIES["shared-block"], 1)


def test_every_model_has_a_name_of_its_own_and_inputs_that_repeat() -> None:
    assert len(ENTRIES) == sum(len(family.ENTRIES) for family in FAMILIES)
    assert len(ENTRIES) > 100
    for entry in ENTRIES.values():
        first, again = (entry.inputs(4, 1) for _ in range(2))
        assert str(first) == str(again), entry.name


def test_a_model_that_trains_the_same_is_fine(subject: bank_row.Subject) -> None:
    found = subject.run(TRIALS["random, tier 1"], 3)
    assert found["result"] == "ok"
    assert found["tier"] == 1
    assert abs(found["peaks"][0]) < 0.1


class Keeping(torch.nn.Module):
    """Adds what it made in the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.kept = torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layers[0](x)) + self.kept.to(x)
        self.kept = x.detach().mean(0)
        return self.layers[1](x)


def test_what_a_model_keeps_of_its_example_is_gone_when_it_trains() -> None:
    entry = Entry("keeping", "x", Keeping, lambda n, s: noise(n, 8, seed=s), varies="what it kept")
    found = bank_row.Subject(entry, 1).run(TRIALS["random, tier 1"], 3)
    assert found["result"] == "ok", found


def test_a_copy_that_is_off_by_a_millionth_is_wrong(
    subject: bank_row.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait: Callable[[Any], Any] = communication.Arrival.wait

    def off(self: Any) -> Any:
        found = wait(self)
        return found * (1 + 1e-5) if found.is_floating_point() else found

    monkeypatch.setattr(communication.Arrival, "wait", off)
    found = subject.run(TRIALS["random, tier 1"], 3)
    assert found["result"] == "WRONG"
    assert "instead of" in found["said"]


def test_what_differs_first_is_named() -> None:
    one = bank_row.Trained([1.0, 2.0], {"weight a": torch.ones(2), "buffer n": torch.tensor(3)})

    def said(losses: list[float], **changed: torch.Tensor) -> str:
        tensors = {**one.tensors, **{k.replace("_", " "): t for k, t in changed.items()}}
        return bank_row.difference(one, bank_row.Trained(losses, tensors))

    nan = float("nan")
    assert said([1.0, 2.0]) == ""
    assert said([1.0, 2.1]) == "loss 2.1 instead of 2 in step 2"
    assert said([1.0, nan]) == "loss nan instead of 2 in step 2"
    assert said([1.0, 2.0], weight_a=torch.tensor([1.0, nan])) == "weight a is off by nan"
    assert said([1.0, 2.0], buffer_n=torch.tensor(4)) == "buffer n is off by 1"
    assert said([1.0, 2.0], gradient_b=torch.ones(1)) == "gradient b is only there placed"
    assert "instead of torch.float32 [2]" in said([1.0, 2.0], weight_a=torch.ones(3))


def test_a_peak_may_be_a_tenth_too_high_and_three_in_a_hundred_too_low() -> None:
    compared = bank_row.compared_peaks
    assert "result" not in compared([110_000, 97_000], [100_000, 100_000])
    assert compared([110_000, 97_000], [100_000, 100_000])["peaks"] == pytest.approx([-0.03, 0.1])
    assert compared([90_000], [100_000])["result"] == "PEAK"
    assert compared([115_000], [100_000])["result"] == "PEAK"


def test_on_a_real_accelerator_all_devices_are_logical_ones_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bank_accelerator, "accelerator", lambda: torch.device("sim", 0))
    idled: list[int] = []
    monkeypatch.setattr(bank_accelerator, "idle", idled.append)
    with sim.configured(devices=1, asynchronous=True, poison=True):
        subject = bank_accelerator.Accelerated(ENTRIES["shared-block"], 1)
        found = list(bank_row.trials(subject))
        assert [trial["result"] for trial in found] == ["ok"] * 7
        assert all(trial["transfers"] for trial in found[2:])
        assert idled
        subject.truth.losses[2] += 1e-3
        assert subject.run(bank_accelerator.TRIALS[1], 1)["result"] == "WRONG"


def ended(name: str, *trials: tuple[str, str]) -> bank.Row:
    found = [{"trial": t, "result": r, "said": "why", "seconds": 1.0} for t, r in trials]
    return bank.Row(name, found)


def test_what_is_known_to_fail_is_no_news_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Known("tier 2", "FAILS", "views of two tensors")
    monkeypatch.setitem(KNOWN, "vae", [known])
    row = ended("vae", ("random, tier 1", "ok"), ("random, tier 2", "FAILS"))
    assert (row.unknown(), row.mended()) == ([], [])
    assert row.raw()["said"] == "views of two tensors / FAILS random, tier 2: why"
    row = ended("vae", ("random, tier 1", "FAILS"), ("random, tier 2", "ok"))
    assert [trial["trial"] for trial in row.unknown()] == ["random, tier 1"]
    assert row.mended() == [known]
    monkeypatch.setitem(KNOWN, "vae", [dataclasses.replace(known, always=False)])
    assert row.mended() == []
    assert not known.covers("tier 2", "WRONG")
    assert not dataclasses.replace(known, said="out of memory").covers("tier 2", "FAILS", "wrong")


def test_a_process_that_dies_or_hangs_costs_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "TIME_LIMIT", 0.01)
    row = bank.run_row("views", 1)
    assert row.unknown()[-1]["trial"] == "after the start"
    assert "did not end" in row.unknown()[-1]["said"]
    assert bank.ended(-11, "Fatal error\nsegmentation fault") == "signal 11: segmentation fault"


def test_a_package_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("x", "y", torch.nn.Identity, noise, needs="no_such_package")
    monkeypatch.setitem(ENTRIES, "x", entry)
    row = bank.run_row("x", 1)
    assert row.raw()["said"] == "no_such_package is not installed"
    assert row.raw()["came"] == "skipped"
    assert not bank_packages.missing("torch")


def test_rows_of_other_models_stay_in_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bank_packages, "install", lambda: "")
    outcome = {"views": "ok", "memory-list": "PEAK"}
    monkeypatch.setattr(
        bank, "run_row", lambda name, *_: ended(name, ("one device", outcome[name]))
    )
    assert bank.main(["views", "--output", str(tmp_path)]) == 0
    assert bank.main(["memory-list", "--output", str(tmp_path)]) == 1
    assert "1 failed" in capsys.readouterr().out
    table = json.loads((tmp_path / "bank.json").read_text())["tables"][0]
    assert [row["model"] for row in table["rows"]] == ["memory-list", "views"]  # as in the bank
    text = (tmp_path / "bank.md").read_text()
    assert f"2 of {len(ENTRIES)} models" in text
    assert "1 PEAK" in text
    before = (tmp_path / "bank.json").read_bytes()
    sample = ["--sample", "word", "--minutes", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(bank, "run_row", lambda name, *_: ended(name, ("planned", "ok")))
    assert bank.main(sample) == 0
    assert "2 passed, 0 failed, 0 skipped of 2 models" in capsys.readouterr().out
    assert (tmp_path / "bank.json").read_bytes() == before
    assert bank.main([*sample[:2], "--minutes", "0", *sample[4:]]) == 0  # begins none
    assert "0 passed" in capsys.readouterr().out


def test_a_sample_rotates() -> None:
    names = list(ENTRIES)
    assert sorted(bank.sampled(names, "a")) == sorted(names)
    assert bank.sampled(names, "a") == bank.sampled(names, "a") != bank.sampled(names, "b")


def test_tokens_leave_padding_free() -> None:
    assert int(tokens(100, below=3).min()) == 1


def test_a_row_made_in_a_process_of_its_own_is_without_failures() -> None:
    program = [sys.executable, "-m", "experiments.bank_row", "own-backward"]
    lines = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    results = {found["trial"]: found["result"] for found in map(json.loads, lines)}
    assert results.pop("graph") == "none"
    assert set(results.values()) == {"ok"}
    assert "asynchronous, tier 1, streams" in results
