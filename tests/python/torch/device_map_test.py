# SPDX-License-Identifier: Apache-2.0
"""Device maps are taken by accelerate and transformers as they are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import pytest
import torch
from step_models import tiny
from torch import nn

import baechi

accelerate: Any = pytest.importorskip("accelerate")
transformers: Any = pytest.importorskip("transformers")

MEMORY: dict[int | str, int | str] = {"sim:0": "160KiB", "sim:1": "160KiB", "sim:2": "160KiB"}
EXAMPLE = {"input_ids": torch.arange(16).reshape(2, 8)}


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    gc.collect()
    with sim.configured(devices=4, memory="1GiB"):
        yield


def gpt2() -> Any:
    return tiny("gpt2", 4, 32, 2, words=40).eval()


def layered() -> Any:
    return tiny("llama", 5, 32, words=40).eval()


def planned() -> dict[str, int | str]:
    with accelerate.init_empty_weights():
        empty = gpt2()
    return baechi.torch.device_map(empty, MEMORY, example_inputs=EXAMPLE)


def test_blocks_stay_whole_and_tied_weights_together() -> None:
    found = planned()
    assert len(set(found.values())) >= 2
    assert {f"transformer.h.{i}" for i in range(4)} <= set(found)
    assert found["transformer.wte"] == found["lm_head"]


def test_accelerate_dispatches_by_it() -> None:
    model = gpt2()
    expected = model(**EXAMPLE).logits
    accelerate.dispatch_model(model, planned(), main_device="sim:0")
    assert len({p.device for p in model.parameters()}) >= 2
    torch.testing.assert_close(model(**EXAMPLE).logits.cpu(), expected)


def test_transformers_loads_by_it(tmp_path: Path) -> None:
    plain = gpt2()
    plain.save_pretrained(tmp_path)
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map=planned())
    assert len({p.device for p in model.parameters()}) >= 2
    torch.testing.assert_close(model(**EXAMPLE).logits.cpu(), plain(**EXAMPLE).logits)


class Inception(nn.Module):
    """Branches that meet in `torch.cat`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.point = nn.ModuleList(nn.Conv2d(c, 32, 1) for c in (32, 96))
        self.wide = nn.ModuleList(nn.Conv2d(c, 32, 3, padding=1) for c in (32, 96))
        self.wider = nn.ModuleList(nn.Conv2d(c, 32, 5, padding=2) for c in (32, 96))
        self.head = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for branches in zip(self.point, self.wide, self.wider, strict=True):
            x = torch.relu(torch.cat([branch(x) for branch in branches], 1))
        return self.head(x.mean((2, 3)))


def test_branches_that_meet_in_a_plain_operation_share_a_device() -> None:
    found = baechi.torch.device_map(
        Inception(), {0: "560KiB", 1: "560KiB"}, example_inputs=torch.ones(1, 3, 12, 12)
    )
    assert set(found.values()) <= {0, 1}
    device_of = {
        name: next(d for prefix, d in found.items() if name.startswith(prefix))
        for name in ("point.0", "wide.0", "wider.0", "point.1", "wide.1", "wider.1")
    }
    for level in "01":
        assert len({device_of[f"{branch}.{level}"] for branch in ("point", "wide", "wider")}) == 1


def test_what_does_not_fit_and_what_cannot_be_called_is_said() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with pytest.raises(baechi.DoesNotFit, match=r"needs 16\.8 KiB"):
        baechi.torch.device_map(model, {0: "4KiB"}, example_inputs=torch.randn(1, 64))
    with pytest.raises(baechi.InputError, match="give example_inputs"):
        baechi.torch.device_map(model, {0: "1GiB"})
    with pytest.raises(baechi.InputError, match=r"max_memory\[0\]: 'lots' is no amount"):
        baechi.torch.device_map(model, {0: "lots"}, example_inputs=torch.randn(1, 64))
    wrong: Any
    for wrong, words in (({"gpu0": "1GiB"}, "'gpu0' is no device"), ("auto", "found str 'auto'")):
        with pytest.raises(baechi.InputError, match=f"max_memory: .*{words}"):
            baechi.torch.device_map(model, wrong, example_inputs=torch.randn(1, 64))


def test_what_has_no_room_goes_to_the_disk_and_runs_from_there(tmp_path: Path) -> None:
    model = layered()
    expected = model(**EXAMPLE).logits
    with pytest.warns(UserWarning, match=r"on the disk are model\.layers\.\d \(41,216 bytes\)"):
        found = baechi.torch.device_map(
            model, {"sim:0": "140KiB", "sim:1": "80KiB"}, example_inputs=EXAMPLE
        )
    assert {"sim:0", "sim:1", "disk"} <= set(found.values())
    accelerate.dispatch_model(model, found, main_device="sim:0", offload_dir=str(tmp_path))
    torch.testing.assert_close(model(**EXAMPLE).logits.cpu(), expected)
    with pytest.raises(baechi.DoesNotFit, match=r"model\.layers\.0"):
        baechi.torch.device_map(layered(), {0: "30KiB"}, example_inputs=EXAMPLE)
    with pytest.raises(baechi.DoesNotFit, match="all devices together"):
        baechi.torch.device_map(layered(), {0: "140KiB", "disk": "9KiB"}, example_inputs=EXAMPLE)


@pytest.mark.filterwarnings("ignore:.*is falling back")
def test_a_model_without_attention_is_mapped() -> None:
    config = transformers.MambaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=4, state_size=4
    )
    with accelerate.init_empty_weights():
        model = transformers.MambaForCausalLM(config).eval()
    found = baechi.torch.device_map(model, {0: "56KiB", 1: "56KiB"})
    assert {0, 1} == set(found.values())
    assert {f"backbone.layers.{i}" for i in range(4)} <= set(found)


def test_without_memory_the_accelerators_are_counted() -> None:
    with sim.configured(devices=2, memory="4MiB"):
        found = baechi.torch.device_map(gpt2(), example_inputs=EXAMPLE)
    assert set(found.values()) <= {0, 1}
