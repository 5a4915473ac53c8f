# SPDX-License-Identifier: Apache-2.0
"""Tests of whole steps: small models, captured, placed at random, train as on one device."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import baechi.torch.sim as sim
import pytest
import torch
from baechi.torch.capture.keys import is_backward, is_call
from baechi.torch.capture.step import Step
from baechi.torch.capture.trace import capture
from baechi.torch.program import Calls, Parts, Roles, calls_of, in_parts, lower, walk
from baechi.torch.run import executor
from baechi.torch.run.joint import run_again
from random_graphs import RACE, measured_peaks, own_memory, same
from torch import Tensor, nn

ROWS = 4


class Branches(nn.Module):
    """Two ways that meet, tied weights, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.right.weight = self.left.weight
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.left(x).tanh())
        z = self.right(x.flip(-1)) * torch.tensor(0.5)
        return self.last(torch.cat([y, z], -1))


class Words(nn.Module):
    """An embedding that is tied to the output, with a transformer's layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        words = (x.abs() * 3).long() % 11
        return (self.layer(self.table(words)) @ self.table.weight.t()).mean(1)


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "branches": Branches,
    "words": Words,
    "images": images,
    "layers": lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
}


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, :3] - target).square().mean()


def expected(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Train a copy on the host, micro-batch after micro-batch."""
    twin = copy.deepcopy(model)
    losses = [mean_square(twin(x), y) for x, y in batches]
    for loss in losses:
        (loss / len(batches)).backward()
    gradients = {name: p.grad for name, p in twin.named_parameters()}
    return {"losses": losses, "gradients": gradients, "buffers": dict(twin.named_buffers())}


def roles_of(step: Step) -> Roles:
    outputs = {(out.kind, out.name): i for i, out in enumerate(step.outputs)}
    new = {i: outputs.get(("buffer", one.name)) for i, one in enumerate(step.inputs)}
    carried = {i: out for i, out in new.items() if out is not None}
    kinds = [one.kind for one in step.inputs]
    shared = [i for i, kind in enumerate(kinds) if kind in ("weight", "buffer") if i not in carried]
    return Roles(shared, [i for (kind, _), i in outputs.items() if kind == "gradient"], carried)


def placed(step: Step, pick: random.Random, devices: int, twice: bool) -> Calls:
    nodes = [n for n in step.graph.graph.nodes if n.op in ("placeholder", "call_function")]
    device_of = {node: pick.randrange(devices) for node in nodes}
    if twice:
        backward = {n for n in nodes if is_backward(n)}
        forward = [n for n in nodes if is_call(n) and n not in backward]
        again = pick.sample(forward, len(forward) // 2)
        twins = run_again(step.graph.graph, again, backward)
        device_of |= {twin: device_of[first] for first, twin in twins.items()}
    at = {one.name: device_of[n] for one, n in zip(step.inputs, step.placeholders(), strict=True)}
    homes = [at[o.name] if o.kind in ("gradient", "buffer") else None for o in step.outputs]
    return calls_of(step.graph, device_of, promised=homes, names=step.keys)


def inputs_of(
    step: Step, parts: Parts, model: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    share = torch.tensor(1 / len(batches), dtype=torch.double)
    result = []
    for told, slot in zip(parts.inputs, parts.calls.inputs, strict=True):
        one = step.inputs[told.place]
        value = share
        if one.kind in ("weight", "buffer"):
            value = state[one.name].detach()
        elif one.kind == "batch":
            leaves = [i for i, other in enumerate(step.inputs) if other.kind == "batch"]
            value = batches[told.part or 0][leaves.index(told.place)]
        result.append(value.clone().to(f"sim:{slot.device}"))
    return result


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_captured_steps_train_as_one_device_wherever_their_calls_are(name: str, seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    model, count = MODELS[name]().double(), (1, 2, 3)[seed]
    batches = [(torch.randn(ROWS, 6).double(), torch.randn(ROWS, 3).double()) for _ in range(count)]
    step = capture(model, *batches[0][:1], loss=mean_square, targets=batches[0][1])
    calls = placed(step, pick, 3, twice=seed > 0)
    parts = in_parts(calls, count, roles_of(step))
    order: list[Any] = [call.node for call in parts.calls.calls]
    pick.shuffle(order)
    program = lower(parts.calls, devices=3, order=order)
    wanted = expected(model, batches)
    with sim.configured(devices=3, seed=seed, **RACE):
        devices = [torch.device("sim", i) for i in range(3)]
        run = executor.compile(program, devices)
        results = run(inputs_of(step, parts, model, batches))
        for told, value in zip(parts.outputs, results, strict=True):
            out = step.outputs[told.place]
            if out.kind == "loss":
                same([value], [wanted["losses"][told.part or 0].detach()])
            elif value is not None:
                same([value], [wanted[f"{out.kind}s"][out.name].detach()])
    with sim.configured(devices=3, asynchronous=False):
        own = own_memory(program, devices, inputs_of(step, parts, model, batches))
        measured = measured_peaks(program, run, lambda: inputs_of(step, parts, model, batches))
    assert walk(program, own=own)[0] == measured
