#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs the host that a PyTorch model is placed.

Medians of ratios taken in turns in one run: the step time of a 12-layer Transformer placed on one
device against the same model unplaced, by tier; the time that one module call takes more when
neighbouring modules are on different logical devices of the CPU; and the forward of the models in
`models/pytorch` at their small sizes, every operator on one of two logical devices at random, by
tier. In the last two the copies are left out. What it takes to find the optimizers whose state
moves along, once per `place` and `restore`. What steps of micro-batches take beside the same parts
of an unplaced model, with kernels that take next to nothing. What `place` and the first calls of
other kinds take for language models of 32 and 64 small layers, and `device_map` beside
accelerate's. And the constants of `baechi.torch.run.graph_gain`.

    python bench/torch_overhead.py [PART ...]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import baechi.torch
import torch
from baechi.torch.placing import assign, place_with
from baechi.torch.run.communication import Arrival, Links
from baechi.torch.run.planned_pieces import intercepted_calls
from baechi.torch.trace.exported import export
from baechi.torch.weights.optimizer_state import follow
from torch import nn

from models.pytorch import MODELS


def cpu_time(call: Callable[[], Any]) -> float:
    """Return the processor seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def step(model: nn.Module, inputs: torch.Tensor) -> None:
    """Run one step of training."""
    model.zero_grad()
    model(inputs).square().mean().backward()


def one_device(rounds: int, tier: int) -> float:
    """Return the step time of the placed model as a multiple of the unplaced one's."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
    plain, placed = nn.TransformerEncoder(layer, 12), nn.TransformerEncoder(layer, 12)
    inputs = torch.randn(4, 64, 128)
    baechi.torch.place(placed, inputs, "1x64GiB", devices=["cpu"], tier=tier)
    step(plain, inputs)
    step(placed, inputs)
    pairs = [
        (cpu_time(lambda: step(placed, inputs)), cpu_time(lambda: step(plain, inputs)))
        for _ in range(rounds)
    ]
    return statistics.median(a / b for a, b in pairs)


def _stay(_: Links, tensor: torch.Tensor, *ends: Any) -> Arrival:  # noqa: ARG001
    return Arrival(tensor, None, None, None)


def per_call(rounds: int, calls: int = 200) -> float:
    """Return the microseconds that interception adds to a module call."""
    plain = nn.Sequential(*(nn.Identity() if i % 2 else nn.Tanh() for i in range(calls)))
    placed = nn.Sequential(*(nn.Identity() if i % 2 else nn.Tanh() for i in range(calls)))
    inputs = torch.randn(1)
    captured = baechi.torch.capture(placed, inputs, training=False)
    device_of = {op.key: f"d{int(op.key) // 2 % 2}" for op in captured.ops}
    assign(placed, captured, device_of, {"d0": "cpu", "d1": "cpu"}, tier=1)
    with torch.no_grad():
        pairs = [
            (cpu_time(lambda: placed(inputs)), cpu_time(lambda: plain(inputs)))
            for _ in range(rounds)
        ]
    return statistics.median((a - b) / calls for a, b in pairs) * 1e6


def per_model(entry: Any, rounds: int) -> tuple[float, float, int]:
    """Return the forward's time in tier 1 and 2 as multiples of eager code's, and the calls."""
    config = entry.small()
    inputs = entry.inputs(config, 2)
    torch.manual_seed(1)
    nets = [entry.build(config) for _ in range(3)]
    graph = export(nets[0], inputs)
    for tier in (1, 2):
        place_with(
            [graph] if tier == 2 else [],
            nets[tier],
            inputs,
            cluster="2x64GiB",
            method="random",
            bounds=False,
            devices=["cpu"] * 2,
            tier=tier,
        )
    times: list[list[float]] = []
    for _ in range(rounds + 2):
        times.append([cpu_time(lambda net=net: net(**inputs)) for net in nets])
    ratios = [statistics.median(t[tier] / t[0] for t in times[2:]) for tier in (1, 2)]
    calls = sum(node.kind == "call" for node in graph.graph.nodes)
    return ratios[0], ratios[1], calls


def finding_optimizers(rounds: int) -> tuple[float, int]:
    """Return the milliseconds of looking for optimizers, and how many objects there are."""
    moved = [(torch.zeros(1), torch.device("meta"))]  # of no optimizer: nothing follows it
    took = [cpu_time(lambda: follow(moved)) for _ in range(rounds)]
    return 1e3 * statistics.median(took), len(gc.get_objects())


def print_device() -> None:
    """Print the step time on one device."""
    for tier in (1, 2):
        ratio = one_device(15, tier)
        print(
            f"12-layer Transformer on one device, tier {tier}: {100 * (ratio - 1):+.1f}% step time"
        )


def print_calls() -> None:
    """Print what a module call takes more."""
    Links.send = _stay  # type: ignore[method-assign]
    print(f"interception of a module call: {per_call(30):.1f} us")


def print_models() -> None:
    """Print the forward of every model."""
    Links.send = _stay  # type: ignore[method-assign]
    for name, entry in MODELS.items():
        first, second, calls = per_model(entry, 15)
        print(
            f"{name}, {calls} calls: forward {first:.2f} times eager in tier 1, {second:.2f} in 2"
        )


def print_optimizers() -> None:
    """Print what finding optimizers takes among the objects of this program."""
    milliseconds, objects = finding_optimizers(30)
    print(f"finding optimizers among {objects:,} live objects: {milliseconds:.0f} ms")


def _llama(layers: int, hidden: int = 64) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    return transformers.LlamaForCausalLM(config)


