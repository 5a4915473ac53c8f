# SPDX-License-Identifier: Apache-2.0
"""Steps as programs on simulated devices: what is planned, and what the virtual clock measures.

    python bench/torch_programs.py [gpt2|llama] [BUDGET]

Models, clock and links are those of bench/torch_steps.py. Costs are measured on one device of that
clock; "times one" is over the whole batch as one program on one device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from baechi.torch import sim
from baechi.torch.capture.step import Step
from baechi.torch.capture.trace import capture
from baechi.torch.costs.measured import measured
from baechi.torch.graph.graph import graph_of
from baechi.torch.program import Parts, Program, Roles, calls_of, in_parts, lower, walk
from baechi.torch.run import executor
from torch import Tensor, fx

import baechi
from bench.torch_steps import CLOCK, SAMPLES, TOKENS, built

LINK = ("5us", "10GB/s")


def roles_of(step: Step) -> Roles:
    """Return what is shared by the parts of a batch, and what is added up."""
    shared = [i for i, one in enumerate(step.inputs) if one.kind in ("weight", "buffer")]
    return Roles(shared, [i for i, out in enumerate(step.outputs) if out.kind == "gradient"])


def devices_of(step: Step, of: Mapping[str, int]) -> dict[fx.Node, int]:
    """Return the device of every call and input of a step."""
    names = {"batch": "batch:{}", "tangent": "tangent"}
    found = {node: of[key] for node, key in step.keys.items()}
    for node, one in zip(step.placeholders(), step.inputs, strict=True):
        found[node] = of.get(names.get(one.kind, "{}").format(one.name), 0)
    return found


def planned(step: Step, plan: baechi.Plan, parts: int) -> tuple[Parts, Program]:
    """Return the program of a plan."""
    index = {device.name: i for i, device in enumerate(plan.cluster.devices)}
    starts = dict(zip(plan.graph.names, plan.starts, strict=True))
    of = {name.partition("@")[0]: index[device] for name, device in plan.device_of.items()}
    where = devices_of(step, of)
    homes = {one.name: where[n] for one, n in zip(step.inputs, step.placeholders(), strict=True)}
    promised = [homes[o.name] if o.kind == "gradient" else None for o in step.outputs]
    calls = calls_of(step.graph, where, promised=promised, names=step.keys)
    made = in_parts(calls, parts, roles_of(step))
    node_of = {key: node for node, key in step.keys.items()}
    timed = []
    for name, start in starts.items():
        key, _, part = name.partition("@")
        if key in node_of and (part or "0").isdigit():  # and not the sum of gradients
            timed.append((start, len(timed), (node_of[key], int(part or 0))))
    order = [node for _, _, node in sorted(timed, key=lambda one: one[:2])]
    return made, lower(made.calls, devices=len(index), order=order)


def run_once(step: Step, made: Parts, run: Any, state: Mapping[str, Tensor]) -> list[Any]:
    """Run a program on parts of one batch."""
    tokens = torch.randint(1, 64, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))
    count = 1 + max(told.part or 0 for told in made.inputs)
    parts, inputs = tokens.chunk(count), []
    for told, slot in zip(made.inputs, made.calls.inputs, strict=True):
        one = step.inputs[told.place]
        if one.kind in ("weight", "buffer"):
            value = state[one.name].detach()
        else:
            share = torch.tensor(1 / count)
            value = share if one.kind == "tangent" else parts[told.part or 0]
        inputs.append(value.to(f"sim:{slot.device}"))
    for device in range(sim.device_count()):
        sim.synchronize(device)
        sim.reset_peak_memory_stats(device)
    sim.reset_virtual_clock()
    return run(inputs)


def captured(name: str, samples: int) -> tuple[Step, dict[str, Tensor]]:
    """Return the step of so many samples, and the model's weights."""
    model = built(name)
    tokens = torch.randint(1, 64, (samples, TOKENS))
    step = capture(model, {"input_ids": tokens, "labels": tokens})
    return step, {**dict(model.named_parameters()), **dict(model.named_buffers())}


def measure(name: str, devices: int, parts: int, budget: str) -> tuple[float, float, list[int]]:
    """Return milliseconds planned and measured, and what the walk missed of the peaks."""
    step, state = captured(name, SAMPLES // parts)
    link = sim.Link(*LINK)
    with sim.configured(devices=devices, link=link, asynchronous=False, **CLOCK):
        costs = measured(step.keys, {"gpu": torch.device("sim", 0)})
        graph = graph_of(step, costs, ["gpu"], "sgd", micro_batches=parts).graph
        cluster = baechi.Cluster(f"{devices}x1GiB", link=",".join(LINK))
        options = {"micro_batches": parts} if parts > 1 else {}
        method = "auto" if devices > 1 else "single"
        plan = baechi.place_graph(graph, cluster, method=method, budget=budget, **options)
        made, program = planned(step, plan, parts)
        run = executor.compile(program, [torch.device("sim", i) for i in range(devices)])
        run_once(step, made, run, state)
        results = run_once(step, made, run, state)
        took = sim.virtual_time() * 1e3
        most = [sim.max_memory_allocated(i) for i in range(devices)]
        del results
    walked = walk(program)[0]
    return plan.makespan_ns / 1e6, took, [a - b for a, b in zip(most, walked, strict=True)]


def main(names: list[str], budget: str) -> None:
    """Print a table."""
    torch.set_num_threads(1)
    for name in names:
        _, whole, _ = measure(name, 1, 1, budget)
        print(f"{name}: one device, the whole batch: {whole:.1f} ms")
        for devices, parts in ((2, 1), (2, 4), (4, 4)):
            plan, took, missed = measure(name, devices, parts, budget)
            print(
                f"{name}: {devices} devices, {parts} parts: planned {plan:.1f} ms, measured"
                f" {took:.1f} ({took / plan - 1:+.1%}), {whole / took:.2f} times one;"
                f" calls hold {missed} bytes for themselves",
                flush=True,
            )


if __name__ == "__main__":
    words = sys.argv[1:]
    names = [word for word in words if word in ("gpt2", "llama")]
    main(names or ["gpt2", "llama"], next((w for w in words if w not in names), "3s"))
