#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA on a frozen diffusion transformer that does not fit on one card trains on two unequal ones.

      24 MiB  [two streams 0]--..--[two streams 1]      by hand: blocks of two streams on the first
                                         |              card, those of one stream on the second
      12 MiB  [out]--[one stream 3]--..--[one stream 0]

      CPU     [text encoder], frozen: prompts become what the transformer reads beside the picture

Needs `baechi[torch]`, diffusers, peft, transformers and a C++ compiler; no accelerator. Sizes are
those of cards of 24 and 12 GiB divided by 1024. docs/how_to/recipes/flux_lora.md shows what it
prints.
"""

from __future__ import annotations

import functools
from typing import Any

import diffusers
import peft
import torch
import transformers
from torch import nn
from two_cards import WARM_UP, AfterStep, Recipe, compare, options_of

PICTURES, PATCHES, WORDS = 2, 64, 16
WIDTH = 64  # of the text encoder


def build() -> nn.Module:
    """Return a small FLUX by its configuration, with adapters; nothing is downloaded."""
    model = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=48,
        num_attention_heads=4,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(16, 16, 16),
    )
    model.requires_grad_(False)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    model.add_adapter(peft.LoraConfig(r=4, target_modules=targets))
    return model


@functools.cache
def text_encoder() -> Any:
    """Return a small T5, which stays on the CPU and is not trained."""
    torch.manual_seed(1)
    config = transformers.T5Config(
        vocab_size=100, d_model=WIDTH, d_kv=16, d_ff=128, num_layers=2, num_heads=4
    )
    return transformers.T5EncoderModel(config).eval().requires_grad_(False)


def batch(seed: int) -> dict[str, torch.Tensor]:
    """Return noisy pictures, and their prompts as the text encoder has them."""
    draw = torch.Generator().manual_seed(seed)
    prompts = torch.randint(100, (PICTURES, WORDS), generator=draw)
    text = text_encoder()(input_ids=prompts).last_hidden_state
    places = torch.zeros(PATCHES, 3)
    places[:, 1], places[:, 2] = torch.arange(PATCHES) // 8, torch.arange(PATCHES) % 8
    return {
        "hidden_states": torch.randn(PICTURES, PATCHES, 16, generator=draw),
        "encoder_hidden_states": text,
        "pooled_projections": text.mean(1),
        "timestep": torch.rand(PICTURES, generator=draw),
        "img_ids": places,
        "txt_ids": torch.zeros(WORDS, 3),
    }


def loss_of(output: Any) -> torch.Tensor:
    """Return how far the velocity is from that of noise."""
    return output[0].square().mean()


def train(_: Recipe, model: nn.Module, after_step: AfterStep) -> None:
    """Train the adapters, which are all that the optimizer knows."""
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(adapters, lr=1e-4)
    for step in range(WARM_UP + 1):
        optimizer.zero_grad()
        loss_of(model(**batch(step))).backward()
        optimizer.step()
        after_step()


def main() -> None:
    """Compare the three ways."""
    options = options_of(__doc__, ("24MiB", "12MiB"))
    recipe = Recipe(
        build=build,
        inputs=batch(0),
        loss=loss_of,
        memory=options.memory,
        second_card_from="single_transformer_blocks.0",
        train=train,
    )
    compare(recipe, options.gpus)


if __name__ == "__main__":
    main()
