# SPDX-License-Identifier: Apache-2.0
"""Device maps are taken by accelerate and transformers as they are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from torch import nn
from torch_models import CASES, tokens

import baechi

accelerate: Any = pytest.importorskip("accelerate")
transformers: Any = pytest.importorskip("transformers")
sim: Any = pytest.importorskip("baechi.torch.sim")

MEMORY: dict[int | str, int | str] = {"sim:0": "160KiB", "sim:1": "160KiB", "sim:2": "160KiB"}
EXAMPLE = {"input_ids": tokens(2, 8)}


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    gc.collect()
    with sim.configured(devices=4, memory="1GiB"):
        yield


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=32,
        n_layer=4,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config).eval()


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


def test_branches_that_meet_in_a_plain_operation_share_a_device() -> None:
    case = CASES["inception"]
    found = baechi.torch.device_map(
        case.build(), {0: "400KiB", 1: "400KiB"}, example_inputs=case.inputs(1)
    )
    device_of = {
        name: next(d for prefix, d in found.items() if name.startswith(prefix))
        for name in ("point.0", "wide.0", "wider.0", "point.1", "wide.1", "wider.1")
    }
    for level in "01":
        assert len({device_of[f"{branch}.{level}"] for branch in ("point", "wide", "wider")}) == 1


def test_what_does_not_fit_and_what_cannot_be_called_is_said() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with pytest.raises(baechi.DoesNotFit, match=r"17\.5 KiB"):
        baechi.torch.device_map(model, {0: "4KiB"}, example_inputs=torch.randn(1, 64))
    with pytest.raises(baechi.InputError, match="give example_inputs"):
        baechi.torch.device_map(model, {0: "1GiB"})
    with pytest.raises(baechi.InputError, match="'lots' is no amount of memory"):
        baechi.torch.device_map(model, {0: "lots"}, example_inputs=torch.randn(1, 64))
