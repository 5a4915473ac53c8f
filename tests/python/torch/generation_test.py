# SPDX-License-Identifier: Apache-2.0
"""Words that a placed language model generates: its caches grow from call to call."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from places import machine, placed_at_random
from step_models import language_model

pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore")
def test_a_placed_model_generates_the_same_words() -> None:
    torch.manual_seed(1)
    model, inputs = language_model("llama", 2, 16, 2)
    words = inputs["input_ids"][:, :7]
    how: dict[str, Any] = {"do_sample": False, "max_new_tokens": 3, "use_cache": True}
    how |= {"attention_mask": torch.ones_like(words), "pad_token_id": 0}
    expected = copy.deepcopy(model).eval().generate(words, **how)
    with machine(seed=2):
        placed = placed_at_random(model, inputs, 2)
        model.eval()
        assert torch.equal(model.generate(words, **how).cpu(), expected)
        placed.restore()
