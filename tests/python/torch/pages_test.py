# SPDX-License-Identifier: Apache-2.0
"""The programs of tutorials, tasks and recipes for PyTorch run, and print what their pages say."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from tests import pages


@pytest.mark.usefixtures("as_by_default")
@pytest.mark.parametrize("page", pages.pages_of("torch"))
def test_a_page_prints_what_it_says(root: Path, sim: ModuleType, page: str, tmp_path: Path) -> None:
    if "onnxruntime" in (root / page).read_text():
        pytest.importorskip("onnxruntime")
    if "transformers" in (root / page).read_text():
        pytest.importorskip("transformers")
    pairs = pages.run(root / page, tmp_path)
    for shown, printed in pairs:
        assert pages.says(shown, printed), printed
    if page in ALSO:
        ALSO[page]([printed for _, printed in pairs])
    gc.collect()
    sim.reset()


def the_first_model_uses_two_cards(printed: list[str]) -> None:
    assert len(printed) == 4
    assert "sim:1" in printed[1]


def the_pipeline_takes_what_it_says(printed: list[str]) -> None:
    (_, loss, planned, taken), (_, again, soon, sooner) = (
        pages.numbers(line) for line in printed[0].splitlines()
    )
    assert again < loss
    assert taken == pytest.approx(planned, rel=0.05)
    assert sooner == pytest.approx(soon, rel=0.05)
    assert sooner < taken / 2


def the_vision_model_trains_only_as_planned(printed: list[str]) -> None:
    step, one, other = re.findall(
        r"planned: +([\d.]+) ms a step; ([\d.]+) MiB.*, ([\d.]+) MiB", printed[0]
    )[0]
    assert float(one) <= 32
    assert float(other) <= 24
    predicted = re.findall(r"predicted to take ([\d.]+) ms", printed[0])[0]
    assert float(step) == pytest.approx(float(predicted), rel=0.15)


# What must hold of figures that a page shows.
ALSO = {
    "docs/tutorial/first_model.md": the_first_model_uses_two_cards,
    "docs/tutorial/micro_batches.md": the_pipeline_takes_what_it_says,
    "docs/how_to/recipes/vision.md": the_vision_model_trains_only_as_planned,
}
