#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""QLoRA: a Llama in four bits (NF4) that does not fit on one card trains on two unequal ones.

      8 MiB  [embedding]--[layer 0]--[layer 1]--..          by hand: half of the layers on each
                                                |
      6 MiB                                     ..--[layer 2]--[layer 3]--[head]

Its layers are checkpointed, as peft's `prepare_model_for_kbit_training` has them. Needs
`baechi[torch]`, bitsandbytes, peft, transformers and a C++ compiler; no accelerator. Sizes are
those of cards of 8 and 6 GiB divided by 1024. docs/how_to/recipes/qlora.md shows what it prints.
"""

from __future__ import annotations

from typing import Any

import bitsandbytes
import peft
import torch
import transformers
from torch import nn
from two_cards import Recipe, compare, options_of

ROWS, WORDS, LAYERS = 4, 64, 4


def in_four_bits(model: nn.Module) -> None:
    """Quantise the linear layers of a model, as `load_in_4bit` of transformers does."""
    for name, layer in [*model.named_modules()]:
        if type(layer) is not nn.Linear:
            continue
        made = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=False,
            compute_dtype=torch.float32,
            quant_type="nf4",
        )
        made.load_state_dict(layer.state_dict())
        model.set_submodule(name, made.to("cpu"))  # which quantises it


def build() -> nn.Module:
    """Return a small Llama by its configuration, with adapters; nothing is downloaded."""
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).requires_grad_(False)
    in_four_bits(model.model)
    model.activation_checkpointing_enable()
    model.enable_input_require_grads()
    model.train()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=targets))


def batch() -> dict[str, torch.Tensor]:
    """Return tokens, each of which is to follow from those before."""
    tokens = torch.randint(512, (ROWS, WORDS), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


def loss_of(output: Any) -> torch.Tensor:
    """Return the model's own loss."""
    return output.loss


def main() -> None:
    """Compare the three ways."""
    options = options_of(__doc__, ("8MiB", "6MiB"))
    if not options.gpus:
        import baechi.torch.sim as sim

        sim.use_cpu_kernels("bitsandbytes")  # as a real card runs its own
    recipe = Recipe(
        build=build,
        inputs=batch(),
        loss=loss_of,
        memory=options.memory,
        second_card_from=f"base_model.model.model.layers.{LAYERS // 2}",
    )
    compare(recipe, options.gpus)


if __name__ == "__main__":
    main()
