# SPDX-License-Identifier: Apache-2.0
"""The paper's operators in PyTorch: a module's calls and their backward in one, and plans of it."""

from __future__ import annotations

import itertools
from typing import Any

import baechi.torch
import pytest
import step_models as models
import torch
from baechi.torch.capture.trace import capture
from baechi.torch.costs.roofline import estimated
from baechi.torch.graph.graph import StepGraph, graph_of
from baechi.torch.graph.modules import graph_of_modules, plan_of_modules
from torch import nn

import baechi

pytestmark = pytest.mark.filterwarnings("ignore")


def made(model: Any, example: Any, loss: Any = None) -> StepGraph:
    step = capture(model, example, loss)
    return graph_of(step, estimated(step.keys, {"gpu": "a100"}), ["gpu"])


@pytest.fixture(scope="module")
def twice() -> StepGraph:
    return made(*models.made("twice"), models.total)


def test_the_calls_of_a_module_and_their_backward_are_one_operator(twice: StepGraph) -> None:
    modules = graph_of_modules(twice)
    assert set(modules.module_of) == set(twice.graph.names)
    middle = {name for name, module in modules.module_of.items() if module == "middle#0"}
    assert {"middle.weight", "middle.bias", "middle:addmm:0", "update:middle.weight"} <= middle
    assert {name for name in twice.keys if name.startswith("middle:")} <= middle
    calls = [twice.graph[name] for name in middle]
    assert modules.graph["middle#0"].times["gpu"] == sum(c.times.get("gpu", 0) for c in calls)
    assert any(call.backward for call in calls)


def test_a_module_that_is_called_twice_is_two_operators_on_one_device(twice: StepGraph) -> None:
    graph = graph_of_modules(twice).graph
    assert {"last#0", "last#1"} <= set(graph.names)
    assert set(graph["last#0"].colocate) & set(graph["last#1"].colocate)
    for seed in range(5):
        device_of = baechi.place_graph(graph, "3x1GiB", method="random", seed=seed).device_of
        assert device_of["last#0"] == device_of["last#1"]


@pytest.mark.parametrize("name", ["convolutions", "tied", "lstm"])
def test_a_plan_of_modules_is_one_of_the_calls_that_keeps_every_rule(name: str) -> None:
    step = made(*models.made(name), models.total)
    cluster = baechi.Cluster("3x1GiB", link="1us,100GB/s")
    plan = plan_of_modules(step, cluster, None, method="m-etf", paper=True)
    assert set(plan.device_of) == set(step.graph.names)
    assert baechi.verify(plan) == []


def nested() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid())

    return nn.Sequential(nn.Sequential(block(), block()), nn.Sequential(block(), nn.Linear(4, 4)))


@pytest.fixture(scope="module")
def blocks() -> StepGraph:
    return made(nested(), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("nodes", "operators"), [(None, 13), (13, 13), (12, 10), (10, 10), (9, 7), (4, 4), (3, 3)]
)
def test_modules_are_joined_innermost_first(
    blocks: StepGraph, nodes: int | None, operators: int
) -> None:
    graph = graph_of_modules(blocks, nodes).graph
    assert sum(not name.startswith(("batch", "(loss)")) for name in graph.names) == operators


def test_paper_places_modules_and_they_train_as_ever() -> None:
    torch.manual_seed(0)
    model, x = nested(), torch.randn(2, 4)
    expected = model(x).sum()
    expected.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    cluster = baechi.Cluster("2x1GiB", link="0us,1000GB/s")
    placed = baechi.torch.place(
        model,
        x,
        cluster,
        devices=["cpu", "cpu"],
        method="m-topo",
        paper=True,
        nodes=4,
        coplacement="none",
    )
    device_of = placed.plan.device_of
    for block in ("0.0", "0.1", "1.0"):
        inside = {d for name, d in device_of.items() if name.startswith((f"{block}.", f"{block}:"))}
        assert len(inside) == 1
    assert len(set(device_of.values())) == 2
    loss = placed.model(x).sum()
    loss.backward()
    assert torch.equal(loss, expected)
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(weight.grad, gradient)


def test_what_does_not_fit_is_not_mended(twice: StepGraph) -> None:
    cluster = [baechi.Cluster(f"2x{size}KiB") for size in (4, 6, 8, 12)]
    answers: list[bool | str] = []
    for one, method in itertools.product(cluster, ("m-topo", "m-etf", "m-sct")):
        try:
            plan = plan_of_modules(twice, one, None, method=method, paper=True)
            answers.append(plan.fits)
        except baechi.DoesNotFit as error:
            answers.append(str(error))
    assert any(isinstance(answer, str) for answer in answers)
    assert True in answers
    assert False not in answers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"micro_batches": 2, "paper": True}, "beyond the paper"),
        ({"micro_batches": 2, "replicas": 2, "paper": True}, "beyond the paper"),
        ({"replicas": 2}, "2 does not divide the number of micro-batches, 1"),
    ],
)
def test_what_models_are_not_planned_with_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(baechi.InputError, match=says):
        baechi.torch.plan(nn.Linear(4, 4), torch.ones(2, 4), "2x1GiB", **options)