def print_layers() -> None:
    """Print what placing a language model takes, and what its first calls of each kind do."""
    words = torch.randint(0, 256, (2, 16))
    longer = torch.randint(0, 256, (3, 19))
    for layers in (32, 64):
        model = _llama(layers)

        def place(model: Any = model) -> Any:
            given = {"input_ids": words, "labels": words}
            return baechi.torch.place(model, given, "4x1GiB", devices=["cpu"] * 4)

        def evaluate(model: Any = model, **more: Any) -> None:
            with torch.no_grad():
                model.eval()(input_ids=words, **more)

        calls = {
            "place": place,
            "first step": lambda m=model: m(input_ids=words, labels=words).loss.backward(),
            "other sizes": lambda m=model: m(input_ids=longer, labels=longer).loss.backward(),
            "eval": evaluate,
            "attention mask": lambda run=evaluate: run(attention_mask=torch.ones_like(words)),
            "generate": lambda m=model: m.generate(
                words, attention_mask=torch.ones_like(words), max_new_tokens=4, pad_token_id=0
            ),
        }
        took = ", ".join(f"{what} {cpu_time(call):.2f}" for what, call in calls.items())
        print(f"processor seconds of a model of {layers} layers: {took}")


def print_device_map() -> None:
    """Print what a device map takes, and what accelerate's does."""
    import accelerate

    memory: dict[int | str, int | str] = {0: "40MiB", 1: "400MiB"}
    with torch.device("meta"):
        model = _llama(32, hidden=512)
    whole = model._no_split_modules
    ours = [cpu_time(lambda: baechi.torch.device_map(model, memory)) for _ in range(5)]
    theirs = [
        cpu_time(lambda: accelerate.infer_auto_device_map(model, memory, whole)) for _ in range(5)
    ]
    print(
        f"device_map of 32 layers: {statistics.median(ours):.3f} s of the processor, "
        f"infer_auto_device_map {statistics.median(theirs):.3f} s"
    )


class _Layer(nn.Module):
    """A layer of a Transformer of width 16."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(16), nn.LayerNorm(16)
        self.three, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.act, self.down = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = x.shape
        three = self.three(self.before(x)).view(samples, tokens, 3, 2, width // 2)
        q, k, v = three.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.down(self.act(self.up(self.between(x))))


def print_steps(layers: int = 12, micro_batches: int = 4, rounds: int = 9) -> None:
    """Print what steps of micro-batches take the host on one, two and four devices of the CPU."""
    words = torch.randint(0, 64, (8, 8))
    models = [
        nn.Sequential(nn.Embedding(64, 16), *(_Layer() for _ in range(layers)), nn.Linear(16, 64))
        for _ in range(4)
    ]

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    def in_parts() -> None:
        for part in words.chunk(micro_batches):
            (loss(models[0](part), part) / micro_batches).backward()

    placed = [
        baechi.torch.place(
            model,
            words,
            f"{count}x8GiB",
            devices=["cpu"] * count,
            micro_batches=micro_batches,
            loss=loss,
            targets=words,
            bounds=False,
        )
        for model, count in zip(models[1:], (1, 2, 4), strict=True)
    ]
    calls = [in_parts, *(lambda each=each: each.step(words, words) for each in placed)]
    times = [[cpu_time(call) for call in calls] for _ in range(rounds + 2)][2:]
    alone = statistics.median(row[0] for row in times)
    print(f"{micro_batches} parts of an unplaced {layers}-layer model: {1e3 * alone:.0f} ms")
    for number, each in enumerate(placed, start=1):
        milliseconds = 1e3 * statistics.median(row[number] for row in times)
        ratio = statistics.median(row[number] / row[0] for row in times)
        count = len(each.plan.cluster.devices)
        print(
            f"a step of {micro_batches} micro-batches, {count} devices: {milliseconds:.0f} ms, "
            f"{ratio:.2f} times; the plan says {each.plan.makespan_ns / 1e6:.1f} ms"
        )


def print_gain() -> None:
    """Print what tier 1 takes for a call that it intercepts, and tracing for any."""
    Links.send = _stay  # type: ignore[method-assign]
    for name, entry in MODELS.items():
        config = entry.small()
        inputs = entry.inputs(config, 2)
        nets = [entry.build(config) for _ in range(3)]
        start = time.process_time()
        graphs = [export(nets[0], inputs)]
        traced = time.process_time() - start
        captured = baechi.torch.capture(nets[0], inputs)
        for tier in (1, 2):
            how: dict[str, Any] = {"devices": ["cpu"] * 2, "tier": tier, "bounds": False}
            placed = place_with(
                graphs, nets[tier], inputs, cluster="2x64GiB", method="random", **how
            )
        times = [[cpu_time(lambda n=n, given=inputs: n(**given)) for n in nets] for _ in range(15)]
        eager, first, second = (statistics.median(t[i] for t in times[2:]) for i in range(3))
        calls = intercepted_calls(captured, placed.plan.device_of)
        each = len(captured.ops)
        print(
            f"{name}: {1e6 * (first - second) / calls:.0f} us for each of {calls} intercepted "
            f"calls, {1e6 * eager / each:.0f} us eager and {1e3 * traced / each:.0f} ms of tracing "
            f"for each of {each} calls"
        )


PARTS = {
    "device": print_device,
    "calls": print_calls,
    "models": print_models,
    "optimizers": print_optimizers,
    "steps": print_steps,
    "layers": print_layers,
    "device_map": print_device_map,
    "gain": print_gain,
}


def main() -> None:
    """Print the figures that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; or all")
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    torch.set_num_threads(1)
    for part in chosen:
        PARTS[part]()


if __name__ == "__main__":
    main()
