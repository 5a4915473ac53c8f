# SPDX-License-Identifier: Apache-2.0
"""In steps of micro-batches the gradients of a product's weights come apart, when nobody waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import baechi.torch
import baechi.torch.sim as simulated
import pytest
import torch
from baechi.torch.base.mini_batch import cut
from baechi.torch.cost.profiler import estimate, measure
from baechi.torch.record.capture import capture
from baechi.torch.run.late_gradients import product_in
from baechi.torch.run.step_order import Phase
from baechi.torch.run.stepping import Stepper
from same_training import EXCLUSIVE
from torch import nn
from torch.autograd.graph import get_gradient_edge

import baechi

M = 4


class Both(nn.Module):
    """Has a weight that a product reads, and that is read beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.weight.mean(0)


class Beside(nn.Module):
    """Has a weight whose gradient does not come through the product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(32, 32)), nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Mixed(nn.Module):
    """What is a product with weights, and what only looks like one.

    Of `first` nobody wants the gradient by its inputs; `norm` is no product; `frozen` has no
    gradient by its weights; `both` reads its weight beside the product, too, so all is done at
    once; of `beside` the bias is; `tied` runs twice; behind `wide` comes a change in place, so both
    are one segment; what `spread` gives is read twice, once as a view whose backward is a sum.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.flat, self.norm = nn.Linear(128, 32), nn.LayerNorm(32)
        self.frozen = nn.Linear(32, 32).requires_grad_(requires_grad=False)
        self.tied, self.wide = nn.Linear(32, 32), nn.Linear(32, 32, bias=False)
        self.spread, self.both, self.beside = nn.Linear(32, 8), Both(), Beside()
        self.last = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x)))).flatten(1)
        x = self.norm(self.flat(x))
        x = x + self.frozen(torch.tanh(self.tied(torch.tanh(self.tied(x)))))
        x = self.wide(x).relu_()
        some = self.spread(x)
        x = x * some.unsqueeze(1).expand(-1, 4, -1).flatten(1) + some.sum()
        return self.last(self.beside(self.both(x)))


IN_TWO = {"both", "beside", "second", "flat", "tied", "tied#1", "spread", "last"}


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """A mini-batch."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, 4, 4, generator=generator, dtype=torch.double)
    return x, torch.randint(0, 5, (8,), generator=generator)


def planned(batch: Any) -> dict[str, Any]:
    """What a step is placed and planned with."""
    x, target = batch
    return {
        "example_inputs": x,
        "cluster": baechi.Cluster("3x1GiB", link="5us,10GB/s"),
        "micro_batches": M,
        "loss": loss_of,
        "targets": target,
        "optimizer": "sgd",
        "bounds": False,
    }


def apart(graph: baechi.Graph) -> set[str]:
    return {n.removesuffix(":weight_gradient") for n in graph.names if n.endswith("_gradient")}


def test_products_with_weights_have_two_gradients(batch: Any) -> None:
    """The second waits for the first, shares its device, and nobody waits for it."""
    plan = baechi.torch.plan(Mixed().double(), **planned(batch), method="1f1b")
    graph = plan.micro_batch_graph
    assert apart(graph) == IN_TWO
    operators = {o["name"]: o for o in json.loads(graph.to_json())["operators"]}
    read = {
        i if isinstance(i, str) else i[0] for o in operators.values() for i in o.get("inputs", [])
    }
    summed = {}
    for name in IN_TWO:
        late, first = operators[f"{name}:weight_gradient"], operators[f"{name}:backward"]
        assert late["forward"] == name
        assert not late.get("outputs")
        assert late["name"] not in read
        given = [first["name"] in (i, i[0]) for i in late["inputs"]]
        assert any(given) or first["name"] in late["after"]
        summed[name] = any(given)
    # Of `spread` two gradients come together, of `flat` that of a normalisation arrives as it is.
    assert summed["spread"]
    assert not summed["last"]


def test_each_gradient_is_as_much_work_as_the_forward() -> None:
    """Of products; what else runs backward goes with the first. Costs say so only when asked."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 16))
    x = torch.randn(8, 3, 4, 4, requires_grad=True)
    captured = capture(model, x)
    ops = {op.key: op for op in captured.ops}
    for key, touched in (("0", (6496, 6528)), ("2", (12_800, 12_800 + 576))):
        halves, forward = ops[key].halves, ops[key].forward
        assert halves is not None
        assert halves.by_inputs.flops == halves.by_weights.flops == forward.flops
        assert (halves.by_inputs.bytes, halves.by_weights.bytes) == touched
        assert halves.by_inputs.kernels == 1
    assert ops["1"].halves is None
    for adding in (False, True):
        cost = estimate(captured, {"gpu": "t4"}, adding=adding).ops["2"]
        assert bool(cost.by_weights) == adding
        if adding:
            assert 0 < cost.by_weights["gpu"] < cost.backward["gpu"]


