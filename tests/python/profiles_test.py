# SPDX-License-Identifier: Apache-2.0
"""The committed profiles of PyTorch models, and the table that is made of them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import baechi
from experiments import profile_models, pytorch_models
from experiments.workloads import Workload

ESTIMATED, MEASURED = pytorch_models.workloads()


def test_every_model_is_there_with_both_costs() -> None:
    models = set(pytorch_models.BY_HAND)
    assert {workload.model for workload in MEASURED} == models
    assert {workload.model.rsplit("-", 1)[0] for workload in ESTIMATED} == models


def test_profiles_are_small() -> None:
    for path in profile_models.FOLDER.iterdir():
        assert path.stat().st_size < 300_000, path.name


@pytest.mark.parametrize("workload", [*ESTIMATED, *MEASURED], ids=lambda w: w.model)
def test_experts_place_by_layers_and_keep_every_rule(workload: Workload) -> None:
    graph, cluster = workload.graph(), workload.devices()
    device_of = workload.expert_placement(graph, cluster)
    used = len(set(device_of.values()))
    expected = {"inception-v3": 1, "transformer": 2, "two-tower": 2}
    assert used == expected.get(re.sub(r"-\d+$", "", workload.model), len(cluster))
    for problem in baechi.verify(baechi.simulate(graph, cluster, device_of)):
        assert "more than its capacity" in problem


def test_the_expert_of_gnmt_has_a_layer_on_each_device() -> None:
    workload = next(w for w in MEASURED if w.model == "gnmt")
    device_of = workload.expert_placement(workload.graph(), workload.devices())
    for layer in range(4):
        for side in ("encoder", "decoder"):
            assert device_of[f"{side}.cells.{layer}#2"] == f"gpu:{layer}"
            assert device_of[f"{side}.cells.{layer}#2:backward"] == f"gpu:{layer}"
    assert device_of["decoder.classifier"] == device_of["decoder.attention#3.query"] == "gpu:3"


def test_writing_a_profile_again_changes_nothing(tmp_path: Path) -> None:
    graph = profile_models.load("unet")
    again = profile_models.write(tmp_path, "unet", graph).read_bytes()
    committed = (profile_models.FOLDER / "unet.json.gz").read_bytes()
    assert gzip.decompress(again) == gzip.decompress(committed)


@pytest.mark.parametrize(
    ("file", "given", "words"),
    [
        ("onnx/cnn.onnx", {}, 'as in costs="gpu=rtx3090", or the file of a profile'),
        (
            "onnx/cnn.onnx",
            {"costs": "gpu=rtx3090"},
            'give it with batch=N, or dimensions={"batch": N}',
        ),
        ("tensorflow/cnn_step.pb", {}, 'as in costs="gpu=rtx3090", or the file of a profile'),
    ],
)
def test_python_is_asked_in_its_own_words(
    data: Path, file: str, given: dict[str, str], words: str
) -> None:
    with pytest.raises(baechi.InputError) as caught:
        baechi.Graph.load(data / file, **given)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "--" not in str(caught.value)
