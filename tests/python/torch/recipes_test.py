# SPDX-License-Identifier: Apache-2.0
"""The recipes under examples/ print what their pages say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from tests import pages


@pytest.mark.usefixtures("as_by_default")
def test_a_vision_model_trains_only_as_planned(
    root: Path,
    sim: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(root / "examples"))
    monkeypatch.setattr("sys.argv", ["torch_vision.py"])
    runpy.run_path(str(root / "examples/torch_vision.py"), run_name="__main__")
    printed = capsys.readouterr().out
    page = (root / "docs/how_to/recipes/vision.md").read_text()
    shown = re.search(r"```text\n(one card.*?)```", page, re.DOTALL)
    assert shown is not None
    assert pages.without_numbers(printed) == pages.without_numbers(shown[1])
    held, one, other = re.findall(
        r"planned: +([\d.]+) ms a step; ([\d.]+) MiB.*, ([\d.]+) MiB", printed
    )[0]
    assert float(one) <= 32
    assert float(other) <= 24
    predicted = re.findall(r"predicted to take ([\d.]+) ms", printed)[0]
    assert float(held) == pytest.approx(float(predicted), rel=0.15)
    sim.reset()