@pytest.fixture
def sim() -> Iterator[None]:
    """Asynchronous devices, slow at random, on which memory that is free holds no numbers."""
    delays = {"longest_delay": "100us", "seed": 5}
    with simulated.configured(devices=4, poison=True, memory="1GiB", **delays):
        yield


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("method", ["zb-h1-divided", "random"])
def test_gradients_are_bit_equal(
    method: str,
    joined: bool,
    batch: Any,
    sim: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To those of the micro-batches one after the other, and in a second step added to them."""
    monkeypatch.setattr(Stepper, "joins_parts", joined)
    x, target = batch
    expected, model = Mixed().double(), Mixed().double()
    placed = baechi.torch.place(model, **planned(batch), method=method, devices=EXCLUSIVE)
    assert placed._stepper is not None
    parts = placed._stepper.program(cut(x, M))[0].order
    late = [p for p in parts if p.phase is Phase.BY_WEIGHTS]
    assert (0 < len(late) < M * len(IN_TWO)) if joined else len(late) == M * len(IN_TWO)
    between = [
        parts.index(part) - parts.index(part._replace(phase=Phase.BACKWARD)) - 1 for part in late
    ]
    assert sum(count > 0 for count in between) > len(late) / 4
    for _ in range(2):
        placed.step(x, target)
        for some, wanted in zip(cut(x, M), cut(target, M), strict=True):
            (loss_of(expected(some), wanted) / M).backward()
    weights = dict(expected.named_parameters())
    for name, weight in model.named_parameters():
        if weights[name].grad is None:
            assert weight.grad is None, name
        else:
            torch.testing.assert_close(
                weight.grad.cpu(), weights[name].grad, rtol=1e-11, atol=1e-16
            )
    placed.restore()


def test_a_product_is_the_only_one_and_alone_with_its_weights() -> None:
    """Else its gradients are taken at once."""
    weights = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    first, second, other = weights
    x = torch.randn(4, 4, requires_grad=True)
    end = get_gradient_edge((x @ first).view(16).exp())
    found = product_in([end], weights)
    assert found is not None
    assert found.edge.node.name() == "MmBackward0"
    assert [id(w) for w in found.weights] == [id(first)]
    assert [id(w) for w in found.at_once] == [id(second), id(other)]
    for value in (x @ first @ second, x @ first + x @ second, x @ first + first, x @ x):
        assert product_in([get_gradient_edge(value)], weights) is None


class Layers(nn.Module):
    """A chain of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def squares(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_bubbles_are_filled_as_planned() -> None:
    """On the virtual clock a step takes what its plan says: less than with gradients at once."""
    clock = {"clock": "virtual", "operator_time": "20us", "memory_bandwidth": "1GB/s"}
    x, model = torch.randn(64, 64), Layers()
    devices = [f"sim:{i}" for i in range(4)]
    taken, planned = [], []
    with simulated.configured(devices=4, memory="1GiB", asynchronous=False, **clock):
        model.to("sim:0")
        part = x[: len(x) // M].to("sim:0")
        costs = measure(model, part, kind="gpu", loss=squares, adding=True, repeats=2)
        model.to("cpu")
        at_once = {key: replace(cost, by_weights={}) for key, cost in costs.ops.items()}
        for known in (costs, replace(costs, ops=at_once)):
            placed = baechi.torch.place(
                model,
                x,
                baechi.Cluster("4x1GiB", link="5us,10GB/s"),
                micro_batches=M,
                loss=squares,
                optimizer="sgd",
                devices=devices,
                costs=known,
                method="pipeline",
                bounds=False,
            )
            for _ in range(2):  # gradients are there from the second one on
                torch.accelerator.synchronize()
                simulated.reset_virtual_clock()
                placed.step(x)
                torch.accelerator.synchronize()
            taken.append(simulated.virtual_time())
            assert placed.plan is not None
            planned.append(placed.plan.makespan_ns / 1e9)
            placed.restore()
    print(taken, planned)
    assert taken == pytest.approx(planned, rel=0.04)
    assert taken[0] < 0.95 * taken[1]
