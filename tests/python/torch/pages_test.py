# SPDX-License-Identifier: Apache-2.0
"""The programs of tutorials, tasks and recipes for PyTorch run, and print what their pages say."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from experiments import bank_packages
from tests import pages


@pytest.mark.repeats
@pytest.mark.parametrize("page", pages.pages_of("torch"))
def test_a_page_prints_what_it_says(root: Path, sim: ModuleType, page: str, tmp_path: Path) -> None:
    if "onnxruntime" in (root / page).read_text():
        pytest.importorskip("onnxruntime")
    if "transformers" in (root / page).read_text():
        pytest.importorskip("transformers")
    more = {"HF_HUB_OFFLINE": "1"}
    if "peft" in (root / page).read_text():
        path = [str(peft_at(tmp_path / "packages")), os.environ.get("PYTHONPATH")]
        more["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    pairs = pages.run(root / page, tmp_path, **more)
    for shown, printed in pairs:
        assert pages.says(shown, printed), printed
        if "tutorial" in page:  # other pages show larger plans, which every better search changes
            assert not pages.wrong(shown, printed), printed
    if page in ALSO:
        ALSO[page]([printed for _, printed in pairs])
    gc.collect()
    sim.reset()


def peft_at(folder: Path) -> Path:
    """Return a folder with peft and diffusers; torchvision's kernels are for other builds."""
    if why := bank_packages.install():
        pytest.skip(f"pip cannot install {bank_packages.LIST.name}: {why}")
    folder.mkdir()
    for package in bank_packages.FOLDER.iterdir():
        if not package.name.startswith(("torchvision", "timm")):
            (folder / package.name).symlink_to(package)
    return folder


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
    assert sooner < 0.6 * taken


def only_the_plan_fits(printed: list[str]) -> None:
    assert printed[0].count("out of memory") == 2
    found = re.search(
        r"planned: +([\d.]+) ms a step; ([\d.]+) MiB of ([\d.]+)MiB, ([\d.]+) MiB of ([\d.]+)MiB",
        printed[0],
    )
    assert found is not None
    step, one, first, other, second = map(float, found.groups())
    assert one <= first
    assert other <= second
    predicted = re.findall(r"predicted to take ([\d.]+) ms", printed[0])[0]
    assert float(predicted) <= step < 1.4 * float(predicted)  # it leaves the optimizer out


def planned_maps_are_shorter(printed: list[str]) -> None:
    one, accelerate, prompt, answer = (
        [float(found) for found in re.findall(r" (\d+\.\d+)", line)[:2]]
        for line in printed[0].splitlines()[1:5]
    )
    assert prompt[0] < min(one[0], accelerate[0])
    assert answer[1] < min(one[1], accelerate[1])


# What must hold of figures that a page shows.
def two_processes_train_as_one(printed: list[str]) -> None:
    alone, together = (text.splitlines() for text in printed)
    assert len(alone) == 4
    assert alone[:3] == together[:3]


def the_plan_beats_equal_layers(printed: list[str]) -> None:
    alone, together = (re.findall(r"[\d.]+", line)[:2] for line in printed[0].splitlines()[:2])
    assert alone == together  # first and last loss
    one, equal, planned = (float(line.split()[-1]) for line in printed[0].splitlines()[-3:])
    assert planned < equal < one


ALSO = {
    "docs/tutorial/first_model.md": the_first_model_uses_two_cards,
    "docs/tutorial/two_processes.md": two_processes_train_as_one,
    "docs/tutorial/micro_batches.md": the_pipeline_takes_what_it_says,
    "docs/how_to/recipes/device_map.md": planned_maps_are_shorter,
    "docs/how_to/recipes/flux_lora.md": only_the_plan_fits,
    "docs/how_to/recipes/qlora.md": only_the_plan_fits,
    "docs/how_to/recipes/trainer.md": only_the_plan_fits,
    "docs/how_to/recipes/two_processes.md": the_plan_beats_equal_layers,
}
