# SPDX-License-Identifier: Apache-2.0
"""Models that people train on one small card beside a host, with their real classes, made small."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from torch import nn

# PyTorch 2.14.0 says once what it leaves out of a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def assert_alike(model: nn.Module, alone: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-12, msg=name)


@pytest.mark.repeats
def test_all_of_a_llama_is_trained_in_a_sixth_of_its_memory(sim: ModuleType) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8}
    config = transformers.LlamaConfig(vocab_size=64, use_cache=False, **sizes, **heads)
    model = transformers.LlamaForCausalLM(config).double()
    alone, tokens = copy.deepcopy(model), torch.randint(2, 64, (4, 8))
    batch = {"input_ids": tokens, "labels": tokens}
    whole = 4 * sum(weight.nbytes for weight in model.parameters())  # gradients, AdamW's state
    memory = whole * 24 // 149  # of 8B parameters in bfloat16 on 24 GiB
    sim.configure(devices=1, memory=f"{memory * 11 // 10}B", poison=True)
    how: dict[str, Any] = {"micro_batches": 2, "optimizer": "adamw", "budget": "20ms"}
    placed = baechi.torch.place(model, batch, f"1x{memory}B+1xhost:64MiB", bounds=False, **how)
    optimizer, other = (torch.optim.AdamW(trained(m), lr=1e-3) for m in (model, alone))
    for _ in range(3):
        optimizer.zero_grad()
        other.zero_grad()
        loss, expected = placed.step(batch), alone(**batch).loss
        expected.backward()
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)  # is of single precision
        optimizer.step()
        other.step()
    assert_alike(model, alone)
    assert not placed.left_out


@pytest.mark.repeats
def test_a_lora_of_a_flux_is_trained_in_less_than_its_weights(sim: ModuleType) -> None:
    diffusers, peft = pytest.importorskip("diffusers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"in_channels": 8, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16}
    sizes |= {"num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 16}
    model = diffusers.FluxTransformer2DModel(axes_dims_rope=(4, 6, 6), **sizes)
    model.requires_grad_(requires_grad=False)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    model = model.double()
    weights = sum(weight.nbytes for weight in model.parameters())
    shapes = {"hidden_states": (1, 16, 8), "encoder_hidden_states": (1, 4, 32), "timestep": (1,)}
    shapes |= {"pooled_projections": (1, 16), "img_ids": (16, 3), "txt_ids": (4, 3)}
    batch: dict[str, Any] = {name: torch.rand(shape).double() for name, shape in shapes.items()}
    batch["return_dict"] = False
    alone, memory = copy.deepcopy(model), weights * 12 // 23  # 12B parameters in bfloat16 on 12 GiB
    sim.configure(devices=1, memory=f"{memory * 11 // 10}B", poison=True)
    how: dict[str, Any] = {"loss": of_first, "optimizer": "adamw", "budget": "20ms"}
    placed = baechi.torch.place(model, batch, f"1x{memory}B+1xhost:64MiB", bounds=False, **how)
    optimizer, other = (torch.optim.AdamW(trained(m), lr=1e-3) for m in (model, alone))
    for _ in range(3):
        optimizer.zero_grad()
        other.zero_grad()
        of_first(model(**batch)).backward()
        of_first(alone(**batch)).backward()
        optimizer.step()
        other.step()
    assert_alike(model, alone)
    assert not placed.left_out


def of_first(outputs: tuple[torch.Tensor]) -> torch.Tensor:
    return outputs[0].square().mean()
