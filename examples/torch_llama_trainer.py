#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama that does not fit on one card trains with transformers' Trainer on two unequal ones.

      24 MiB  [embedding]--[0]--[1]--[2]           by hand: half of the layers each; the second
                                     |           card has no room for the half with the head
      12 MiB       [head]--[5]--[4]--[3]

Needs `baechi[torch]`, transformers, accelerate and a C++ compiler; no accelerator. Sizes are those
of cards of 24 and 12 GiB divided by 1024. docs/how_to/recipes/trainer.md shows what it prints.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
from torch import nn
from two_cards import WARM_UP, AfterStep, Recipe, compare, options_of

SAMPLES, WORDS = 4, 32


def build() -> nn.Module:
    """Return a small Llama, by its configuration: nothing is downloaded."""
    config = transformers.LlamaConfig(
        vocab_size=800,
        hidden_size=144,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=4,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


class Trainer(transformers.Trainer):
    """Takes the loss to the device that it knows: it has never heard of simulated ones."""

    def compute_loss(self, *arguments: Any, **more: Any) -> Any:
        """Return the loss where the Trainer adds losses up."""
        return super().compute_loss(*arguments, **more).to(self.args.device)


class Watch(transformers.TrainerCallback):
    """Tells when a step is over."""

    def __init__(self, after_step: AfterStep) -> None:
        self.after_step = after_step

    def on_step_end(self, *arguments: Any, **more: Any) -> None:  # noqa: ARG002
        """Take the time."""
        self.after_step()


def train(recipe: Recipe, model: nn.Module, after_step: AfterStep) -> None:
    """Train with the Trainer: it knows nothing of the cards."""
    words = recipe.inputs["input_ids"]
    # Where a model has this, the Trainer leaves its weights where they are.
    model.hf_device_map = {name: str(each.device) for name, each in model.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=SAMPLES,
            max_steps=WARM_UP + 1,
            use_cpu=True,  # batches come from there: the placed model sends them where they go
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=[{"input_ids": row, "labels": row} for row in words],
            callbacks=[Watch(after_step)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def main() -> None:
    """Compare the three ways."""
    options = options_of(__doc__, ("24MiB", "12MiB"))
    transformers.logging.set_verbosity_error()
    words = torch.randint(800, (SAMPLES, WORDS), generator=torch.Generator().manual_seed(0))
    recipe = Recipe(
        build=build,
        # What the Trainer calls the model with: also how many labels there are in the batch.
        inputs={
            "input_ids": words,
            "labels": words,
            "num_items_in_batch": torch.tensor(words.numel()),
        },
        loss=lambda output: output.loss,
        memory=options.memory,
        second_card_from="model.layers.3",
        train=train,
    )
    compare(recipe, options.gpus)


if __name__ == "__main__":
    main()
