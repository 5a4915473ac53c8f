# SPDX-License-Identifier: Apache-2.0
"""Steps of micro-batches on simulated devices: what the plan says and what the virtual clock does.

python bench/torch_steps.py [--host 10us] [llama|gpt2] prints a table; measured costs, two and four
devices. With --host asking for a call or a copy takes so long on the clock, as plans measure it.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import baechi.torch
import baechi.torch.sim as sim
import torch
import transformers

import baechi

LAYERS, WIDTH, SAMPLES, TOKENS = 8, 64, 16, 16
CLOCK = {"clock": "virtual", "operator_time": "2us", "memory_bandwidth": "1GB/s"}


def built(name: str) -> torch.nn.Module:
    """Return a small model of transformers with random weights."""
    torch.manual_seed(0)
    if name == "gpt2":
        sizes = {"n_positions": TOKENS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4}
        off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config: Any = transformers.GPT2Config(vocab_size=64, **sizes, **off)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=TOKENS,
    )
    return transformers.LlamaForCausalLM(config)


def row(name: str, devices: int, micro_batches: int, host: str | None = None) -> str:
    """Return a line of the table: the second of two steps."""
    names = [f"sim:{i}" for i in range(devices)]
    how: dict[str, Any] = {"link": sim.Link("5us", "10GB/s"), "asynchronous": False, **CLOCK}
    if host is not None:
        how |= {"host_call": host, "host_send": host}
    with sim.configured(devices=devices, memory="1GiB", **how):
        model = built(name)
        tokens = torch.randint(1, 64, (SAMPLES, TOKENS))
        batch = {"input_ids": tokens, "labels": tokens}
        cluster = baechi.Cluster(f"{devices}x1GiB", link="5us,10GB/s")
        placed = baechi.torch.place(
            model,
            batch,
            cluster,
            micro_batches=micro_batches,
            costs="measure",
            devices=names,
            optimizer="sgd",
        )
        for _ in range(2):
            torch.accelerator.synchronize()
            sim.reset_virtual_clock()
            for i in range(devices):
                sim.reset_peak_memory_stats(i)
            model.zero_grad()
            placed.step(batch)
            torch.accelerator.synchronize()
        assert placed.plan is not None
        measured, planned = sim.virtual_time(), placed.plan.makespan_ns / 1e9
        peaks = [sim.max_memory_allocated(i) for i in range(devices)]
        foreseen = zip(peaks, placed.peaks.values(), strict=True)
        ratios = [f"{m / p:.2f}" if p else "-" for m, p in foreseen]  # one may have nothing to do
        placed.restore()
    gc.collect()
    return (
        f"| {name} | {devices} | {micro_batches} | {1e3 * planned:.1f} | {1e3 * measured:.1f} | "
        f"{measured / planned:.3f} | {', '.join(ratios)} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["llama", "gpt2"])
    parser.add_argument("--host", metavar="TIME", help="of asking for one thing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | devices | M | planned, ms | measured, ms | ratio | peaks over the plan's |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for name in chosen.models:
        for devices in (2, 4):
            for micro_batches in (1, 4, 8):
                print(row(name, devices, micro_batches, chosen.host), flush=True)


if __name__ == "__main__":
    main()
