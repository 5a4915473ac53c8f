# SPDX-License-Identifier: Apache-2.0
"""Second runs beside PyTorch's own ways to hold less: steps and peaks that were measured.

`python -m experiments.checkpoints` writes docs/lab/results/checkpoints.md. Steps run on a simulated
accelerator with a virtual clock: kernels, their order and their memory are real, how long each
takes is 20 us plus what it moves at 10 GB/s.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import baechi.torch
import torch
from baechi.torch.cost.profiler import Costs
from torch import nn

import baechi
from experiments.page import RESULTS, Column, Page, Table, count, mebibytes, milliseconds, times
from experiments.placed_step import Step, trained_step
from experiments.progress import each
from experiments.truth import VIRTUAL

COMMAND = "python -m experiments.checkpoints"
BUDGETS = (1.0, 0.5, 0.2)
BATCH, LENGTH, LAYERS, WIDTH, HEADS = 4, 128, 3, 256, 4


class LossOf(nn.Module):  # type: ignore[misc]
    """Returns the loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Run the model; its loss, or the mean of its output."""
        out = self.model(**inputs)
        loss = getattr(out, "loss", out)
        return loss if loss.ndim == 0 else loss.mean()


def of_transformers(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """GPT-2 or Llama of transformers, small and without dropout."""
    import transformers

    torch.manual_seed(1)
    shape = {"vocab_size": 2000, "use_cache": False, "attn_implementation": "eager"}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    if name == "GPT-2":
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
        config = transformers.GPT2Config(**shape, **ends, **none, **sizes)
        model: nn.Module = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS // 2,
            "max_position_embeddings": LENGTH,
        }
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **ends, **sizes))
    words = torch.randint(3, 2000, (BATCH, LENGTH))
    return model.train(), {"input_ids": words, "labels": words}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "GPT-2": lambda: of_transformers("GPT-2"),
    "Llama": lambda: of_transformers("Llama"),
}


def measured(name: str, prepare: Callable[[nn.Module], Any]) -> Step:
    """Return a step of the model on the device, the second one: the first may compile."""
    model, inputs = MODELS[name]()
    model = model.to("sim:0")
    inputs = {key: value.to("sim:0") for key, value in inputs.items()}
    runs = prepare(model)
    trained_step(runs, inputs, VIRTUAL.clock, 1)
    step = trained_step(runs, inputs, VIRTUAL.clock, 1)
    del model, runs, inputs
    gc.collect()
    return step


def with_checkpoints(model: nn.Module) -> nn.Module:
    """Every layer, as transformers does it."""
    enable: Any = model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return LossOf(model)


def with_budget(budget: float) -> Callable[[nn.Module], Any]:
    """Compiled without code generation, with so much of torch's activation memory budget."""

    def prepare(model: nn.Module) -> Any:
        from torch._functorch import config

        torch._dynamo.reset()
        config.activation_memory_budget = budget
        return torch.compile(LossOf(model), backend="aot_eager")

    return prepare


def costs_of(name: str) -> Costs:
    """What its operators take on such a device."""
    model, inputs = MODELS[name]()
    whole = LossOf(model).to("sim:0")
    inputs = {key: value.to("sim:0") for key, value in inputs.items()}
    captured = baechi.torch.capture(whole, inputs)
    return baechi.torch.measure(whole, inputs, captured, repeats=1, warm_up=0)


def ours(name: str, costs: Costs, capacity: int) -> tuple[Step, int] | None:
    """Return a step with second runs within so much memory, and how many there are."""
    model, inputs = MODELS[name]()
    whole = LossOf(model)
    try:
        placed = baechi.torch.place(
            whole,
            inputs,
            baechi.Cluster("1x1GiB").with_capacities({"gpu:0": capacity}),
            devices=["sim:0"],
            costs=costs,
            optimizer="none",
            gradients="freed",
            tier=1,
        )
    except baechi.DoesNotFit:
        return None
    try:
        trained_step(whole, inputs, VIRTUAL.clock, 1)
        step = trained_step(whole, inputs, VIRTUAL.clock, 1)
        return step, len(placed.plan.recomputed) if placed.plan is not None else 0
    finally:
        placed.restore()
        del whole, model
        gc.collect()


def rows_of(name: str) -> list[dict[str, Any]]:
    """All ways of a model, each with ours at the same peak."""
    ways: dict[str, Callable[[nn.Module], Any]] = {"nothing": LossOf}
    if hasattr(MODELS[name]()[0], "gradient_checkpointing_enable"):
        ways["a checkpoint per layer"] = with_checkpoints
    for budget in BUDGETS:
        ways[f"torch's budget {budget:g}"] = with_budget(budget)
    rows: list[dict[str, Any]] = []
    with VIRTUAL.running(1):
        costs = costs_of(name)
        for way, prepare in each(list(ways.items()), lambda entry: entry[0], of=name):
            step = measured(name, prepare)
            peak, total = step.peaks[0], round(step.total * 1e9)
            found = ours(name, costs, peak)
            rows.append({"model": name, "way": way, "peak": peak, "step": total})
            if found is not None:
                mine, again = found
                rows[-1] |= {
                    "our_peak": mine.peaks[0],
                    "our_step": round(mine.total * 1e9),
                    "again": again,
                    "gain": step.total / mine.total,
                }
    plain = rows[0]
    for row in rows:
        row["longer"] = row["step"] / plain["step"]
        row["our_longer"] = row["our_step"] / plain["step"] if "our_step" in row else None
    return rows


def page(rows: list[dict[str, Any]]) -> Page:
    """The page."""
    columns = [
        Column("model", "model"),
        Column("way", "way"),
        Column("peak", "peak, MiB", mebibytes),
        Column("step", "step", milliseconds),
        Column("longer", "step / nothing's", times),
        Column("our_peak", "ours within that: peak, MiB", mebibytes, "does not fit"),
        Column("our_step", "step", milliseconds),
        Column("our_longer", "step / nothing's", times),
        Column("again", "run again", count),
        Column("gain", "theirs / ours", times),
    ]
    notes = (
        f"Milliseconds. GPT-2 and Llama are those of transformers: {LAYERS} layers of width "
        f"{WIDTH}, {HEADS} heads, {LENGTH} tokens, batch {BATCH}, eager attention, no dropout. "
        "A step is a forward and a backward without an optimizer. *Nothing*: the model's own code. "
        "*A checkpoint per layer*: `gradient_checkpointing_enable`. *torch's budget*: "
        "`torch._functorch.config.activation_memory_budget` under `torch.compile` with "
        "`aot_eager`, whose graphs have other kernels than the model's own code, so compare a "
        "budget with the one of 1. It minds FLOPs, and the clock here bytes, which our plans know. "
        "*Ours*: `baechi.torch.place` in tier 1 on one device that has "
        "what the other way was measured to hold at its peak."
    )
    return Page(
        "checkpoints",
        "Second runs beside PyTorch's own",
        "Steps and peaks are measured on a simulated accelerator (docs/reference/torch_sim.md) "
        "with a virtual clock. Nothing was run on an accelerator.",
        "d",
        [Table("Steps within the same peak", columns, rows, notes)],
    )


def main(names: list[str]) -> None:
    """Write the page of these models, or of all."""
    rows = [row for name in names or MODELS for row in rows_of(name)]
    page(rows).write(RESULTS, " ".join([COMMAND, *names]))


if __name__ == "__main__":
    main(sys.argv[1:])
