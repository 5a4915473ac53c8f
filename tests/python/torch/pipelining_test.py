# SPDX-License-Identifier: Apache-2.0
"""Models of transformers train in the stages of a plan as they do in one process."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("transformers")

import pipelining_ranks as ranks
import torch
from baechi.torch import module_fqns_per_model_part, split_spec
from torch import nn

import baechi


def layer_wise(model: Any, layers: str, cut: int) -> baechi.Plan:
    """Plan the model by hand: the layers below `cut`, and what is before them, on one device."""
    ids, _ = ranks.batch()
    recorded = baechi.torch.plan(
        model, ids, "2x1GiB", method="single", devices=["cpu"] * 2, bounds=False, verbose=False
    )
    expert = {}
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    last = ("model.norm", "transformer.ln_f", *(() if tied else ("lm_head",)))
    for name in recorded.device_of:
        module = name.removeprefix("update:")
        layer = re.match(rf"{layers}\.(\d+)\.", module)
        behind = module.startswith(last) if layer is None else int(layer[1]) >= cut
        expert[name] = f"gpu:{int(behind)}"
    return baechi.place_graph(
        recorded.graph, "2xgpu:1GiB", method="expert", expert=expert, optimize="none", bounds=False
    )


LAYERS = {"llama": "model.layers", "gpt2": "transformer.h"}


@pytest.fixture(scope="module")
def plans() -> dict[str, baechi.Plan]:
    return {name: layer_wise(model, LAYERS[name], 2) for name, model in ranks.models().items()}


STAGES = {"1f1b": 2, "interleaved": 4, "zb-h1": 2}


@pytest.fixture(scope="module")
def found(
    plans: dict[str, baechi.Plan], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Return losses and gradients that two processes found, by model and by exported plan."""
    folder = tmp_path_factory.mktemp("pipelining")
    specs = {name: split_spec(plan) for name, plan in plans.items()}
    assert {name: list(spec) for name, spec in specs.items()} == {
        "llama": ["model.layers.2"],
        "gpt2": ["transformer.h.2"],
    }
    ids, labels = ranks.batch()
    loss: Any = ranks.loss_of
    for method, name in ranks.EXPORTED.items():
        plan = baechi.torch.plan(
            ranks.exported_model(name),
            ids,
            "2x1GiB",
            loss=loss,
            targets=labels,
            micro_batches=4,
            method=method,
            devices=["cpu"] * 2,
            granularity="module",
            bounds=False,
            verbose=False,
        )
        (folder / f"{method}.json").write_text(baechi.export_plan(plan, "torch-pipelining"))
    torch.multiprocessing.spawn(ranks.run_rank, (folder, specs), nprocs=2)
    for method, stages in STAGES.items():
        exported = json.loads((folder / f"{method}.json").read_text())
        assert len(exported["stages"]) == stages
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(
    ("name", "micro_batches"), [("llama", 2), ("gpt2", 2), *((m, 4) for m in STAGES)]
)
def test_losses_and_gradients_of_two_processes_are_those_of_one(
    found: list[dict[str, Any]], name: str, micro_batches: int
) -> None:
    """In the stages of a plan, and in the order of exported ones, by PyTorch's own schedules."""
    model: Any = ranks.exported_model(ranks.EXPORTED.get(name, name))
    losses = [
        ranks.loss_of(model(ids), labels)
        for ids, labels in zip(*(e.chunk(micro_batches) for e in ranks.batch()), strict=True)
    ]
    torch.stack(losses).mean().backward()
    told = next(each[name][0] for each in found if each[name][0] is not None)
    assert torch.allclose(told, torch.stack(losses), rtol=1e-6)
    weights = dict(model.named_parameters())
    by_rank: list[dict[str, torch.Tensor]] = [each[name][1] for each in found]
    assert by_rank[0].keys() | by_rank[1].keys() == weights.keys()
    assert not by_rank[0].keys() & by_rank[1].keys()
    if name in LAYERS:
        assert f"{LAYERS[name]}.1." in " ".join(by_rank[0])
        assert f"{LAYERS[name]}.2." in " ".join(by_rank[1])
    for key, gradient in (by_rank[0] | by_rank[1]).items():
        assert torch.allclose(gradient, weights[key].grad, rtol=1e-4, atol=1e-7), key


def test_every_module_of_a_model_is_in_a_part(plans: dict[str, baechi.Plan]) -> None:
    models = ranks.models()
    parts = module_fqns_per_model_part(plans["llama"], models["llama"])
    assert parts == [
        ["model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1"],
        ["model.layers.2", "model.layers.3", "model.norm", "lm_head", "model.rotary_emb"],
    ]
    model = models["gpt2"]
    parts = module_fqns_per_model_part(plans["gpt2"], model)
    held = [
        {f"{name}.{key}" for name in part for key in model.get_submodule(name).state_dict()}
        for part in parts
    ]
    assert held[0] | held[1] == model.state_dict().keys()
    assert not held[0] & held[1]
    assert all("transformer.drop" in part for part in parts)  # has no weights
    with pytest.raises(baechi.InputError, match=r"a module 'transformer\.wte', and the model has"):
        module_fqns_per_model_part(plans["gpt2"], models["llama"])


def test_tied_weights_in_two_stages_are_refused() -> None:
    model: Any = ranks.models()["gpt2"]
    model.lm_head.weight = model.transformer.wte.weight
    plan = layer_wise(model, LAYERS["gpt2"], 2)
    with pytest.raises(
        baechi.InputError, match="'lm_head:mm:0', which runs after the layers, is on"
    ):
        module_fqns_per_model_part(plan, model)
    one = baechi.torch.plan(
        model,
        ranks.batch()[0],
        "1x1GiB",
        method="single",
        devices=["cpu"],
        bounds=False,
        verbose=False,
    )
    (part,) = module_fqns_per_model_part(one, model)
    assert {"transformer.wte", "transformer.drop", "lm_head"} <= set(part)
    model.extra = nn.Linear(2, 2)
    with pytest.raises(baechi.InputError, match="'extra' has 2 parameters that no operator"):
        module_fqns_per_model_part(one, model)
