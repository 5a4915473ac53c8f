# SPDX-License-Identifier: Apache-2.0
"""The models of models/pytorch: they train, and they are as large as the published ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.cost.graph_generator import graph_of
from baechi.torch.cost.profiler import estimate
from random_placement import placed_at_random
from training_steps import close, train

from models.pytorch import MODELS, Entry, loss_of, mixtral


def built(entry: Entry, seed: int = 7) -> Any:
    torch.manual_seed(seed)
    return entry.build(entry.small())


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls(name: str) -> None:
    entry = MODELS[name]
    model, batch = built(entry), entry.inputs(entry.small(), 4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_without_labels_a_model_answers(name: str) -> None:
    entry = MODELS[name]
    batch = entry.inputs(entry.small(), 2)
    labels = batch.pop("labels")
    with torch.no_grad():
        answer = built(entry).eval()(**batch)
    if isinstance(answer, list):
        answer = torch.stack(answer, 1)
    assert answer.isfinite().all()
    assert answer.shape[0] == len(labels)
    assert (answer != answer[:1]).any(), "the answer does not depend on the input"


# The published counts; those of the translation models follow from their vocabularies.
PARAMETERS = {
    "inception-v3": 23_834_568,
    "gnmt": 70_788_912,
    "transformer": 90_218_496,  # 59,498,496 with one embedding
    "llama": 8_030_261_248,
    "mixtral": 46_702_792_704,
    "vit": 86_567_656,
    "two-tower": 151_277_313,
    "unet": 31_037_698,
}


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_at_full_size_a_model_is_the_published_one(name: str) -> None:
    entry = MODELS[name]
    model, _ = entry.on_meta(entry.config(), 1)
    assert parameters(model) == PARAMETERS[name]


def test_inception_with_its_auxiliary_classifier_is_the_published_one() -> None:
    entry = MODELS["inception-v3"]
    model, batch = entry.on_meta(entry.config(auxiliary=True), 2)
    assert parameters(model) == 27_161_264
    captured = baechi.torch.capture(model, batch, loss=loss_of)
    assert any(op.key.startswith("auxiliary") for op in captured.ops)


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_at_full_size_a_step_is_recorded_without_memory(name: str) -> None:
    entry = MODELS[name]
    config = entry.config(**({"length": 10} if name == "gnmt" else {}))
    model, batch = entry.on_meta(config, entry.batches[0])
    captured = baechi.torch.capture(model, batch, loss=loss_of)
    costs = estimate(captured, {"gpu": "rtx2080"})
    graph = graph_of(captured, costs, optimizer=entry.optimizer).graph
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    states = {"adam": 2, "rmsprop": 1}[entry.optimizer]
    permanent = sum(graph[i].permanent for i in range(len(graph)))
    assert permanent >= weights * (1 + states)
    assert permanent < 1.05 * weights * (1 + states) + (1 << 20)  # rounded up; and the buffers


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_placed_a_model_trains_as_before(name: str) -> None:
    entry = MODELS[name]
    batches = [entry.inputs(entry.small(), 3)]
    expected = train(built(entry), batches)
    model = built(entry)
    placed = placed_at_random(model, batches[0], seed=4, loss=loss_of, tier=1)
    close(expected, train(model, batches))
    assert placed.transfers > 0
    assert not placed.unplanned


def test_a_mixture_with_room_for_all_words_is_the_plain_sum() -> None:
    """What the experts take and give back is what the definition says, word by word."""
    config = dataclasses.replace(mixtral.Config.small(), slack=10.0)
    torch.manual_seed(3)
    layer = mixtral.Experts(config)
    x = torch.randn(2, 5, config.width)
    words = x.flatten(0, 1)
    best, chosen = layer.router(words).topk(config.visits, 1)
    weights = torch.softmax(best, 1)
    expected = torch.zeros_like(words)
    for word in range(len(words)):
        for weight, expert in zip(weights[word], chosen[word].tolist(), strict=True):
            expected[word] += weight * layer.experts[expert](words[word])
    torch.testing.assert_close(layer(x).flatten(0, 1), expected)
