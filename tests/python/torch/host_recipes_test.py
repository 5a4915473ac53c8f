# SPDX-License-Identifier: Apache-2.0
"""Models beside a host: those that people train on one small card, and one that changes itself.

The former have their real classes, made small.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from places import assert_alike
from step_models import module
from torch import nn

# PyTorch 2.14.0 says once what it leaves out of a graph.
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")


def trains_alike(
    model: nn.Module,
    alone: nn.Module,
    placed_loss: Callable[[], torch.Tensor],
    loss: Callable[[], torch.Tensor],
) -> None:
    """Train both for three steps; a loss without a gradient has run its backward."""
    pairs = []
    for one, run in ((model, placed_loss), (alone, loss)):
        trained = [weight for weight in one.parameters() if weight.requires_grad]
        pairs.append((torch.optim.AdamW(trained, lr=1e-3), run))
    for _ in range(3):
        found = []
        for optimizer, run in pairs:
            optimizer.zero_grad()
            found.append(run())
            if found[-1].requires_grad:
                found[-1].backward()
            optimizer.step()
        # That of a step is of single precision.
        assert found[0].item() == pytest.approx(found[1].item(), abs=1e-6)
    assert_alike(model, alone)


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
    trains_alike(model, alone, lambda: placed.step(batch), lambda: alone(**batch).loss)
    assert not placed.left_out


def of_first(outputs: tuple[torch.Tensor]) -> torch.Tensor:
    return outputs[0].square().mean()


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
    trains_alike(model, alone, lambda: of_first(model(**batch)), lambda: of_first(alone(**batch)))
    assert not placed.left_out


@module(
    lambda change: {
        "change": change,
        "calls": 0,
        "a": nn.Linear(8, 8),
        "b": nn.Linear(8, 8),
        "stays": nn.Buffer(torch.ones(8)),
    }
)
def Changing(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A weight is changed by its own forward, but not yet in the call that is traced."""
    self.calls += 1
    weight, other = self.a.weight, self.b.weight
    if self.calls > 2:
        with torch.no_grad():
            if self.change == "data":
                weight.data.mul_(0.9)
            elif self.change == "itself":
                weight.mul_(0.9).lerp_(other, 0.1)
            elif self.change == "views":
                weight[0].mul_(0.5)
                other.view(-1)[3:5].zero_()
            elif self.change == "items":
                weight[1] = 0.25
                other[torch.tensor([0, 1], device=x.device)] *= 0.5
            elif self.change == "lists":
                torch._foreach_mul_([weight, other, self.stays], 0.95)
            else:
                nn.init.constant_(self.a.bias, 0.3)
                torch.add(weight, other, out=weight)
    self.stays.mul_(1.5)
    found: torch.Tensor = self.b(self.a(x).tanh() * self.stays) @ (weight.t() @ other)
    return found.sin().sum()


@pytest.mark.repeats
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("change", ["data", "itself", "views", "items", "lists", "functions"])
def test_a_weight_that_is_away_keeps_what_a_forward_does_to_it(
    sim: ModuleType, change: str, eager: bool
) -> None:
    torch.manual_seed(3)
    model, batches = Changing(change).double(), torch.randn(4, 4, 8, dtype=torch.double)
    alone = copy.deepcopy(model)
    with sim.configured(devices=1, memory="1GiB", asynchronous=False):
        torch._dynamo.reset()
        placed = baechi.torch.place(
            model, batches[0], "1x1GiB+1xhost:1GiB", residency="all", budget="50ms", bounds=False
        )
        model.calls = 0
        assert {w.device.type for w in model.parameters()} == {"cpu"}
        stance = "force_eager" if eager else "default"
        for one, device in ((model, "sim:0"), (alone, "cpu")):
            optimizer = torch.optim.AdamW(one.parameters(), 1e-2)
            for x in batches:
                optimizer.zero_grad()
                with torch.compiler.set_stance(stance):
                    one(x.to(device)).backward()
                optimizer.step()
        placed.restore()
    assert_alike(model, alone)
