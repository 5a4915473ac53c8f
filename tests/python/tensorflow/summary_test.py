# SPDX-License-Identifier: Apache-2.0
"""What a placed TensorFlow step says of itself, and what `place` says while it works."""

from __future__ import annotations

import re
from pathlib import Path

import baechi.tensorflow
import keras
import numpy
import pytest
import tensorflow as tf
from baechi.tensorflow.placing import assign

from baechi import InputError, progress

X = numpy.ones((4, 6), "float32")
Y = numpy.zeros((4, 3), "float32")
CLUSTER = "1xcpu:2MiB+1xcpu:1MiB"


def compiled() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    )
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return model


def test_a_placed_model_says_what_a_step_takes_and_who_holds_what(tmp_path: Path) -> None:
    placed = baechi.tensorflow.place(compiled(), X, Y, cluster=CLUSTER)
    assert placed.plan is not None
    text = str(placed)
    assert text.startswith("Sequential on ")
    assert " of 2 devices: a step is predicted to take " in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("cpu:")}
    assert {name: row.split()[1] for name, row in rows.items()} == placed.runs_on
    assert list(rows) == [device.name for device in placed.plan.cluster.devices]
    assert all("CPU:" in device for device in placed.runs_on.values())
    assert "2.00 MiB" in rows["cpu:0"]
    assert "limited by " in text
    assert placed._repr_html_().count("<tr>") == 3
    assert placed.report(tmp_path / "plan.html") == tmp_path / "plan.html"
    placed.restore()


def test_a_function_without_a_plan_says_so(tmp_path: Path) -> None:
    captured = baechi.tensorflow.capture(lambda x: x * 2.0, tf.ones(4))
    placed = assign(captured, dict.fromkeys(captured.names, "a"), {"a": "/device:CPU:1"})
    assert str(placed) == "A function, placed without a plan: a on /device:CPU:1"
    with pytest.raises(InputError, match=r"assign\(\.\.\., plan=plan\)"):
        placed.report(tmp_path / "plan.html")
    placed.restore()


def test_place_says_its_stages_and_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    placed = baechi.tensorflow.place(
        compiled(), X, Y, cluster=CLUSTER, profile="measure", verbose=True
    )
    said = capsys.readouterr()
    assert said.out == ""
    stages = re.findall(r"^baechi: (\w+) \.\.\..* [\d.]+ s$", said.err, re.MULTILINE)
    assert stages == ["tracing", "measuring", "planning", "assigning"]
    assert said.err.endswith(f"{placed}\n")
    placed.restore()
    baechi.tensorflow.place(compiled(), X, Y, cluster=CLUSTER, verbose=False).restore()
    assert capsys.readouterr().err == ""
    baechi.tensorflow.place(compiled(), X, Y, cluster=CLUSTER).restore()  # no terminal
    assert re.fullmatch(
        r"baechi: placed; a step is predicted to take [^\n]+\n", capsys.readouterr().err
    )
    plan = baechi.tensorflow.plan(compiled(), X, Y, cluster=CLUSTER, verbose=True)
    err = capsys.readouterr().err
    assert re.findall(r"^baechi: (\w+) ", err, re.MULTILINE) == ["tracing", "planning"]
    assert err.endswith(f"{plan}\n")
