# SPDX-License-Identifier: Apache-2.0
"""What transformers do with a placed model: generate with caches, train with its Trainer."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from random_placement import placed_at_random

transformers: Any = pytest.importorskip("transformers")
sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = [
    pytest.mark.usefixtures("sim"),
    pytest.mark.filterwarnings("ignore:.*not in the recorded step"),  # what fills the caches
]

WORDS = torch.randint(2, 50, (2, 7), generator=torch.Generator().manual_seed(3))
CACHES: dict[str, Any] = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3},
    "a cache of fixed size": {"do_sample": False, "cache_implementation": "static"},
    "no cache": {"do_sample": False, "use_cache": False},
}


@functools.cache
def built(name: str) -> Any:
    torch.manual_seed(1)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if name == "gpt2":
        sizes = {"n_layer": 3, "n_head": 2, "n_embd": 16, "n_positions": 64}
        config = transformers.GPT2Config(vocab_size=50, **sizes, **ends)
        return transformers.GPT2LMHeadModel(config)
    if name == "llama":
        config = transformers.LlamaConfig(
            vocab_size=50,
            num_hidden_layers=3,
            hidden_size=16,
            intermediate_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            **ends,
        )
        return transformers.LlamaForCausalLM(config)
    config = transformers.T5Config(
        vocab_size=50,
        num_layers=2,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_heads=2,
        decoder_start_token_id=0,
        **ends,
    )
    return transformers.T5ForConditionalGeneration(config)


@functools.cache
def words_of(name: str, what: str) -> torch.Tensor:
    """Return what a model generates on one device."""
    mask = torch.ones_like(WORDS)
    model = built(name).eval()
    words: torch.Tensor = model.generate(
        WORDS, attention_mask=mask, max_new_tokens=5, **CACHES[what]
    )
    return words


def placed(model: Any, devices: list[str], **options: Any) -> Any:
    inputs = {"input_ids": WORDS, "labels": WORDS}
    return placed_at_random(model, inputs, devices, seed=2, **options)


@pytest.mark.repeats
@pytest.mark.parametrize("devices", [["sim:0", "sim:1", "sim:2"], ["sim:0"] * 3])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_placed_model_generates_the_same_words(name: str, devices: list[str]) -> None:
    model = copy.deepcopy(built(name)).train()
    with sim.configured(devices=3, poison=True, longest_delay="200us", seed=1):
        place = placed(model, devices)
        model.eval()
        for what, options in CACHES.items():
            for home in ("cpu", "sim:0"):
                words = WORDS.to(home)
                mask = torch.ones_like(words)
                found = model.generate(words, attention_mask=mask, max_new_tokens=5, **options)
                assert found.device == words.device
                assert torch.equal(found.cpu(), words_of(name, what)), (what, home)
        place.restore()


def test_words_after_a_step_of_training() -> None:
    plain, model = copy.deepcopy(built("llama")), copy.deepcopy(built("llama"))
    placed(model, ["sim:0", "sim:1", "sim:2"])
    words = []
    for each in (plain, model):
        optimizer = torch.optim.SGD(each.parameters(), 0.5)
        for _ in range(2):
            optimizer.zero_grad()
            each.train()
            each(input_ids=WORDS, labels=WORDS).loss.backward()
            optimizer.step()
            each.eval()
            mask = torch.ones_like(WORDS)
            options = {"do_sample": False, "max_new_tokens": 5}
            words.append(each.generate(WORDS, attention_mask=mask, **options))
    assert torch.equal(words[0], words[2])
    assert torch.equal(words[1], words[3])


@pytest.mark.filterwarnings("ignore:GPT2LMHeadModel is placed. its weights stay")
def test_the_trainer(tmp_path: Path) -> None:
    data = [{"input_ids": row, "labels": row} for row in WORDS]
    losses, weights = [], []
    for place in (False, True):
        model = copy.deepcopy(built("gpt2"))
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.config.attn_pdrop = 0.0
        if place:
            placed(model, ["sim:0", "sim:1", "sim:2"])
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=1,
            num_train_epochs=2,
            gradient_accumulation_steps=2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        losses.append(trainer.evaluate()["eval_loss"])
        weights.append(model.state_dict())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name].cpu(), tensor, rtol=1e-3, atol=1e-4)
