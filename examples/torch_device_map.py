#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A language model over two unequal cards and the CPU, by accelerate's map and by a planned one.

      2 GiB [layers]     1 GiB [layers]     CPU [what has no room]

The prompt (512 words at once) and the answer (one word after the other) are priced apart: for the
first, arithmetic counts, for the second, who reads how many weights. The first row does without the
second card. Nothing is computed for that, and no weights are there. Then a small model is loaded by
such a map, and writes what it should.

Needs `baechi[torch]`, transformers, accelerate and a C++ compiler; no accelerator.
docs/how_to/recipes/device_map.md shows what it prints.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import accelerate
import baechi.torch
import baechi.torch.sim as sim
import torch
import transformers

MEMORY = {0: "2GiB", 1: "1GiB", "cpu": "30GiB"}
ROOM = "1xgpu:1TiB+1xgpu:1TiB+1xcpu:1TiB"  # a map says what is where: only the time is asked
DEVICES = {0: "gpu:0", 1: "gpu:1", "cpu": "cpu:0"}
WHOLE = ["LlamaDecoderLayer"]
STEPS = {"prompt": 512, "answer": 1}  # words that a call takes


def build(width: int, inner: int, layers: int, heads: int) -> Any:
    """Return a Llama of so many layers."""
    config = transformers.LlamaConfig(
        vocab_size=8 * width,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def words(count: int) -> dict[str, torch.Tensor]:
    """Return what a call with so many words takes."""
    return {"input_ids": torch.zeros(1, count, dtype=torch.long)}


def priced(model: Any, found: dict[str, Any], count: int) -> float:
    """Return the predicted milliseconds of a call with a device map."""

    def device_of(operator: str) -> str:
        module = operator.rsplit(":", 2)[0]  # of `module:call:number`; weights have their names
        inside = [p for p in found if p == "" or f"{module}.".startswith(f"{p}.")]
        return DEVICES[found[max(inside, key=len)] if inside else next(iter(found.values()))]

    # Twice: the first plan tells the names of the operators.
    arguments = (model, words(count), ROOM)
    with torch.no_grad():
        names = baechi.torch.plan(*arguments, method="m-etf").device_of
        expert = {name: device_of(name) for name in names}
        plan = baechi.torch.plan(*arguments, method="expert", expert=expert)
    return float(plan.makespan_ns) / 1e6


def compare() -> None:
    """Print what a prompt and a word of the answer take by each map."""
    with accelerate.init_empty_weights():
        model = build(4096, 11008, 8, 32).half()
    one = {0: MEMORY[0], "cpu": MEMORY["cpu"]}
    maps = {
        "one card, planned": baechi.torch.device_map(
            model, one, example_inputs=words(STEPS["answer"])
        ),
        "accelerate": accelerate.infer_auto_device_map(
            model, MEMORY, no_split_module_classes=WHOLE
        ),
        "planned for the prompt": baechi.torch.device_map(
            model, MEMORY, example_inputs=words(STEPS["prompt"])
        ),
        "planned for the answer": baechi.torch.device_map(
            model, MEMORY, example_inputs=words(STEPS["answer"])
        ),
    }
    print("map                     prompt  a word  modules on each device")
    for name, found in maps.items():
        taken = [priced(model, found, count) for count in STEPS.values()]
        on = Counter(str(device) for device in found.values())
        where = ", ".join(f"{device}: {on[device]}" for device in sorted(on))
        print(f"{name:<22}  {taken[0]:6.1f}  {taken[1]:6.2f}  {where}")


def load() -> None:
    """Load a small model by a planned map onto simulated cards; it writes what it should."""
    sim.configure(devices=2, memory=["4MiB", "2MiB"])
    torch.manual_seed(0)
    plain = build(64, 172, 6, 4)
    limits = {"sim:0": "1MiB", "sim:1": "1MiB"}
    with tempfile.TemporaryDirectory() as folder:
        plain.save_pretrained(folder)
        found = baechi.torch.device_map(plain, limits, example_inputs=words(1))
        loaded = transformers.LlamaForCausalLM.from_pretrained(folder, device_map=found)
    written = [
        each.generate(**words(4), max_new_tokens=5, do_sample=False) for each in (plain, loaded)
    ]
    print(f"loaded by a map over {', '.join(sorted({str(d) for d in found.values()}))}: ", end="")
    print("the same words" if torch.equal(*written) else "OTHER WORDS")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    compare()
    load()
