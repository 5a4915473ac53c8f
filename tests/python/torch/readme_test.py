# SPDX-License-Identifier: Apache-2.0
"""The three lines of the README do what it says on simulated cards; functions are estimated."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import baechi.torch.sim as sim
import pytest
import torch

import baechi
from tests import pages


@pytest.fixture
def scripts(root: Path) -> Iterator[tuple[str, str, str]]:
    """Return the script before and after, for simulated cards, and what the README shows."""
    text = (root / "README.md").read_text()
    found = re.search(r"^```diff\n(.*?)^```$.*?^```text\n(.*?)^```$", text, re.S | re.M)
    assert found is not None
    lines = found[1].replace("cuda", "sim").splitlines()
    assert sum(line.startswith(("+", "-")) for line in lines) == 3
    sim.configure(devices=2, memory="160MiB", asynchronous=False)
    yield (
        "\n".join(line[1:] for line in lines if not line.startswith("+")),
        "\n".join(line[1:] for line in lines if not line.startswith("-")),
        found[2].replace("cuda", "sim"),
    )
    sim.configure(devices=1)


def test_the_three_lines(scripts: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    before, after, shown = scripts
    gc.collect()
    others = sim.memory_allocated(0)  # what tests before this one have kept
    with pytest.raises(torch.OutOfMemoryError):
        exec(compile(before, "before", "exec"), {})
    gc.collect()  # what the error has kept
    assert sim.memory_allocated(0) == others
    capsys.readouterr()
    exec(compile(after, "after", "exec"), {})
    printed = capsys.readouterr().out
    assert pages.says(shown, printed), printed
    assert pages.numbers(printed)[:3] == pytest.approx(pages.numbers(shown)[:3], rel=0.15)


def test_an_estimate_of_what_a_function_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "makes_a_model.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef make():\n"
        "    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))\n"
        "    return model, torch.randn(32, 64)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = baechi.estimate("makes_a_model:make", "1x2GiB", compare=False)
    assert found.fits
    assert found.parameters == 64 * 256 + 256 + 256 * 10 + 10
    assert found.plan is not None
    assert found.per_second == pytest.approx(32 / (found.plan.makespan_ns / 1e9))
    assert "32 samples" in str(found)
    small = baechi.estimate("makes_a_model:make", "1x64KiB", compare=False)
    assert not small.fits
    with pytest.raises(baechi.InputError, match=r"makes_a_model has no function made"):
        baechi.estimate("makes_a_model:made", "1x2GiB")
    with pytest.raises(baechi.InputError, match=r"cannot import makes_none"):
        baechi.estimate("makes_none:make", "1x2GiB")
    beside = baechi.estimate("makes_a_model:make", "1x192KiB+1xhost:4MiB", compare=False)
    assert beside.fits
    assert beside.away > 0
